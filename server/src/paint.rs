//! Shows who wrote each token: a colour per model on a terminal, brackets elsewhere.

use std::io::Write;

const COLOURS: [&str; 4] = ["36", "33", "35", "32"];

/// Turns pieces of text and their writers into what is printed.
pub struct Painter {
    colour: bool,
    /// The open bracket when no colour is used.
    open: Option<usize>,
}

impl Painter {
    /// `colour`: whether the output is a terminal.
    pub fn new(colour: bool) -> Self {
        Painter { colour, open: None }
    }

    /// The text as printed. Without colour, what another model than the first wrote stands in `[[ ]]`.
    pub fn piece(&mut self, model: usize, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        if self.colour {
            return format!("\x1b[{}m{text}\x1b[0m", COLOURS[model % COLOURS.len()]);
        }
        let mut out = String::new();
        if self.open.is_some_and(|m| m != model) {
            out.push_str(self.end());
        }
        if model != 0 && self.open.is_none() {
            out.push_str("[[");
            self.open = Some(model);
        }
        out.push_str(text);
        out
    }

    /// Closes an open bracket.
    pub fn end(&mut self) -> &'static str {
        if self.open.take().is_some() { "]]" } else { "" }
    }

    /// Two lines: tokens and share per model, then handoffs and dropped candidates.
    pub fn summary(&self, names: &[&str], committed: &[u32], discarded: &[u32], handoffs: u32) -> String {
        let total: u32 = committed.iter().sum();
        let parts: Vec<String> = names
            .iter()
            .zip(committed)
            .enumerate()
            .map(|(i, (name, n))| {
                let share = 100.0 * f64::from(*n) / f64::from(total.max(1));
                let text = format!("{name} {n} tokens ({share:.0} %)");
                if self.colour { format!("\x1b[{}m{text}\x1b[0m", COLOURS[i % COLOURS.len()]) } else { text }
            })
            .collect();
        let dropped: u32 = discarded.iter().sum();
        format!(
            "written by: {}\n{total} tokens, {handoffs} handoffs, {dropped} candidates dropped by the router\n",
            parts.join(", ")
        )
    }
}

/// Writes to standard output at once. `print!` would panic where nobody reads.
///
/// # Errors
/// In words, when it cannot be written.
pub(crate) fn emit(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| format!("standard output: {e}"))
}

#[cfg(test)]
mod tests {
    use super::Painter;

    #[test]
    fn without_colour_the_peers_tokens_stand_in_brackets() {
        let mut painter = Painter::new(false);
        let pieces = [(0, "a"), (1, "b"), (1, "c"), (0, "d"), (1, ""), (1, "e")];
        let mut out: String = pieces.iter().map(|(m, t)| painter.piece(*m, t)).collect();
        out.push_str(painter.end());
        assert_eq!(out, "a[[bc]]d[[e]]");
    }

    #[test]
    fn the_summary_has_two_lines_and_the_shares() {
        let text = Painter::new(false).summary(&["small", "large"], &[90, 10], &[9, 0], 18);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("small 90 tokens (90 %)") && text.contains("18 handoffs"), "{text}");
    }
}
