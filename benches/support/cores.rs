//! Cores with requests in flight, and the steps that benches repeat on them. No clock and no thread.
#![allow(unreachable_pub, reason = "every bench compiles this module for itself")]

use std::hint::black_box;

use tokenrouter_scheduler::router::{Router, SignalSet, StepView};
use tokenrouter_scheduler::{
    Core, CoreConfig, Handoff, ModelId, ModelLimits, ModelSet, NewRequest, PAGE_TOKENS, Policy, RouteId,
    RowResult,
};

pub const SMALL: ModelId = ModelId(0);
pub const LARGE: ModelId = ModelId(1);
/// Cycles per measured batch: long enough that the set-up does not show.
pub const CYCLES: u32 = 500;

/// Sends every request to the other model after every token, or none; the candidate is kept. Its own work is next to
/// nothing, so what is measured is the scheduler.
pub struct Shuttle {
    /// Every token moves its request.
    pub moves: bool,
}

impl Router for Shuttle {
    fn name(&self) -> &str {
        "shuttle"
    }
    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }
    fn entry(&self) -> ModelId {
        SMALL
    }
    fn reach(&self) -> ModelSet {
        ModelSet::first(2)
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        if self.moves {
            to.fill(if step.model == SMALL { LARGE } else { SMALL });
        }
    }
}

/// What a measured core looks like.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Requests, all of them running.
    pub requests: usize,
    /// Tokens of each prompt.
    pub context: usize,
    /// Half of the tokens that each request may write.
    pub cycles: u32,
    /// How requests move.
    pub handoff: Handoff,
}

impl Shape {
    /// Requests of a short prompt that resume at the peer.
    pub fn of(requests: usize) -> Self {
        Self { requests, context: 128, cycles: CYCLES, handoff: Handoff::Resume }
    }

    /// One result per row.
    pub fn results(&self) -> Vec<RowResult> {
        vec![RowResult { token: 3, ..RowResult::default() }; self.requests]
    }

    /// The requests are admitted, and all are in the small model's batch in flight.
    pub fn running(&self, router: Box<dyn Router>, policy: Policy) -> Core {
        let Shape { requests, context, .. } = *self;
        let limits = ModelLimits { max_batch_rows: requests, max_step_tokens: requests * 2 * context };
        let lifetime = context + 2 * self.cycles as usize;
        let config = CoreConfig {
            models: vec![limits; 2],
            pages: requests * lifetime.div_ceil(PAGE_TOKENS),
            context_len: lifetime,
            max_waiting: requests,
            max_running: requests,
            eos_ids: vec![],
            guard: u64::MAX / 2,
            policy,
            prefix_cache: true,
            reserve_pages: 0,
            planner: None,
            handoff: self.handoff,
        };
        let mut core = Core::new(config, vec![router]).expect("a legal configuration");
        for client in 0..requests as u64 {
            let request = NewRequest {
                client,
                prompt: prompt(client as u32, context),
                max_new_tokens: 2 * self.cycles,
                route: RouteId(0),
                seed: client,
                ..NewRequest::default()
            };
            core.submit(0, request).expect("room for every request");
        }
        core.launch(0);
        core
    }
}

/// A prompt that shares nothing with another client's.
pub fn prompt(client: u32, context: usize) -> Vec<u32> {
    (0..context as u32).map(|i| i ^ (client << 16)).collect()
}

/// The end of every batch in flight at once, and the launches after it: a decision step of the whole system.
pub fn decide(core: &mut Core, results: &[RowResult], now: u64) {
    for model in [LARGE, SMALL] {
        let rows = core.batch(model).map_or(0, |batch| batch.rows.len());
        if rows > 0 {
            core.complete(now, model, &results[..rows]).expect("a batch in flight");
        }
    }
    core.launch(now);
    black_box(core.drain_effects().count());
}

/// One step of the small model whose rows all go to the large one, and one step there whose rows all return.
pub fn round_trip(core: &mut Core, results: &[RowResult], now: u64) {
    core.complete(now, SMALL, results).expect("a batch in flight");
    core.launch(now);
    core.complete(now, LARGE, results).expect("a batch in flight");
    core.launch(now);
    black_box(core.drain_effects().count());
}
