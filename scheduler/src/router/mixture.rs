//! `me`, the mixture-model-like ensemble: every token is written by a model drawn at fixed weights.
//!
//! The draw for a position depends on (seed, choice, position) alone, not on content or history, so over seeds the
//! next token follows `sum_i w_i p_i` (algorithms 6.1). Every candidate is kept. The published code draws before every
//! token; TokenRouter's paper starts every request at a fixed entry model. `draw_at_admission` chooses.

use super::{EntryRow, PURPOSE_ROUTE, ReachRow, RouteRow, Router, SignalSet, StepView, Threshold, draw};
use crate::ids::{MAX_MODELS, ModelId, ModelSet};

/// Weighted draws over two models or more.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    entry: ModelId,
    /// The models with a weight.
    drawn: ModelSet,
    /// Normalised; zero for models that take no part.
    weights: [f64; MAX_MODELS],
    draw_at_admission: bool,
}

/// Why weights are no mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsError {
    /// More of them than models are possible.
    TooMany,
    /// One is negative or not a finite number.
    NotAWeight,
    /// Fewer than two are above zero.
    TooFew,
}

impl std::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooMany => "a weight for each of at most 8 models",
            Self::NotAWeight => "finite numbers of at least 0",
            Self::TooFew => "at least two weights above 0",
        })
    }
}

impl std::error::Error for WeightsError {}

impl Mixture {
    /// Weight `i` is that of model `i`; they need not sum to 1. Without `draw_at_admission` the entry model writes the
    /// first token whatever its weight.
    pub fn new(entry: ModelId, weights: &[f64], draw_at_admission: bool) -> Result<Self, WeightsError> {
        if weights.len() > MAX_MODELS {
            return Err(WeightsError::TooMany);
        }
        let sum: f64 = weights.iter().sum();
        if !sum.is_finite() || weights.iter().any(|&w| !(0.0..).contains(&w)) {
            return Err(WeightsError::NotAWeight);
        }
        if weights.iter().filter(|&&w| w > 0.0).count() < 2 {
            return Err(WeightsError::TooFew);
        }
        let mut normal = [0.0; MAX_MODELS];
        normal.iter_mut().zip(weights).for_each(|(to, w)| *to = w / sum);
        let takes_part = |&(_, &w): &(usize, &f64)| w > 0.0;
        let drawn = normal.iter().enumerate().filter(takes_part).map(|(i, _)| ModelId(i as u8)).collect();
        Ok(Self { entry, drawn, weights: normal, draw_at_admission })
    }

    /// Who writes `position`. `Never` leaves it to the entry model, `Always` to the others by their weights; numbers are
    /// not accepted.
    fn writer(&self, seed: u64, choice: u32, position: u32, threshold: Option<Threshold>) -> ModelId {
        let mut weights = self.weights;
        match threshold {
            Some(Threshold::Never) => return self.entry,
            Some(Threshold::Always) => {
                if let Some(own) = weights.get_mut(self.entry.index()) {
                    *own = 0.0;
                }
            }
            _ => {}
        }
        let total: f64 = weights.iter().sum();
        let mut left = draw(seed, choice, position, PURPOSE_ROUTE, self.entry) * total;
        let mut writer = self.entry;
        for (i, &weight) in weights.iter().enumerate().filter(|&(_, &w)| w > 0.0) {
            // The last one stands when rounding leaves a rest.
            writer = ModelId(i as u8);
            if left < weight {
                break;
            }
            left -= weight;
        }
        writer
    }

    fn next(&self, row: &RouteRow) -> ModelId {
        self.writer(row.seed, row.choice, row.position.saturating_add(1), row.threshold)
    }
}

impl Router for Mixture {
    fn name(&self) -> &str {
        "me"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        let drawn = || self.writer(row.seed, row.choice, row.position, row.threshold);
        Some(if self.draw_at_admission { drawn() } else { self.entry })
    }

    fn reach(&self) -> ModelSet {
        self.drawn.union(ModelSet::of(self.entry))
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let entry = ModelSet::of(self.entry);
        match row.threshold {
            Some(Threshold::Never) => entry,
            Some(Threshold::Always) => self.drawn.without(entry),
            _ => self.drawn,
        }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            *to = self.next(row);
        }
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        !matches!(threshold, Threshold::Value(_))
    }
}
