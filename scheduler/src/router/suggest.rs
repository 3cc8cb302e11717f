//! "Did you mean": the nearest known name.

/// The known name nearest to `name` by edit distance, if it is near enough to be a slip (at most a third of the
/// length, and at least one edit allowed).
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.into_iter().map(|k| (distance(name, k), k)).min()?;
    let allowed = (name.chars().count().max(best.1.chars().count()) / 3).max(1);
    (best.0 <= allowed).then_some(best.1)
}

/// Levenshtein distance over characters; `_` and `-` count as the same.
fn distance(a: &str, b: &str) -> usize {
    let fold = |c: char| if c == '_' { '-' } else { c.to_ascii_lowercase() };
    let b: Vec<char> = b.chars().map(fold).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().map(fold).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("R_Stitch", "r-stitch", 0)]
        {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_not() {
        let known = ["single", "fixed", "r-stitch"];
        assert_eq!(closest("rstitch", known), Some("r-stitch"));
        assert_eq!(closest("fixd", known), Some("fixed"));
        assert_eq!(closest("co-llm", known), None);
        assert_eq!(closest("x", []), None);
    }
}
