//! Byte counts as people write them.

/// Parses `"123"`, `"512MiB"`, `"1.5 GB"`. Units: B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB.
///
/// # Errors
/// When the number or the unit is not understood.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let bad = || format!("\"{text}\" is not a byte count; write it like \"512MiB\" or \"2GB\"");
    let value: f64 = number.parse().map_err(|_| bad())?;
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err(bad()),
    };
    let bytes = value * scale;
    if bytes.is_finite() && bytes < 1e18 { Ok(bytes as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn units_are_understood_and_nonsense_is_not() {
        assert_eq!(parse_bytes("123"), Ok(123));
        assert_eq!(parse_bytes("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes(" 7 kb "), Ok(7_000));
        for bad in ["", "GB", "1.2.3", "-5MB", "5 parsecs", "1e9", "99999999999999999999999"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
