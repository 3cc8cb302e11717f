//! The watch over steps in flight and over models that can take none: what is lost, and what has come back.

use tokenrouter_scheduler::{MAX_MODELS, ModelId, Nanos};

use super::{RankLoop, Running};
use crate::faults::{COLD, FaultOptions};
use crate::status::ModelState;

/// What is known about every model.
pub(super) struct Watch {
    options: FaultOptions,
    models: [Watched; MAX_MODELS],
}

#[derive(Clone, Copy, Default)]
struct Watched {
    /// When the step in flight counts as stalled; none when there is none, or it does already.
    stalls_at: Option<Nanos>,
    /// When its model counts as lost.
    lost_at: Option<Nanos>,
    /// It has ended a step.
    warm: bool,
    /// It never comes back.
    gone: bool,
}

impl Watch {
    pub(super) fn new(options: FaultOptions) -> Self {
        Self { options, models: [Watched::default(); MAX_MODELS] }
    }

    /// A step that feeds so many tokens was launched.
    pub(super) fn launched(&mut self, model: ModelId, fed: usize, now: Nanos) {
        let watched = &mut self.models[model.index()];
        let times = if watched.warm { 1 } else { COLD };
        let after = |time: Nanos| now.saturating_add(time.saturating_mul(times));
        watched.stalls_at = Some(after(self.options.patience(fed)));
        watched.lost_at = self.options.limit(fed).map(after);
    }

    /// The step in flight has come back.
    pub(super) fn ended(&mut self, model: ModelId) {
        let watched = &mut self.models[model.index()];
        (watched.stalls_at, watched.lost_at) = (None, None);
        watched.warm = true;
    }

    /// When there is something to see, if nothing happens.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.models.iter().flat_map(|watched| [watched.stalls_at, watched.lost_at]).flatten().min()
    }
}

impl Running {
    /// Loses the models that the executor says have broken.
    pub(super) fn take_broken(&mut self) -> bool {
        let mut worked = false;
        while let Some((model, why)) = self.parts.executor.broken() {
            self.watch.models[model.index()].gone = true;
            self.lose(model, &why);
            worked = true;
        }
        worked
    }

    /// Loses the models whose step has been in flight for too long, and takes back those that are sound again. After the
    /// completions of the turn: a step that has ended is not late.
    pub(super) fn watch(&mut self) -> bool {
        let now = self.now();
        let mut worked = false;
        for model in (0..self.parts.models).map(|m| ModelId(m as u8)) {
            let status = &self.parts.status.models[model.index()];
            let watched = &mut self.watch.models[model.index()];
            if watched.lost_at.is_some_and(|at| at <= now) {
                (watched.stalls_at, watched.lost_at) = (None, None);
                let why = "a step has not ended in time".to_owned();
                self.parts.executor.abandon(model, &why);
                self.lose(model, &why);
                worked = true;
            } else if watched.stalls_at.is_some_and(|at| at <= now) {
                watched.stalls_at = None;
                tracing::warn!(model = model.0, "a step is late");
                status.set_trouble(ModelState::Stalled, "a step is late");
            } else if status.state() == ModelState::Stalled && self.parts.core.batch(model).is_none() {
                status.set_ready();
            }
        }
        for model in self.parts.core.lost().iter() {
            if !self.watch.models[model.index()].gone && self.parts.core.regain(now, model) {
                tracing::warn!(model = model.0, "the model is back");
                self.parts.status.models[model.index()].set_ready();
                worked = true;
            }
        }
        worked
    }

    fn lose(&mut self, model: ModelId, why: &str) {
        let now = self.now();
        for lost in self.parts.core.lose(now, model).iter() {
            let why = if lost == model { why.to_owned() } else { format!("held up by {model}: {why}") };
            tracing::error!(model = lost.0, "the model is lost: {why}");
            self.parts.status.models[lost.index()].set_trouble(ModelState::Lost, &why);
        }
        if self.watch.models[model.index()].gone {
            // It may have been lost before for another reason.
            self.parts.status.models[model.index()].set_trouble(ModelState::Lost, why);
        }
    }

    /// The loop is over. A step that was given up may never end: a thread of its own waits for it, so that nobody else does.
    pub(super) fn leave(self) {
        let mut models = (0..self.parts.models).map(|m| ModelId(m as u8));
        if models.any(|model| self.parts.core.is_abandoned(model)) {
            tracing::error!("a step that was given up still runs; leaving it behind");
            let RankLoop { executor, .. } = self.parts;
            std::thread::spawn(move || drop(executor));
        }
    }
}
