//! A core, a scripted router, and short words for both.

use std::sync::{Arc, Mutex};
use tokenrouter_scheduler::router::{
    Payload, ReceiveRow, RouteRow, Router, SignalSet, StepView, Verdict, Visit,
};
use tokenrouter_scheduler::*;

pub(crate) const A: ModelId = ModelId(0);
pub(crate) const B: ModelId = ModelId(1);
pub(crate) const C: ModelId = ModelId(2);
/// The end-of-sequence id of every rig.
pub(crate) const EOS: u32 = 2;

/// What the scripted router was asked.
#[derive(Default)]
pub(crate) struct Log {
    /// Rows per call of `route`.
    pub(crate) routed: Vec<(ModelId, usize)>,
    /// The rows themselves.
    pub(crate) rows: Vec<RouteRow>,
    pub(crate) received: Vec<ReceiveRow>,
}

/// Does what the result's `score` says: see [`stay`], [`keep`], [`discard`].
pub(crate) struct Scripted {
    pub(crate) entry: ModelId,
    pub(crate) reach: ModelSet,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl Router for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }
    fn signals(&self) -> SignalSet {
        SignalSet::score(0)
    }
    fn entry(&self) -> ModelId {
        self.entry
    }
    fn reach(&self) -> ModelSet {
        self.reach
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        let mut log = self.log.lock().unwrap();
        log.routed.push((step.model, step.rows.len()));
        log.rows.extend_from_slice(step.rows);
        for (row, to) in step.rows.iter().zip(to) {
            assert_eq!(*to, step.model, "destinations are preset to the step's model");
            match row.signals.scores[0] as u8 {
                0 => {}
                code => *to = ModelId(code % 100 - 1),
            }
        }
    }
    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        assert_eq!(*payload, Payload::default());
        payload.0[0] = row.candidate as u8;
        payload.0[63] = to.0;
        if row.signals.scores[0] >= 100.0 { Verdict::Drop } else { Verdict::Keep }
    }
    fn receive(&self, row: &ReceiveRow, from: ModelId, payload: &Payload, visit: &mut Visit) {
        assert_eq!(*visit, Visit::default());
        // From a lost model comes no message, and of a request with a budget those bytes are not the router's.
        let plain = row.budget.is_none() && payload.0[..60] != [0; 60];
        assert!(payload.0[63] == row.model.0 || !plain);
        // The core must not believe this.
        visit.committed = 99;
        visit.limit = u32::from(from.0) + 7;
        visit.scratch[0] = payload.0[0];
        self.log.lock().unwrap().received.push(*row);
    }
}

fn result(token: u32, score: u8) -> RowResult {
    RowResult {
        token,
        signals: Signals { scores: [f32::from(score), 0.0, 0.0, 0.0], ..Signals::default() },
        fault: None,
    }
}

/// The candidate is kept and the model goes on.
pub(crate) fn stay(token: u32) -> RowResult {
    result(token, 0)
}

/// The candidate is kept and the request goes to `to`.
pub(crate) fn keep(token: u32, to: ModelId) -> RowResult {
    result(token, 1 + to.0)
}

/// The candidate is dropped and the request goes to `to`.
pub(crate) fn discard(token: u32, to: ModelId) -> RowResult {
    result(token, 101 + to.0)
}

/// Roomy limits for `models` models.
pub(crate) fn config(models: usize) -> CoreConfig {
    CoreConfig {
        models: vec![ModelLimits { max_batch_rows: 8, max_step_tokens: 64 }; models],
        pages: 32,
        context_len: 256,
        max_waiting: 16,
        max_running: 16,
        eos_ids: vec![EOS],
        guard: 1_000,
        policy: Policy::Eager,
        prefix_cache: false,
        reserve_pages: 0,
        planner: None,
        handoff: Handoff::default(),
    }
}

pub(crate) fn request(prompt: usize, max_new_tokens: u32) -> NewRequest {
    NewRequest { client: 77, prompt: (100..).take(prompt).collect(), max_new_tokens, ..NewRequest::default() }
}

/// A core whose single route is scripted, entering at model A.
pub(crate) struct Rig {
    pub(crate) core: Core,
    pub(crate) now: Nanos,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl Rig {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let log = Arc::new(Mutex::new(Log::default()));
        let reach = ModelSet::first(config.models.len());
        let scripted = Scripted { entry: A, reach, log: Arc::clone(&log) };
        Self { core: Core::new(config, vec![Box::new(scripted)]).unwrap(), now: 0, log }
    }

    /// See [`Core::exclusive`].
    pub(crate) fn exclusive(mut self, sets: &[ModelSet]) -> Self {
        self.core = self.core.exclusive(sets);
        self
    }

    pub(crate) fn submit(&mut self, new: NewRequest) -> RequestId {
        let id = self.core.submit(self.now, new).unwrap();
        self.core.audit();
        id
    }

    /// The models that launched.
    pub(crate) fn launch(&mut self) -> Vec<ModelId> {
        self.now += 1;
        let launched = self.core.launch(self.now);
        self.core.audit();
        launched.iter().collect()
    }

    pub(crate) fn complete(&mut self, model: ModelId, results: &[RowResult]) {
        self.now += 1;
        self.core.complete(self.now, model, results).unwrap();
        self.core.audit();
    }

    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let ended = self.core.cancel(self.now, id);
        self.core.audit();
        ended
    }

    pub(crate) fn stop(&mut self, id: RequestId, committed_len: u32) -> bool {
        let ended = self.core.stop(self.now, id, committed_len);
        self.core.audit();
        ended
    }

    /// Launches, which must start `model` alone, and completes it.
    pub(crate) fn step(&mut self, model: ModelId, results: &[RowResult]) {
        assert_eq!(self.launch(), [model]);
        self.complete(model, results);
    }

    /// The rows in flight: slot, start, len, samples.
    pub(crate) fn rows(&self, model: ModelId) -> Vec<(usize, u32, u32, bool)> {
        let rows = &self.core.batch(model).expect("no batch in flight").rows;
        rows.iter().map(|r| (r.request.slot(), r.start, r.len, r.samples)).collect()
    }

    /// Tokens reported since the last call, with their writers.
    pub(crate) fn tokens(&mut self) -> Vec<(u32, ModelId)> {
        let token = |effect| match effect {
            Effect::Token { token, model, client: 77, .. } => (token, model),
            other => panic!("{other:?}"),
        };
        self.core.drain_effects().map(token).collect()
    }

    /// The only terminal since the last call, which must be the last effect.
    pub(crate) fn terminal(&mut self) -> (RequestId, FinishReason, Usage) {
        let effects: Vec<Effect> = self.core.drain_effects().collect();
        let is_token = |e: &Effect| matches!(e, Effect::Token { .. });
        match effects.split_last() {
            Some((Effect::Terminal { request, reason, usage, client: 77 }, rest))
                if rest.iter().all(is_token) =>
            {
                (*request, reason.clone(), *usage)
            }
            _ => panic!("no single terminal at the end: {effects:?}"),
        }
    }

    /// Everything must be as at the start.
    pub(crate) fn assert_empty(&mut self) {
        assert!(self.core.idle());
        let counters = self.core.counters();
        assert_eq!((counters.pages.leased, counters.pages.deferred, counters.admitted), (0, 0, 0));
        assert_eq!(counters.terminals.total(), counters.submitted);
        assert_eq!(self.core.launch(self.now), ModelSet::EMPTY);
        assert_eq!(self.core.wake(), None);
        self.core.audit();
    }
}
