//! What a router would have compared with its threshold, over the small model's own answers.

use std::sync::{Arc, Mutex, PoisonError};

use tokenrouter_scheduler::router::{Gauge, Measure, Registry, Router, SignalSet, StepView};
use tokenrouter_scheduler::{ModelId, ModelSet};

/// The probe's name in its registry.
pub(super) const NAME: &str = "probe";

/// Where the probe notes what it sees.
pub(super) type Scores = Arc<Mutex<Vec<f32>>>;

/// Stays at the entry model and notes the measure of every row that is compared.
struct Probe {
    entry: ModelId,
    gauge: Gauge,
    scores: Scores,
}

impl Router for Probe {
    fn name(&self) -> &str {
        NAME
    }

    fn signals(&self) -> SignalSet {
        match self.gauge.measure {
            Measure::Score(head) => SignalSet::score(usize::from(head)),
            Measure::EntropyNorm => SignalSet::ENTROPY,
        }
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry)
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        // A panic elsewhere leaves a vector of whole numbers.
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        let compared = step.rows.iter().filter(|row| self.gauge.compares(row.generated));
        scores.extend(compared.map(|row| self.gauge.read(&row.signals)));
        to.fill(self.entry);
    }
}

/// A registry with the probe beside the built-in routers, and where it notes what it sees.
///
/// # Errors
/// When its name is taken.
pub(super) fn registry(gauge: Gauge) -> Result<(Registry, Scores), String> {
    let scores = Scores::default();
    let noted = scores.clone();
    let mut registry = Registry::builtin();
    registry
        .register(NAME, move |params| {
            Ok(Box::new(Probe { entry: params.spec().entry, gauge, scores: noted.clone() }))
        })
        .map_err(|e| e.to_string())?;
    Ok((registry, scores))
}
