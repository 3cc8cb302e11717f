//! Devices that only take time: a step per model, as long as its latency table and its neighbours say.

use super::random::Random;
use super::run::SimError;
use crate::contention::Contention;
use crate::core::Core;
use crate::event::RowResult;
use crate::ids::{MAX_MODELS, ModelId, Nanos};
use crate::policy::LatencyTable;
use crate::sharing::Parts;

/// One device per model.
pub(super) struct Devices {
    clock: Contention,
    latency: Vec<LatencyTable>,
    /// A step's work is off by at most this fraction.
    jitter: f64,
    random: Random,
    results: Vec<RowResult>,
}

impl Devices {
    pub(super) fn new(latency: &[LatencyTable], slowdown: &[f64], jitter: f64, seed: u64) -> Self {
        Self {
            clock: Contention::new(slowdown),
            latency: latency.to_vec(),
            jitter,
            random: Random::new(seed ^ 0x0de5_1ce5),
            results: Vec::new(),
        }
    }

    /// Steps that start from now on take other times; those in progress go on at the new slowdown.
    pub(super) fn change(&mut self, latency: &[LatencyTable], slowdown: &[f64]) {
        self.latency = latency.to_vec();
        self.clock.set_slowdown(slowdown);
    }

    /// Decides and starts what launches; rows by model.
    pub(super) fn launch(&mut self, core: &mut Core, now: Nanos) -> [u64; MAX_MODELS] {
        let mut started = [0; MAX_MODELS];
        for model in core.launch(now).iter() {
            let rows = core.batch(model).map_or(0, |b| b.rows.len());
            let work = self.latency[model.index()].at(rows);
            let off = self.jitter * (self.random.range(0, 2_000) as f64 / 1_000.0 - 1.0);
            let work = if self.jitter > 0.0 { (work as f64 * (1.0 + off)) as Nanos } else { work };
            self.clock.start(model.index(), work.max(1), Parts::default(), now);
            started[model.index()] = rows as u64;
        }
        started
    }

    /// When something happens next.
    pub(super) fn next(&self, core: &Core) -> Result<Nanos, SimError> {
        match self.clock.next() {
            Some(next) => Ok(next.min(core.wake().unwrap_or(next))),
            None => SimError::new("nothing runs"),
        }
    }

    /// Delivers the steps that end now; the larger model's requests return before the smaller one decides.
    pub(super) fn land(&mut self, core: &mut Core, now: Nanos) -> Result<(), SimError> {
        for model in (0..self.latency.len()).rev() {
            if !self.clock.finish(model, now) {
                continue;
            }
            let id = ModelId(model as u8);
            self.results.clear();
            self.results.resize(core.batch(id).map_or(0, |b| b.rows.len()), RowResult::default());
            core.complete(now, id, &self.results).map_err(|e| SimError(e.to_string()))?;
        }
        Ok(())
    }
}
