//! Running estimates from the steps themselves: how long a step of so many fed tokens takes alone (L) and beside
//! other models (s), where a model's requests go (P), and what they commit (C).
//!
//! Plain arithmetic on what the core has seen, so equal events give equal estimates.

mod moves;
mod overlap;
mod steps;

use crate::ids::{ModelId, Nanos};
use crate::measured::Measured;
use crate::sharing::{Parts, Sharing};
use moves::Moves;
pub(crate) use overlap::{Overlap, Spent};
use steps::StepTimes;

/// The estimates of every model.
#[derive(Clone, Debug)]
pub(crate) struct Estimates {
    models: Vec<(StepTimes, Moves)>,
    /// How much of their slowdown steps suffer and cause.
    sharing: Vec<Sharing>,
    /// Routing decisions with a choice.
    decisions: u64,
    /// The last decision at which some estimate was found to have changed.
    changed: Option<u64>,
}

impl Estimates {
    pub(crate) fn new(models: usize) -> Self {
        let sharing = vec![Sharing::default(); models];
        Self { models: vec![(StepTimes::new(), Moves::new()); models], sharing, decisions: 0, changed: None }
    }

    /// Begins with what was measured of a model.
    pub(crate) fn seed(&mut self, model: ModelId, measured: &Measured) {
        self.models[model.index()].0.seed(measured);
        self.sharing[model.index()] = measured.sharing.clone();
    }

    /// How much of its slowdown a step of `fed` tokens suffers and causes.
    pub(crate) fn parts(&self, model: ModelId, fed: usize) -> Parts {
        self.sharing[model.index()].parts(fed)
    }

    /// The same by rows, 1 to `most`; none where all steps are alike, as those of a model that takes turns.
    pub(crate) fn parts_by_rows(&self, model: ModelId, most: usize) -> Vec<Parts> {
        if self.sharing[model.index()].is_empty() || self.steps(model).takes_turns() {
            return Vec::new();
        }
        let fed = |rows: usize| (self.steps(model).fed_per_row() * rows as f64).round() as usize;
        (1..=most.max(1)).map(|rows| self.parts(model, fed(rows))).collect()
    }

    /// A step of `rows` rows and `fed` tokens, `prompt` of them of prompts, took `spent`.
    pub(crate) fn add_step(&mut self, model: ModelId, rows: usize, fed: usize, prompt: usize, spent: Spent) {
        if self.models[model.index()].0.add(rows, fed, prompt, spent) {
            self.changed = Some(self.decisions);
        }
        self.share_losses();
    }

    /// A step of `fed` tokens has been in flight for `spent`.
    pub(crate) fn note_running(&mut self, model: ModelId, fed: usize, spent: Spent) {
        if self.models[model.index()].0.note_running(fed, spent) {
            self.changed = Some(self.decisions);
        }
    }

    /// Tells every model what the others lose beside others, each by how much it knows.
    fn share_losses(&mut self) {
        let known = |(steps, _): &(StepTimes, Moves)| (steps.knowledge(), steps.knowledge() * steps.loss());
        let (total, sum) = self.models.iter().map(known).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        for (steps, _) in &mut self.models {
            let (own, own_sum) = (steps.knowledge(), steps.knowledge() * steps.loss());
            steps.set_prior(((sum - own_sum) / (total - own + 1.0)).max(0.0));
        }
    }

    /// A request that had the choice went from `from` to `to` (which may be the same) with its candidate committed,
    /// or dropped.
    pub(crate) fn add_move(&mut self, from: ModelId, to: ModelId, committed: bool) {
        self.decisions += 1;
        if self.models[from.index()].1.add(to, committed) {
            self.changed = Some(self.decisions);
        }
    }

    /// Routing decisions with a choice so far.
    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// The last decision at which some estimate was found to have changed.
    pub(crate) fn changed(&self) -> Option<u64> {
        self.changed
    }

    /// The steps of a model.
    pub(crate) fn steps(&self, model: ModelId) -> &StepTimes {
        &self.models[model.index()].0
    }

    /// A model never runs beside `models - 1` others.
    pub(crate) fn set_apart(&mut self, model: ModelId, models: usize) {
        self.models[model.index()].0.set_turns(models);
    }

    /// The routing of a model's requests.
    pub(crate) fn moves(&self, model: ModelId) -> &Moves {
        &self.models[model.index()].1
    }

    /// The time of a step of `fed` tokens alone; none before the first step.
    pub(crate) fn latency(&self, model: ModelId, fed: usize) -> Option<Nanos> {
        self.steps(model).latency(fed)
    }

    /// The share of the requests of `from` that go to `to`; 0 before the first decision.
    pub(crate) fn share(&self, from: ModelId, to: ModelId) -> f64 {
        self.moves(from).share(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large steps that share little do not teach that small ones share as little: the slowdown stays what was measured. Known
    /// without parts, it is forgotten.
    #[test]
    fn large_steps_do_not_unteach_the_slowdown_of_small_ones() {
        let slowdown = |own: Vec<(usize, f64)>| {
            let sharing = Sharing { own, imposed: Vec::new() };
            let steps = vec![(1, 1_000_000), (16, 4_000_000)];
            let mut estimates = Estimates::new(2);
            for model in [ModelId(0), ModelId(1)] {
                let sharing = sharing.clone();
                let measured =
                    Measured { steps: steps.clone(), slowdown: 2.0, sharing, ..Measured::default() };
                estimates.seed(model, &measured);
            }
            let (small, large, mut now) = (ModelId(0), ModelId(1), 0);
            for i in 0..600 {
                // A step of sixteen tokens, of which a part is beside another one that costs it nothing.
                let mut overlap = Overlap::default();
                overlap.start(small, estimates.parts(small, 16), now);
                overlap.start(large, estimates.parts(large, 16), now + 500_000 * (i % 8));
                now += 4_000_000;
                let spent = overlap.end(small, now);
                estimates.add_step(small, 16, 16, 0, spent);
            }
            estimates.steps(small).slowdown()
        };
        let (with, without) = (slowdown(vec![(1, 1.0), (16, 0.0)]), slowdown(Vec::new()));
        assert!(with > 1.9 && without < 1.2, "{with} {without}");
    }
}
