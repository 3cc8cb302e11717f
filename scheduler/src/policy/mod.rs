//! When to launch: a pure function of a small view of the system.
//!
//! A decision is made when something has changed (a batch ended, a request was admitted or is over) and never
//! between: arrivals happen only then, so a launch in between is dominated by one before (scheduling study, F2).

mod plan;
mod rules;
mod spec;
mod table;
mod view;

use crate::ids::ModelSet;
use rules::select;

pub use plan::{LatencyTable, Plan, PolicyError, PolicyInputs};
pub use spec::{PolicySpec, SpecError};
pub use table::{CountTable, Thresholds};
pub use view::ModelView;

/// The launch rule. Every launch takes the whole queue, up to the limits of a step.
///
/// The base is the model with the shortest step (the first one while that is unknown): the small model of a pair.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Rounds: every model with work launches, and the next round starts when all have ended.
    StepSync,
    /// One model at a time: another than the base when its queue has reached K, or the base has nothing to do.
    /// K = 1 is the paper's Model-Sync.
    Exclusive(Thresholds),
    /// Launch whatever is ready on an idle model.
    Eager,
    /// Launch when the queue has reached the threshold: the paper's delayed batching.
    Threshold(Thresholds),
    /// As `Threshold`; the base also waits for a batch that is about to bring it enough (the hold rule), and starts
    /// beside a peer that runs or is about to launch only with at least `beside` (H) ready requests.
    Hold {
        /// B.
        thresholds: Thresholds,
        /// H; 1 is the plain hold rule.
        beside: CountTable,
    },
    /// No thresholds: each model waits only for a batch that is worth waiting for.
    Lookahead {
        /// Weight of the expected arrivals against the waiters; 1 is neutral.
        alpha: f64,
    },
}

impl Default for Policy {
    /// Lookahead, which needs no plan: never worse than eager in the study's settings and mostly better than the
    /// best threshold.
    fn default() -> Self {
        Self::Lookahead { alpha: 1.0 }
    }
}

impl Policy {
    /// Whether the rule predicts: then the views need `ends_in` and `sends`.
    pub(crate) fn predicts(&self) -> bool {
        matches!(self, Self::Hold { .. } | Self::Lookahead { .. })
    }

    /// Checks the parameters for `models` models.
    pub(crate) fn check(&self, models: usize) -> Result<(), PolicyError> {
        match self {
            Self::Exclusive(t) | Self::Threshold(t) | Self::Hold { thresholds: t, .. }
                if t.models() > models.max(1) =>
            {
                Err(PolicyError::Thresholds { given: t.models(), models })
            }
            Self::Lookahead { alpha } if !(alpha.is_finite() && *alpha > 0.0) => {
                Err(PolicyError::Alpha(*alpha))
            }
            _ => Ok(()),
        }
    }
}

/// Which models launch now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// All of them.
    pub launch: ModelSet,
    /// Those that launch only because the guard time has passed.
    pub forced: ModelSet,
}

/// Decides for all models at once; `models[i]` is model `i`.
pub fn decide(policy: &Policy, models: &[ModelView]) -> Decision {
    let wanted = match policy {
        Policy::StepSync => rules::step_sync(models),
        Policy::Exclusive(k) => rules::exclusive(k, models),
        Policy::Eager => select(models, |_, m| m.launchable()),
        Policy::Threshold(b) => rules::delayed(b, false, &CountTable::by_count(Vec::new()), models),
        Policy::Hold { thresholds, beside } => rules::delayed(thresholds, true, beside, models),
        Policy::Lookahead { alpha } => rules::lookahead(*alpha, models),
    };
    keep_alive(wanted, models)
}

/// Liveness, whatever the policy wants: a model past the guard launches, and if nothing would run, everything that
/// can launch does.
fn keep_alive(wanted: ModelSet, models: &[ModelView]) -> Decision {
    let overdue = select(models, |_, m| m.launchable() && m.overdue);
    let launch = wanted.union(overdue);
    if launch.is_empty() && !models.iter().any(|m| m.busy) {
        return Decision { launch: select(models, |_, m| m.launchable()), forced: ModelSet::EMPTY };
    }
    Decision { launch, forced: overdue.without(wanted) }
}

#[cfg(test)]
mod tests;
