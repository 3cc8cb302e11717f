//! The measured rate of tokens beside the predicted one.

use crate::ids::Nanos;

/// What happened between two completions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// How long it was.
    pub(super) time: Nanos,
    /// Tokens committed at its end.
    pub(super) tokens: u64,
    /// The predicted rate for the requests that ran, in tokens per second.
    pub(super) predicted: f64,
}

/// A finished window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    /// Tokens per second.
    pub(super) measured: f64,
    /// Measured over predicted tokens.
    pub(super) ratio: f64,
}

/// Sums over one window.
#[derive(Clone, Debug, Default)]
pub(super) struct Judge {
    time: Nanos,
    tokens: u64,
    expected: f64,
}

impl Judge {
    /// Starts a new window.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Adds an interval; says how it went once `window` tokens were expected or written.
    pub(super) fn add(&mut self, interval: Interval, window: u64) -> Option<Verdict> {
        self.time += interval.time;
        self.tokens += interval.tokens;
        self.expected += interval.predicted * interval.time as f64 / 1e9;
        if self.expected.max(self.tokens as f64) < window as f64 {
            return None;
        }
        let measured = self.tokens as f64 * 1e9 / (self.time as f64).max(1.0);
        let ratio = if self.expected > 0.0 { self.tokens as f64 / self.expected } else { 1.0 };
        self.reset();
        Some(Verdict { measured, ratio })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_compares_what_came_with_what_was_expected() {
        let mut judge = Judge::default();
        let slow = Interval { time: 100_000_000, tokens: 40, predicted: 500.0 };
        let verdicts: Vec<_> = (0..20).filter_map(|_| judge.add(slow, 1_000)).collect();
        assert_eq!(verdicts, [Verdict { measured: 400.0, ratio: 0.8 }]);
        // Nothing comes at all: that is noticed too.
        let dead = Interval { tokens: 0, ..slow };
        assert_eq!((0..20).filter_map(|_| judge.add(dead, 1_000)).next().map(|v| v.ratio), Some(0.0));
        // Without a prediction the rate alone is measured.
        let free = Interval { predicted: 0.0, ..slow };
        let verdict = (0..25).find_map(|_| judge.add(free, 1_000)).expect("a window of tokens");
        assert_eq!(verdict, Verdict { measured: 400.0, ratio: 1.0 });
    }
}
