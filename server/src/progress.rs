//! A progress bar on a terminal, nothing elsewhere.

use std::io::{IsTerminal, Write};

const WIDTH: usize = 24;

/// One line on stderr that is written over.
pub(crate) struct Progress {
    terminal: bool,
    /// Cells filled when it was last drawn, so that it is drawn no more often than it changes.
    shown: Option<usize>,
}

impl Progress {
    /// A bar that has shown nothing.
    pub(crate) fn new() -> Self {
        Progress { terminal: std::io::stderr().is_terminal(), shown: None }
    }

    /// `done` of `all`.
    pub(crate) fn show(&mut self, label: &str, done: usize, all: usize) {
        let cells = done * WIDTH / all.max(1);
        if !self.terminal || self.shown == Some(cells) {
            return;
        }
        self.shown = Some(cells);
        let _ = write!(std::io::stderr(), "\r\x1b[K{} {done}/{all} {label}", bar(cells));
    }

    /// Leaves an empty line.
    pub(crate) fn clear(&mut self) {
        if self.terminal && self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(cells: usize) -> String {
    let cells = cells.min(WIDTH);
    format!("[{}{}]", "#".repeat(cells), ".".repeat(WIDTH - cells))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_bar_fills_from_the_left() {
        assert_eq!(super::bar(0), format!("[{}]", ".".repeat(24)));
        assert_eq!(super::bar(24), format!("[{}]", "#".repeat(24)));
        assert!(super::bar(6).starts_with("[######...") && super::bar(99) == super::bar(24));
    }
}
