//! A virtual device that takes time and fails, but computes nothing: what a model says depends on the request, the
//! position and the model alone.

use super::source::answer_token;
use super::spec::{ServingDevice, keyed};
use crate::event::{Batch, MAX_HEADS, RowFault, RowResult, Signals};
use crate::ids::Nanos;
use crate::router::mix;
use crate::sim::random::Random;

/// Purpose of its draws.
const STEP: u64 = 16;

/// Of the work of a step, so that no clock overflows.
const LONGEST: f64 = 1e14;

/// One device and its step in progress.
#[derive(Debug)]
pub(super) struct Device<'a> {
    spec: &'a ServingDevice,
    model: usize,
    seed: u64,
    /// Of the step in progress, or the last one.
    random: Random,
    launches: u64,
    /// The step time's factor.
    pub(super) scale: f64,
    /// When the step in progress began.
    pub(super) since: Option<Nanos>,
    /// A step is done, but its end stands back until then.
    pub(super) held: Option<Nanos>,
}

impl<'a> Device<'a> {
    pub(super) fn new(spec: &'a ServingDevice, model: usize, seed: u64) -> Self {
        let random = keyed(seed, STEP, 0);
        Self { spec, model, seed, random, launches: 0, scale: 1.0, since: None, held: None }
    }

    /// Starts a step; returns the work. The n-th step of a model has the same draws in every run of a seed.
    pub(super) fn start(&mut self, batch: &Batch, now: Nanos) -> Nanos {
        self.launches += 1;
        self.random = keyed(self.seed, STEP + self.model as u64, self.launches);
        self.since = Some(now);
        // Twelve times the variance of a uniform number is 1: the sum of four, scaled, has deviation 1.
        let z = (0..4).map(|_| self.random.unit() - 0.5).sum::<f64>() * 3f64.sqrt();
        let factor = self.scale * (1.0 + self.spec.jitter * z).max(0.05);
        let rows = batch.rows.iter().map(|row| (row.start as usize, row.len as usize));
        let work = self.spec.step_time_of(rows) as f64 * factor;
        work.round().clamp(1.0, LONGEST) as Nanos
    }

    /// Whether a step may not end now, and until when.
    pub(super) fn stalled(&self, now: Nanos) -> Option<Nanos> {
        self.spec.stalls.iter().find(|(from, to)| (*from..*to).contains(&now)).map(|&(_, to)| to)
    }

    /// The step ends: whether it fails as a whole.
    pub(super) fn fails(&mut self, now: Nanos) -> bool {
        self.random.chance(self.spec.step_failure) || self.spec.dies_at.is_some_and(|at| at <= now)
    }

    /// The result of a row whose request has this seed, at `position`, when its answer ends at position `end`.
    pub(super) fn result(&mut self, seed: u64, position: usize, end: usize) -> RowResult {
        let hash = mix(mix(seed ^ self.model as u64) ^ position as u64);
        let unit = |bits: u64| (bits & 0xffff) as f32 / 65_536.0;
        let (entropy, margin, score) = (unit(hash >> 16), unit(hash >> 32), unit(hash >> 48));
        let signals = Signals {
            entropy,
            entropy_norm: entropy,
            margin,
            scores: [score; MAX_HEADS],
            ..Signals::default()
        };
        let fault = self.random.chance(self.spec.row_fault).then_some(RowFault::NonFinite);
        RowResult { token: answer_token(mix(hash), position, end), signals, fault }
    }
}
