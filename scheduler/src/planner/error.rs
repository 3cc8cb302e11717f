//! What the throughput model refuses, with the offending value.

use std::fmt;

/// A refusal of the throughput model. Indices are those of the models.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanError {
    /// No models, or no requests.
    Empty,
    /// A matrix or list whose size does not fit the number of models: what, size found, size needed.
    Shape {
        /// Which input.
        what: &'static str,
        /// The size found.
        found: usize,
        /// The size needed.
        needed: usize,
    },
    /// An entry of the routing matrix that is no probability.
    Probability {
        /// Row of P.
        from: usize,
        /// Column of P.
        to: usize,
        /// The entry.
        value: f64,
    },
    /// A row of the routing matrix that does not sum to one (within 1e-9; measured shares within 1e-6).
    RowSum {
        /// Row of P.
        from: usize,
        /// Its sum.
        sum: f64,
    },
    /// An entry of the commit matrix that is negative or not finite.
    Commit {
        /// Row of C.
        from: usize,
        /// Column of C.
        to: usize,
        /// The entry.
        value: f64,
    },
    /// A step that takes no time.
    ZeroStep {
        /// Which model.
        model: usize,
        /// At which batch size.
        batch: usize,
    },
    /// A duration in milliseconds (latency or quantum) that is not positive and finite.
    Duration {
        /// Which input.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// An entry model that does not exist.
    Entry {
        /// The index given.
        model: usize,
        /// How many models there are.
        models: usize,
    },
    /// A threshold outside 1..=N.
    Threshold {
        /// Which model.
        model: usize,
        /// The threshold.
        value: u32,
        /// N.
        requests: u32,
    },
    /// Thresholds under which every model may wait for ever: `sum(B_i - 1) >= N` (Eq. 22).
    Infeasible {
        /// The thresholds.
        thresholds: Vec<u32>,
        /// N.
        requests: u32,
    },
    /// A parameter of a launch rule (alpha, slowdown, H, K) out of range.
    Parameter {
        /// Its name.
        name: &'static str,
        /// The value.
        value: f64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A rule that exists for two models only.
    TwoModelsOnly {
        /// Which rule.
        rule: &'static str,
        /// How many models there are.
        models: usize,
    },
    /// More than one closed class: the long-run rate depends on chance (Eq. 16 has several solutions).
    SeveralClosedClasses {
        /// How many.
        classes: usize,
    },
    /// The chain is larger than the caller allows.
    TooManyStates {
        /// The limit.
        limit: usize,
    },
    /// More threshold vectors than the caller allows.
    TooManyVectors {
        /// How many feasible vectors there are.
        vectors: usize,
        /// The limit.
        limit: usize,
    },
    /// No token is ever committed, so that no threshold is better than another.
    NothingCommitted,
    /// The iteration did not settle, and the chain is too large for a direct solution.
    NotConverged {
        /// States of the closed class.
        states: usize,
        /// Estimated error of the stationary vector (sum of absolute differences).
        error: f64,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "at least one model and one request are needed"),
            Self::Shape { what, found, needed } => {
                write!(f, "{what} has {found} entries; {needed} are needed")
            }
            Self::Probability { from, to, value } => {
                write!(f, "routing probability P[{from}][{to}] is {value}; it must lie in 0..=1")
            }
            Self::RowSum { from, sum } => {
                write!(f, "row {from} of the routing matrix sums to {sum}, not to 1")
            }
            Self::Commit { from, to, value } => {
                write!(f, "commit count C[{from}][{to}] is {value}; it must be 0 or more")
            }
            Self::ZeroStep { model, batch } => {
                write!(f, "a step of model {model} with {batch} requests takes no time")
            }
            Self::Duration { what, value } => write!(f, "{what} is {value} ms; it must be positive"),
            Self::Entry { model, models } => write!(f, "entry model {model} of {models} does not exist"),
            Self::Threshold { model, value, requests } => {
                write!(f, "threshold {value} of model {model} is outside 1..={requests}")
            }
            Self::Infeasible { thresholds, requests } => write!(
                f,
                "thresholds {thresholds:?} can wait for ever with {requests} requests: sum(B_i - 1) must be below \
                 {requests}"
            ),
            Self::Parameter { name, value, allowed } => write!(f, "{name} is {value}; it must be {allowed}"),
            Self::TwoModelsOnly { rule, models } => {
                write!(f, "the rule {rule} is for two models; there are {models}")
            }
            Self::SeveralClosedClasses { classes } => write!(
                f,
                "the routing has {classes} closed classes: where the requests end is chance, and no long-run rate exists"
            ),
            Self::TooManyStates { limit } => write!(f, "the chain has more than {limit} states"),
            Self::TooManyVectors { vectors, limit } => {
                write!(f, "there are {vectors} feasible threshold vectors; the limit is {limit}")
            }
            Self::NothingCommitted => write!(f, "no routing outcome that happens commits a token"),
            Self::NotConverged { states, error } => {
                write!(f, "the stationary vector of {states} states did not settle (error about {error:.1e})")
            }
        }
    }
}

impl std::error::Error for PlanError {}
