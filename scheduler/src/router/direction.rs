//! Which side of a threshold asks for the other model, and what a router compares with it.

use super::threshold::{Threshold, ThresholdError};
use crate::event::Signals;
use std::fmt;
use std::str::FromStr;

/// How a router compares what it measures with its threshold to ask the large model. The published algorithms differ
/// in direction and in what they do at equality, and a file or a calibration that has it the other way round would
/// route the opposite tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `>=`: R2R; query-level routing.
    AtLeast,
    /// `<`: CITER, whose score is the chance that the small model is good enough.
    Below,
    /// `>`: Co-LLM; R-Stitch (whose peer returns at `<=`).
    Above,
}

impl Direction {
    /// Whether `value` asks for the large model. A value that is not a number is uncertain and asks for it.
    pub fn asks(self, value: f32, threshold: Threshold) -> bool {
        let threshold = match threshold {
            Threshold::Always => return true,
            Threshold::Never => return false,
            Threshold::Value(threshold) => threshold,
        };
        value.is_nan()
            || match self {
                Self::AtLeast => value >= threshold,
                Self::Below => value < threshold,
                Self::Above => value > threshold,
            }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => ">=",
            Self::Below => "<",
            Self::Above => ">",
        })
    }
}

impl FromStr for Direction {
    type Err = ThresholdError;

    /// Accepts `>=`, `<` and `>`, as router files write it.
    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        match text {
            ">=" => Ok(Self::AtLeast),
            "<" => Ok(Self::Below),
            ">" => Ok(Self::Above),
            _ => Err(ThresholdError::direction(text)),
        }
    }
}

/// What of a step a router compares with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// `scores[head]`.
    Score(u8),
    /// `entropy_norm`.
    EntropyNorm,
}

/// The whole comparison of a router, for those who choose its threshold. The measure lies in `[0, 1]`, and so do the
/// thresholds that make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// What is compared.
    pub measure: Measure,
    /// How.
    pub direction: Direction,
    /// Whether the peer compares too, and keeps the request while it asks; else it returns after one token.
    pub peer_stays: bool,
    /// Whether only the first candidate of an answer is compared, for all of it, and the request never moves again.
    pub once: bool,
}

impl Gauge {
    /// Whether a candidate behind `generated` tokens of an answer is compared.
    pub fn compares(&self, generated: u32) -> bool {
        !self.once || generated == 0
    }

    /// The measure of a row. NaN for a head that does not exist: uncertain.
    pub fn read(&self, signals: &Signals) -> f32 {
        match self.measure {
            Measure::Score(head) => signals.scores.get(usize::from(head)).copied().unwrap_or(f32::NAN),
            Measure::EntropyNorm => signals.entropy_norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_exactly_the_published_ones() {
        let half = Threshold::Value(0.5);
        let (below, above) = (0.5f32.next_down(), 0.5f32.next_up());
        let asked = |d: Direction| [below, 0.5, above, f32::NAN].map(|v| d.asks(v, half));
        assert_eq!(asked(Direction::AtLeast), [false, true, true, true]);
        assert_eq!(asked(Direction::Below), [true, false, false, true]);
        assert_eq!(asked(Direction::Above), [false, false, true, true]);
        for direction in [Direction::AtLeast, Direction::Below, Direction::Above] {
            for value in [0.0, 0.5, 1.0, f32::NAN] {
                assert!(direction.asks(value, Threshold::Always) && !direction.asks(value, Threshold::Never));
            }
            assert_eq!(direction.to_string().parse(), Ok(direction));
        }
        assert!("<=".parse::<Direction>().unwrap_err().to_string().contains("`<=`"));
    }

    #[test]
    fn a_gauge_reads_its_own_head() {
        let signals = Signals { scores: [0.1, 0.2, 0.3, 0.4], entropy_norm: 0.5, ..Signals::default() };
        let read = |measure| {
            Gauge { measure, direction: Direction::Above, peer_stays: false, once: false }.read(&signals)
        };
        assert_eq!([0, 1, 2, 3].map(|head| read(Measure::Score(head))), [0.1, 0.2, 0.3, 0.4]);
        assert!(read(Measure::Score(4)).is_nan());
        assert_eq!(read(Measure::EntropyNorm), 0.5);
    }
}
