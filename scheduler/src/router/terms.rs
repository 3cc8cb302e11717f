//! On what terms a request is routed: its threshold, where that came from, and its budget. Fixed at submit and
//! reported with the answer, so that a request replays exactly from (seed, threshold, budget).

use super::threshold::Threshold;
use std::fmt;

/// Where a threshold came from, from the strongest to the weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request.
    Request,
    /// Online calibration, when the request was submitted.
    Calibrated,
    /// The configuration of the route.
    Config,
    /// The router file.
    File,
    /// The algorithm's published value (only R-Stitch has one: it needs no training).
    Published,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "the request",
            Self::Calibrated => "online calibration",
            Self::Config => "the configuration",
            Self::File => "the router file",
            Self::Published => "the algorithm's published value",
        })
    }
}

const MILLION: u64 = 1_000_000;

/// The most that models other than the router's entry may write, as a share of the committed tokens of a request.
///
/// With `l` tokens by others among the first `c` tokens of the answer, `l <= share * c` holds for **every** `c`, not
/// only at the end. So the first token by another model is at the earliest number `ceil(1 / share)`, and a share below
/// 1 never lets another model write the first token. Counted in whole millionths, so that no rounding of a float
/// decides about a token: shares are rounded to the nearest millionth, and 1/3 means 333333 of 1000000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget(u32);

impl Budget {
    /// The share that never binds.
    pub const WHOLE: Self = Self(MILLION as u32);

    /// A share from 0 to 1; `None` outside.
    pub fn new(share: f32) -> Option<Self> {
        (0.0..=1.0).contains(&share).then(|| Self((f64::from(share) * MILLION as f64).round() as u32))
    }

    /// The share; [`Budget::new`] of it gives the same budget.
    pub fn share(self) -> f32 {
        (f64::from(self.0) / MILLION as f64) as f32
    }

    /// In millionths.
    pub(crate) fn millionths(self) -> u64 {
        u64::from(self.0)
    }

    /// From millionths, at most the whole.
    pub(crate) fn from_millionths(millionths: u64) -> Self {
        Self(millionths.min(MILLION) as u32)
    }

    /// Whether the next token may come from another model, after `committed` tokens of which `others` did.
    pub fn allows(self, others: u64, committed: u32) -> bool {
        (others + 1) * MILLION <= self.millionths() * (u64::from(committed) + 1)
    }

    /// Whether any further token may come from another model in an answer of at most `max_new_tokens`.
    pub fn is_open(self, others: u64, max_new_tokens: u32) -> bool {
        (others + 1) * MILLION <= self.millionths() * u64::from(max_new_tokens)
    }

    /// The tighter of two budgets, if there is one.
    pub fn tighter(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }
}

/// What a request is routed by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// The threshold and where it came from; none for a router without one.
    pub threshold: Option<(Threshold, Source)>,
    /// The most that models other than the entry may write.
    pub budget: Option<Budget>,
}

impl fmt::Display for Terms {
    /// For a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threshold {
            Some((threshold, source)) => write!(f, "threshold {threshold} from {source}")?,
            None => f.write_str("no threshold")?,
        }
        match self.budget {
            Some(budget) => write!(f, ", at most {} of the tokens by other models", budget.share()),
            None => Ok(()),
        }
    }
}

/// What a route learns while it serves; both off unless asked for. Both act only at submit, through [`Terms`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Online {
    /// Choose the threshold of new requests so that models other than the entry write this share of the tokens.
    pub target_share: Option<f32>,
    /// The most that models other than the entry may write over all requests of the route.
    pub deployment: Option<Budget>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_exact_and_survive_their_report() {
        for millionths in [0, 1, 3, 99_999, 100_000, 333_333, 700_000, 999_999, 1_000_000] {
            let budget = Budget::from_millionths(millionths);
            assert_eq!(Budget::new(budget.share()), Some(budget));
        }
        for bad in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
            assert_eq!(Budget::new(bad), None);
        }
        // In floats 0.7 * 10 is below 7 when 0.7 has 24 bits.
        assert!(Budget::new(0.7).unwrap().allows(6, 9) && !Budget::new(0.7).unwrap().allows(7, 9));
        assert!(Budget::new(0.1).unwrap().allows(0, 9) && !Budget::new(0.1).unwrap().allows(0, 8));
        assert!(Budget::WHOLE.allows(5, 5) && Budget::WHOLE.allows(0, 0));
        assert!(!Budget::new(0.0).unwrap().allows(0, u32::MAX));
    }

    #[test]
    fn a_budget_is_open_while_a_later_token_may_come_from_elsewhere() {
        let budget = Budget::new(0.25).unwrap();
        for max in 0..40u32 {
            for others in 0..12 {
                let some = (0..max).any(|committed| budget.allows(others, committed));
                assert_eq!(budget.is_open(others, max), some, "{others} of {max}");
            }
        }
    }

    #[test]
    fn terms_say_which_threshold_won() {
        let terms =
            Terms { threshold: Some((Threshold::Value(0.4), Source::File)), budget: Budget::new(0.1) };
        let text = terms.to_string();
        assert!(text.contains("0.4 from the router file") && text.contains("0.1 of the tokens"), "{text}");
        assert_eq!(Terms::default().to_string(), "no threshold");
    }
}
