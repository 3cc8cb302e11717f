//! What a planner hands over: a policy, and the numbers its rules predict with.

use super::Policy;
use crate::ids::{MAX_MODELS, Nanos};
use std::fmt;

/// Step times of one model by the rows of the batch: entry `b - 1` for `b` rows, the last entry beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyTable(Vec<Nanos>);

impl LatencyTable {
    /// A table by rows; without entries, 0 for every batch.
    pub fn by_rows(entries: Vec<Nanos>) -> Self {
        Self(entries)
    }

    /// The same time for every batch.
    pub fn constant(step: Nanos) -> Self {
        Self(vec![step])
    }

    /// The step time of a batch of `rows`.
    pub fn at(&self, rows: usize) -> Nanos {
        let last = self.0.len().saturating_sub(1);
        self.0.get(rows.saturating_sub(1).min(last)).copied().unwrap_or(0)
    }
}

/// Numbers that replace the core's own running estimates. What is empty stays estimated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyInputs {
    /// L: one table per model.
    pub latency: Vec<LatencyTable>,
    /// P: the routing matrix; row `i` is where requests go after a step of model `i`.
    pub routing: Vec<Vec<f64>>,
    /// s: per model, how much longer a step takes while another model runs; at least 1.
    pub slowdown: Vec<f64>,
}

/// A policy and its inputs, installed together by [`crate::Core::set_plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// When to launch.
    pub policy: Policy,
    /// What to predict with.
    pub inputs: PolicyInputs,
}

/// Why a policy or a plan makes no sense for a core.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyError {
    /// More thresholds than models.
    Thresholds {
        /// Thresholds given.
        given: usize,
        /// Models configured.
        models: usize,
    },
    /// The weight of lookahead is not a positive number.
    Alpha(f64),
    /// Latency tables for another number of models.
    Latency {
        /// Tables given.
        given: usize,
        /// Models configured.
        models: usize,
    },
    /// Slowdowns for another number of models, or one that is below 1 or no number.
    Slowdown {
        /// Models configured.
        models: usize,
    },
    /// The routing matrix is not square over the models, or a row is not a distribution.
    Routing {
        /// Models configured.
        models: usize,
        /// The first bad row; the number of rows when that is wrong.
        row: usize,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thresholds { given, models } => {
                write!(f, "{given} thresholds are given for {models} models")
            }
            Self::Alpha(alpha) => write!(f, "alpha is {alpha}; it must be a number above 0"),
            Self::Latency { given, models } => {
                write!(f, "{given} latency tables are given for {models} models")
            }
            Self::Slowdown { models } => {
                write!(f, "{models} slowdowns are needed, one per model, each a number of at least 1")
            }
            Self::Routing { models, row } => write!(
                f,
                "row {row} of the routing matrix is wrong: {models} rows of {models} probabilities are needed, each \
                 row with the sum 1"
            ),
        }
    }
}

impl std::error::Error for PolicyError {}

impl PolicyInputs {
    /// Checks the shape for `models` models.
    pub(crate) fn check(&self, models: usize) -> Result<(), PolicyError> {
        if !self.latency.is_empty() && self.latency.len() != models {
            return Err(PolicyError::Latency { given: self.latency.len(), models });
        }
        let slow = |s: &f64| s.is_finite() && *s >= 1.0;
        if !self.slowdown.is_empty() && (self.slowdown.len() != models || !self.slowdown.iter().all(slow)) {
            return Err(PolicyError::Slowdown { models });
        }
        if self.routing.is_empty() {
            return Ok(());
        }
        if self.routing.len() != models || models > MAX_MODELS {
            return Err(PolicyError::Routing { models, row: self.routing.len() });
        }
        let good = |row: &Vec<f64>| {
            let sum: f64 = row.iter().sum();
            row.len() == models && row.iter().all(|p| (0.0..=1.0).contains(p)) && (sum - 1.0).abs() < 1e-6
        };
        match self.routing.iter().position(|row| !good(row)) {
            Some(row) => Err(PolicyError::Routing { models, row }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_table_is_read_by_rows() {
        let table = LatencyTable::by_rows(vec![10, 20, 30]);
        assert_eq!([0, 1, 2, 3, 9].map(|rows| table.at(rows)), [10, 10, 20, 30, 30]);
        assert_eq!(LatencyTable::by_rows(vec![]).at(3), 0);
    }

    #[test]
    fn inputs_that_make_no_sense_are_refused() {
        let routing = |rows: &[&[f64]]| PolicyInputs {
            routing: rows.iter().map(|r| r.to_vec()).collect(),
            ..PolicyInputs::default()
        };
        assert_eq!(PolicyInputs::default().check(3), Ok(()));
        assert_eq!(routing(&[&[0.65, 0.35], &[1.0, 0.0]]).check(2), Ok(()));
        let bad: [&[&[f64]]; 5] = [
            &[&[0.65, 0.35]],
            &[&[0.65, 0.35], &[1.0]],
            &[&[0.65, 0.34], &[1.0, 0.0]],
            &[&[1.5, -0.5], &[1.0, 0.0]],
            &[&[f64::NAN, 0.0], &[1.0, 0.0]],
        ];
        for rows in bad {
            assert!(matches!(routing(rows).check(2), Err(PolicyError::Routing { .. })), "{rows:?}");
        }
        let latency =
            PolicyInputs { latency: vec![LatencyTable::constant(5)], ..PolicyInputs::default() }.check(2);
        assert_eq!(latency, Err(PolicyError::Latency { given: 1, models: 2 }));
        for slowdown in [vec![1.5], vec![1.5, 0.9], vec![1.5, f64::NAN]] {
            let inputs = PolicyInputs { slowdown, ..PolicyInputs::default() };
            assert_eq!(inputs.check(2), Err(PolicyError::Slowdown { models: 2 }));
        }
    }
}
