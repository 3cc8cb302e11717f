//! The engine's live gauges and counters: written by the rank loop, read by anybody without asking it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokenrouter_scheduler::{Batch, Counters, MAX_MODELS, Nanos, PlannerStatus, Usage};

use crate::executor::Ungraphed;
use crate::faults::{COLD, pieces};
use crate::tally::{ROW_BUCKETS, TIME_BUCKETS, Tally};

/// Life cycle of the engine as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EngineState {
    /// Serving.
    Ready = 0,
    /// Finishing what runs, taking nothing new.
    Draining = 1,
    /// The rank loop has ended.
    Stopped = 2,
}

/// How a model does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ModelState {
    /// It takes steps.
    #[default]
    Ready = 0,
    /// Its device or thread is gone, or a step has not ended in time; requests that need it fail, or others write in
    /// its place.
    Lost = 1,
    /// A step has been in flight for longer than any should take; not given up yet.
    Stalled = 2,
}

impl ModelState {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            ModelState::Ready => "ready",
            ModelState::Lost => "lost",
            ModelState::Stalled => "stalled",
        }
    }
}

/// Steps are sorted by their fed tokens: bucket `i` holds those of at most `2^i`, the last one all larger ones.
pub const FED_BUCKETS: usize = 16;

/// The phases of steps, the index of what is counted by phase: in a `decode` step every row feeds one token, in an
/// `extend` step some row feeds more.
pub const PHASE_NAMES: [&str; PHASES] = ["decode", "extend"];
const PHASES: usize = 2;

/// Live gauges of one model. All values are cumulative or current, never deltas.
#[derive(Debug, Default)]
pub struct ModelStatus {
    state: AtomicU8,
    /// How often it was lost since the start.
    pub losses: AtomicU64,
    /// Why it is not ready, in words.
    trouble: Mutex<Option<Arc<str>>>,
    /// Requests in its queue, ready to be launched.
    pub ready: AtomicU64,
    /// Requests in the batch in flight.
    pub running: AtomicU64,
    /// Requests that are away at a peer.
    pub pending: AtomicU64,
    /// Steps launched since the start.
    pub launches: AtomicU64,
    /// Steps finished since the start, failed ones included.
    pub steps: AtomicU64,
    /// Steps that failed as a whole.
    pub failures: AtomicU64,
    /// Rows of the steps launched.
    pub rows: AtomicU64,
    /// Tokens fed by the steps launched.
    pub fed: AtomicU64,
    /// Steps launched, by fed tokens; see [`FED_BUCKETS`]. Each step is in one bucket.
    pub by_fed: [AtomicU64; FED_BUCKETS],
    /// Time from launch to completion, summed over the steps finished, in nanoseconds.
    pub busy: AtomicU64,
    /// Requests handed to each other model.
    pub handoffs: [AtomicU64; MAX_MODELS],
    /// Those of them at which the router had dropped the candidate.
    pub drops: [AtomicU64; MAX_MODELS],
    /// Rows of the steps launched, by phase.
    pub rows_by: [Tally<ROW_BUCKETS>; PHASES],
    /// Times from launch to completion, by phase.
    pub step_times: [Tally<TIME_BUCKETS>; PHASES],
    /// Admission delays: from the verdict that sent a request here to the launch of a batch that holds it.
    pub delays: Tally<TIME_BUCKETS>,
    /// Requests that failed because their logits were not finite.
    pub nonfinite: AtomicU64,
    /// Steps that no captured graph could run, because of their size.
    pub ungraphed_size: AtomicU64,
    /// Steps that no captured graph could run, because of their attention.
    pub ungraphed_attention: AtomicU64,
    /// Steps that ran without a graph because they scored tokens of prompts.
    pub ungraphed_scores: AtomicU64,
    /// Tokens committed by this model since the start.
    pub committed: AtomicU64,
    /// Tokens of the prompts of ended requests that it has read, and those of them that it found in its cache.
    pub prompted: AtomicU64,
    /// See `prompted`.
    pub cached: AtomicU64,
    /// When the step in flight was launched, in nanoseconds of the engine's clock; 0 when idle.
    pub in_flight_since: AtomicU64,
    /// How often the usual time that step may take: more with the tokens it feeds, and at first ([`crate::FaultOptions`]).
    pub in_flight_times: AtomicU64,
    /// Whether that step is an extend.
    extends: AtomicBool,
    /// When a step came back last, in nanoseconds of the engine's clock; 0 before the first.
    pub last_step: AtomicU64,
}

impl ModelStatus {
    /// Nanoseconds without progress while the model has work: since the launch of its step in flight, or, with requests
    /// in its queue, since its last step. 0 with nothing to do.
    pub fn age(&self, now: Nanos) -> Nanos {
        let (since, last) = (self.in_flight_since.load(Relaxed), self.last_step.load(Relaxed));
        match since {
            0 if self.ready.load(Relaxed) == 0 || last == 0 => 0,
            0 => now.saturating_sub(last),
            since => now.saturating_sub(since),
        }
    }

    /// How it does.
    pub fn state(&self) -> ModelState {
        match self.state.load(Ordering::Acquire) {
            0 => ModelState::Ready,
            1 => ModelState::Lost,
            _ => ModelState::Stalled,
        }
    }

    /// Why it is not ready, in words; none while it is.
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Set by the rank loop.
    pub fn set_trouble(&self, state: ModelState, why: &str) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
        self.set_state(state);
    }

    /// Set by the rank loop.
    pub fn set_ready(&self) {
        self.set_state(ModelState::Ready);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn set_state(&self, state: ModelState) {
        let before = self.state.swap(state as u8, Ordering::AcqRel);
        if state == ModelState::Lost && before != state as u8 {
            self.losses.fetch_add(1, Relaxed);
        }
    }
}

/// Live gauges of the engine, read by the network thread without asking the rank loop.
#[derive(Debug, Default)]
pub struct EngineStatus {
    state: AtomicU8,
    /// Requests not yet admitted.
    pub waiting: AtomicU64,
    /// Admitted requests: ready, running and pending ones.
    pub running: AtomicU64,
    /// Pages of the joint pool that can be taken at once, cached ones included.
    pub pages_free: AtomicU64,
    /// Those of them that still hold a prefix which a later prompt may find.
    pub pages_cached: AtomicU64,
    /// Launches that happened only because the guard time had passed, since the start.
    pub guard_launches: AtomicU64,
    /// Requests that lost their pages to an earlier one and waited again, since the start.
    pub preemptions: AtomicU64,
    /// All usable pages of the joint pool.
    pub pages_total: AtomicU64,
    /// Engine clock in nanoseconds at the last turn of the rank loop.
    pub now: AtomicU64,
    /// One entry per model.
    pub models: [ModelStatus; MAX_MODELS],
    /// Replaced as a whole; whoever looks holds the lock for as long as it takes to copy a pointer.
    planner: Mutex<Arc<PlannerStatus>>,
    /// Zero of the engine's clock.
    started: OnceLock<Instant>,
}

impl EngineStatus {
    /// Where the engine is in its life.
    pub fn state(&self) -> EngineState {
        match self.state.load(Ordering::Acquire) {
            0 => EngineState::Ready,
            1 => EngineState::Draining,
            _ => EngineState::Stopped,
        }
    }

    /// Set by the rank loop.
    pub fn set_state(&self, state: EngineState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// The engine's clock starts.
    pub(crate) fn start_clock(&self, at: Instant) {
        // A second start of one status would be a second rank loop: there is none.
        let _ = self.started.set(at);
    }

    /// Nanoseconds of the engine's clock; 0 before it starts.
    pub fn clock(&self) -> Nanos {
        self.started.get().map_or(0, |at| at.elapsed().as_nanos() as Nanos)
    }

    /// The scheduler's running estimates and its plan, a fraction of a second old.
    pub fn planner(&self) -> Arc<PlannerStatus> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Set by the rank loop.
    pub fn set_planner(&self, planner: PlannerStatus) {
        let planner = Arc::new(planner);
        let old =
            std::mem::replace(&mut *self.planner.lock().unwrap_or_else(PoisonError::into_inner), planner);
        // Outside the lock, in case it is the last one.
        drop(old);
    }

    /// A batch of `model` was launched at `now`.
    pub(crate) fn launched(&self, model: usize, batch: &Batch, now: Nanos) {
        let status = &self.models[model];
        status.rows.fetch_add(batch.rows.len() as u64, Relaxed);
        status.fed.fetch_add(batch.fed_tokens as u64, Relaxed);
        status.by_fed[fed_bucket(batch.fed_tokens)].fetch_add(1, Relaxed);
        let extends = batch.fed_tokens > batch.rows.len();
        status.extends.store(extends, Relaxed);
        status.rows_by[usize::from(extends)].add_rows(batch.rows.len());
        batch.delays.iter().for_each(|delay| status.delays.add_time(*delay));
        let first = if status.steps.load(Relaxed) == 0 { COLD } else { 1 };
        status.in_flight_times.store(pieces(batch.fed_tokens) * first, Relaxed);
        // 0 means idle.
        status.in_flight_since.store(now.max(1), Relaxed);
    }

    /// The batch of `model` has come back.
    pub(crate) fn finished(&self, model: usize, failed: bool, now: Nanos) {
        let status = &self.models[model];
        let since = status.in_flight_since.swap(0, Relaxed);
        let spent = now.saturating_sub(since);
        status.busy.fetch_add(spent, Relaxed);
        status.step_times[usize::from(status.extends.load(Relaxed))].add_time(spent);
        status.last_step.store(now.max(1), Relaxed);
        status.steps.fetch_add(1, Relaxed);
        status.failures.fetch_add(u64::from(failed), Relaxed);
    }

    /// A request has ended with this account.
    pub(crate) fn ended(&self, usage: &Usage) {
        for (m, model) in self.models.iter().enumerate().filter(|(m, _)| usage.steps[*m] > 0) {
            model.prompted.fetch_add(u64::from(usage.prompt_tokens), Relaxed);
            model.cached.fetch_add(u64::from(usage.cached[m]), Relaxed);
        }
    }

    /// The state after a turn of the rank loop.
    pub(crate) fn publish(&self, counters: &Counters, models: usize, now: Nanos) {
        self.now.store(now, Relaxed);
        self.waiting.store(counters.waiting as u64, Relaxed);
        self.running.store(counters.admitted as u64, Relaxed);
        self.pages_free.store((counters.pages.free + counters.pages.cached) as u64, Relaxed);
        self.pages_cached.store(counters.pages.cached as u64, Relaxed);
        self.guard_launches.store(counters.guard_launches, Relaxed);
        self.preemptions.store(counters.preemptions, Relaxed);
        for (m, model) in self.models.iter().enumerate().take(models) {
            model.ready.store(counters.ready[m] as u64, Relaxed);
            model.running.store(counters.running[m] as u64, Relaxed);
            model.pending.store(counters.pending[m] as u64, Relaxed);
            model.launches.store(counters.launches[m], Relaxed);
            for (to, count) in model.handoffs.iter().zip(counters.handoffs[m]).take(models) {
                to.store(count, Relaxed);
            }
            for (to, count) in model.drops.iter().zip(counters.drops[m]).take(models) {
                to.store(count, Relaxed);
            }
        }
    }

    /// Steps of `model` that ran without a graph so far.
    pub(crate) fn set_ungraphed(&self, model: usize, count: Ungraphed) {
        self.models[model].ungraphed_size.store(count.size, Relaxed);
        self.models[model].ungraphed_attention.store(count.attention, Relaxed);
        self.models[model].ungraphed_scores.store(count.scores, Relaxed);
    }
}

fn fed_bucket(fed: usize) -> usize {
    (fed.max(1).next_power_of_two().ilog2() as usize).min(FED_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_size_has_one_bucket() {
        let cases =
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (16_384, 14), (16_385, 15), (1 << 40, 15)];
        for (fed, bucket) in cases {
            assert_eq!(fed_bucket(fed), bucket, "{fed}");
        }
    }

    #[test]
    fn progress_has_an_age_only_while_there_is_work() {
        let status = EngineStatus::default();
        let model = &status.models[0];
        assert_eq!(model.age(500), 0);
        model.ready.store(1, Relaxed);
        assert_eq!(model.age(500), 0, "nothing has ever run");
        status.launched(0, &Batch { delays: vec![7, 30_000], ..Batch::default() }, 100);
        assert_eq!((model.age(500), model.delays.sum()), (400, 30_007));
        status.finished(0, false, 200);
        assert_eq!(model.age(500), 300);
        model.ready.store(0, Relaxed);
        assert_eq!(model.age(500), 0);
    }

    #[test]
    fn a_step_is_counted_from_its_launch_to_its_end() {
        let status = EngineStatus::default();
        let batch = Batch { fed_tokens: 5, ..Batch::default() };
        status.launched(1, &batch, 0);
        let model = &status.models[1];
        assert!(model.in_flight_since.load(Relaxed) > 0, "a step launched at time 0 is in flight");
        assert_eq!(model.in_flight_times.load(Relaxed), 10, "the first one");
        status.finished(1, false, 101);
        status.launched(1, &Batch { fed_tokens: 129, ..Batch::default() }, 101);
        assert_eq!(model.in_flight_times.load(Relaxed), 3);
        status.finished(1, false, 101);
        status.launched(1, &batch, 200);
        status.finished(1, true, 250);
        let counts = [&model.fed, &model.by_fed[3], &model.busy, &model.steps, &model.failures];
        assert_eq!(counts.map(|count| count.load(Relaxed)), [139, 2, 150, 3, 1]);
        let [decode, extend] = &model.step_times;
        assert_eq!((decode.sum(), extend.sum(), extend.counts()[0]), (0, 150, 3));
        assert_eq!((model.rows_by[1].counts()[0], model.last_step.load(Relaxed)), (3, 250));
        assert_eq!(model.in_flight_since.load(Relaxed), 0);
    }
}
