//! Models that never run beside each other: those whose steps meet on several devices at once, where two of them in
//! another order on one device would wait for each other for ever.

use super::Core;
use crate::ids::{ModelId, ModelSet};
use crate::policy::Decision;

impl Core {
    /// Never has batches of two models of one of `sets` in flight, whatever the policy wants; the guard time of a model
    /// does not run while another of its set does. To be said before the first request.
    #[must_use]
    pub fn exclusive(mut self, sets: &[ModelSet]) -> Self {
        for set in sets {
            for model in set.iter().filter(|m| m.index() < self.subservers.len()) {
                self.apart[model.index()] = self.apart[model.index()].union(set.without(ModelSet::of(model)));
                // Taking turns is as fast as running at once with shares of the device, which is how plans count it.
                self.estimates.set_apart(model, set.len());
            }
        }
        self
    }

    /// The models with a batch in flight.
    pub(super) fn busy(&self) -> ModelSet {
        self.subservers.iter().filter(|sub| sub.is_busy()).map(|sub| sub.model).collect()
    }

    /// Whether one of `running` keeps `model` from launching.
    pub(super) fn is_blocked(&self, model: ModelId, running: ModelSet) -> bool {
        !self.apart[model.index()].intersection(running).is_empty()
    }

    /// What launches: of models that exclude each other the one whose guard time is over, else the one that has waited
    /// longest for its turn.
    pub(super) fn one_of_each(&self, decision: Decision) -> ModelSet {
        let mut chosen = ModelSet::EMPTY;
        let mut left = decision.launch;
        let rank = |model: &ModelId| {
            (!decision.forced.contains(*model), self.subservers[model.index()].last_launch(), model.index())
        };
        while let Some(model) = left.iter().min_by_key(rank) {
            left = left.without(ModelSet::of(model));
            if !self.is_blocked(model, chosen) {
                chosen.insert(model);
            }
        }
        chosen
    }
}
