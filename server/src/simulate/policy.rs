//! A policy in one word on the command line.

use tokenrouter_scheduler::{CountTable, Policy, PolicySpec, Thresholds};

/// Reads `NAME`, `NAME=N` or `NAME=B,H`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Policy, String> {
    let (name, numbers) = match text.split_once('=') {
        Some((name, numbers)) => (name, Some(numbers)),
        None => (text, None),
    };
    let mut spec = PolicySpec { name: name.trim().to_owned(), ..PolicySpec::default() };
    if let Some(numbers) = numbers {
        if spec.name == "lookahead" {
            let alpha = numbers.trim().parse().ok().filter(|a: &f64| a.is_finite() && *a > 0.0);
            spec.alpha = Some(alpha.ok_or(format!("{numbers:?} is no weight; a number above 0 is needed"))?);
        } else {
            let mut counts = numbers.split(',').map(count);
            spec.threshold = counts.next().transpose()?.map(Thresholds::peers);
            spec.beside = counts.next().transpose()?;
            if counts.next().is_some() {
                return Err(format!("{numbers:?} has more than two numbers"));
            }
        }
    }
    Policy::from_spec(&spec).map_err(|e| e.to_string())
}

fn count(text: &str) -> Result<CountTable, String> {
    let number: Option<u32> = text.trim().parse().ok();
    match number.filter(|&n| n >= 1) {
        Some(n) => Ok(CountTable::constant(n)),
        None => Err(format!("{text:?} is no threshold; a whole number of at least 1 is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read() {
        let peers = |n| Thresholds::peers(CountTable::constant(n));
        let hold = |b, h| Policy::Hold { thresholds: peers(b), beside: CountTable::constant(h) };
        let cases = [
            ("eager", Policy::Eager),
            ("threshold=5", Policy::Threshold(peers(5))),
            ("threshold+hold=5", hold(5, 1)),
            ("threshold+hold=6,3", hold(6, 3)),
            ("exclusive=6", Policy::Exclusive(peers(6))),
            ("lookahead", Policy::default()),
            ("lookahead=1.5", Policy::Lookahead { alpha: 1.5 }),
        ];
        for (text, policy) in cases {
            assert_eq!(parse(text), Ok(policy), "{text}");
        }
        for (text, expected) in [
            ("eagr", "did you mean \"eager\""),
            ("threshold", "needs the key \"threshold\""),
            ("threshold=0", "at least 1"),
            ("threshold=5,3", "does not read the key \"beside\""),
            ("threshold+hold=1,2,3", "more than two"),
            ("eager=3", "does not read"),
            ("lookahead=-1", "above 0"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
