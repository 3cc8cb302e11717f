//! Holding back the end of a text that may be the beginning of a marker.

/// The length of the longest end of `text` that begins `marker` without being all of it.
pub(crate) fn hold_len(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len().saturating_sub(1));
    // A suffix that equals the beginning of a text starts at a character's border.
    (1..=most).rev().find(|&len| text.as_bytes().ends_with(&marker.as_bytes()[..len])).unwrap_or(0)
}

/// Moves the first `certain` bytes of what is held to `out`.
pub(crate) fn hold(held: &mut String, certain: usize, out: &mut String) {
    out.push_str(&held[..certain]);
    held.drain(..certain);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_possible_beginning_is_held() {
        for (text, len) in
            [("", 0), ("a", 0), ("a<", 1), ("</thi", 5), ("</think>", 0), ("<</", 2), ("</thé", 0)]
        {
            assert_eq!(hold_len(text, "</think>"), len, "{text}");
        }
        assert_eq!(hold_len("aab", "aabaac"), 3);
        assert_eq!(hold_len("x", ""), 0);
    }
}
