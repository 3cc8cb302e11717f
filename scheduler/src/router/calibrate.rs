//! From scores and a wanted share to a threshold.

use super::{Direction, Threshold};
use std::fmt;

/// Why no threshold can be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CalibrateError {
    /// There are no scores.
    NoScores,
    /// The share is no number from 0 to 1.
    Share(f64),
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScores => f.write_str("there are no scores to choose a threshold by"),
            Self::Share(share) => write!(f, "the share is {share}, but must be a number from 0 to 1"),
        }
    }
}

impl std::error::Error for CalibrateError {}

/// The threshold at which the largest part of `scores`, but not more than `target_share` of them, asks for the large
/// model; in the middle between the last score that asks and the first that does not. For a router that returns after
/// one token the scores of the entry model at every position make this the share of tokens by the large model.
///
/// A share of 0 gives `Never`, one that takes all scores `Always`. Scores that are not numbers ask at every threshold
/// but `Never` and count first. Equal scores stand or fall together, so that the share that is reached may be smaller;
/// when it would be 0, the threshold is just beyond the extreme score.
pub fn calibrate(
    scores: &[f32],
    target_share: f64,
    direction: Direction,
) -> Result<Threshold, CalibrateError> {
    if !(0.0..=1.0).contains(&target_share) {
        return Err(CalibrateError::Share(target_share));
    }
    if scores.is_empty() {
        return Err(CalibrateError::NoScores);
    }
    if target_share == 0.0 {
        return Ok(Threshold::Never);
    }
    // A share such as 0.3 of 10 must not become 2 by its last bit.
    let wanted = (target_share * scores.len() as f64 + 1e-9) as usize;
    if wanted >= scores.len() {
        return Ok(Threshold::Always);
    }
    let mut numbers: Vec<f32> = scores.iter().copied().filter(|score| !score.is_nan()).collect();
    let wanted = wanted.saturating_sub(scores.len() - numbers.len());
    // The most eager first.
    numbers.sort_by(|a, b| if direction == Direction::Below { a.total_cmp(b) } else { b.total_cmp(a) });
    let Some(&quiet) = numbers.get(wanted) else { return Ok(Threshold::Never) };
    let asks = numbers[..wanted].iter().rev().copied().find(|&score| score != quiet);
    Ok(Threshold::Value(between(quiet, asks, direction)))
}

/// A threshold at which `asks` asks and `quiet` does not.
fn between(quiet: f32, asks: Option<f32>, direction: Direction) -> f32 {
    let middle = asks.map(|asks| quiet + (asks - quiet) / 2.0);
    match direction {
        // quiet < threshold <= asks
        Direction::AtLeast => middle.filter(|&m| m > quiet).or(asks).unwrap_or(quiet.next_up()),
        // asks < threshold <= quiet
        Direction::Below => middle.filter(|&m| asks.is_some_and(|asks| asks < m)).unwrap_or(quiet),
        // quiet <= threshold < asks
        Direction::Above => middle.filter(|&m| asks.is_some_and(|asks| m < asks)).unwrap_or(quiet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    const DIRECTIONS: [Direction; 3] = [Direction::AtLeast, Direction::Below, Direction::Above];

    fn share(scores: &[f32], threshold: Threshold, direction: Direction) -> f64 {
        scores.iter().filter(|&&s| direction.asks(s, threshold)).count() as f64 / scores.len() as f64
    }

    #[test]
    fn the_share_is_reached_and_never_passed() {
        let mut random = Random::new(3);
        for n in [1, 2, 10, 97, 500] {
            let scores: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
            for direction in DIRECTIONS {
                for percent in 0..=100 {
                    let target = f64::from(percent) / 100.0;
                    let threshold = calibrate(&scores, target, direction).unwrap();
                    let reached = share(&scores, threshold, direction);
                    let missing = target - reached;
                    assert!(
                        (-1e-9..1.0 / f64::from(n) + 1e-9).contains(&missing),
                        "{n} {direction} {target}"
                    );
                }
            }
        }
    }

    #[test]
    fn equal_scores_stand_together_and_a_missing_number_asks_first() {
        let scores = [0.2, 0.8, 0.8, 0.8, 0.9];
        for (target, reached) in [(0.2, 0.2), (0.4, 0.2), (0.79, 0.2), (0.8, 0.8)] {
            let threshold = calibrate(&scores, target, Direction::AtLeast).unwrap();
            assert_eq!(share(&scores, threshold, Direction::AtLeast), reached, "{target}: {threshold}");
        }
        for direction in DIRECTIONS {
            let same = calibrate(&[0.5; 4], 0.5, direction).unwrap();
            assert_eq!(share(&[0.5; 4], same, direction), 0.0, "{direction}");
            let broken = [f32::NAN, f32::NAN, 0.1, 0.9];
            for (target, reached) in [(0.25, 0.5), (0.5, 0.5), (0.75, 0.75), (1.0, 1.0)] {
                let threshold = calibrate(&broken, target, direction).unwrap();
                assert_eq!(share(&broken, threshold, direction), reached, "{direction} {target}");
            }
        }
    }

    #[test]
    fn ends_are_words_and_nonsense_is_refused() {
        for direction in DIRECTIONS {
            assert_eq!(calibrate(&[0.3, 0.4], 0.0, direction), Ok(Threshold::Never));
            assert_eq!(calibrate(&[0.3, 0.4], 1.0, direction), Ok(Threshold::Always));
            assert_eq!(calibrate(&[], 0.5, direction), Err(CalibrateError::NoScores));
            for bad in [-0.1, 1.1, f64::NAN] {
                let error = calibrate(&[0.3], bad, direction).unwrap_err().to_string();
                assert!(error.contains("from 0 to 1"), "{error}");
            }
        }
    }
}
