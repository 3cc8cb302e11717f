//! The sequential truth: one request, no batches, no queues, no pages.
//!
//! Written on its own, not on top of the core's walk, so that the two can disagree.

use super::model::fake_result;
use super::run::Stream;
use crate::config::NewRequest;
use crate::event::{FailKind, FinishReason, RowResult, Usage};
use crate::ids::{ModelId, RequestId};
use crate::router::{
    Budget, EntryRow, Payload, ReachRow, ReceiveRow, RouteRow, Router, StepView, Verdict, Visit,
};

/// The answer that any schedule must give to `request` on `router`, if nothing interferes. The request's budget counts
/// only when the router keeps budgets ([`Budgeted`](crate::router::Budgeted), as the core sees to). A request that the
/// router cannot start, which the core refuses, starts at the entry.
pub fn reference(request: &NewRequest, router: &dyn Router, eos_ids: &[u32]) -> Stream {
    let say = |tokens: &[u32], model| fake_result(tokens.iter().copied(), model);
    Reference { request, router, eos_ids, say: &say }.walk(|_| ())
}

/// What a model says after a prefix.
pub(crate) type Say<'a> = &'a dyn Fn(&[u32], ModelId) -> RowResult;

/// One request with its router and the models that it speaks to.
pub(crate) struct Reference<'a> {
    pub(crate) request: &'a NewRequest,
    pub(crate) router: &'a dyn Router,
    pub(crate) eos_ids: &'a [u32],
    pub(crate) say: Say<'a>,
}

/// Where the request stands.
struct Place {
    model: ModelId,
    visit: Visit,
    drops: u32,
    usage: Usage,
}

impl Reference<'_> {
    /// From the prompt to the end. `watch` sees the request at its start and after every candidate.
    pub(crate) fn walk(&self, mut watch: impl FnMut(&ReachRow<'_>)) -> Stream {
        let (request, router) = (self.request, self.router);
        let mut tokens = request.prompt.clone();
        let mut stream = Stream::default();
        let model = self.start();
        let mut at = Place { model, visit: Visit::default(), drops: 0, usage: Usage::default() };
        while stream.reason.is_none() {
            watch(&self.reach_row(&at));
            let result = (self.say)(&tokens, at.model);
            let row = self.route_row(&at, &tokens, &result);
            let mut to = [at.model];
            router.route(&StepView { model: at.model, rows: &[row] }, &mut to);
            let [to] = to;
            let mut payload = Payload::default();
            let dropped = to != at.model && router.send(&row, to, &mut payload) == Verdict::Drop;
            if dropped {
                at.drops += 1;
                if at.drops == 64 {
                    stream.reason = Some(FinishReason::Failed(FailKind::NoProgress { drops: at.drops }));
                }
            } else {
                at.drops = 0;
                tokens.push(result.token);
                stream.tokens.push(result.token);
                stream.writers.push(at.model);
                at.visit.committed += 1;
                at.usage.completion_tokens += 1;
                at.usage.committed[at.model.index()] += 1;
                stream.reason = self.ending(result.token, stream.tokens.len() as u32);
            }
            if stream.reason.is_none() && to != at.model {
                at.visit = self.arrival(&tokens, at.model, to, &payload);
                at.model = to;
            }
        }
        stream
    }

    fn budget(&self) -> Option<Budget> {
        self.request.max_llm_fraction.and_then(Budget::new)
    }

    fn start(&self) -> ModelId {
        let row = EntryRow {
            position: self.request.prompt.len() as u32,
            threshold: self.request.threshold,
            budget: self.budget(),
            query_score: self.request.query_score,
            seed: self.request.seed,
            choice: self.request.choice,
        };
        self.router.entry_for(&row).unwrap_or(self.router.entry())
    }

    fn route_row(&self, at: &Place, tokens: &[u32], result: &RowResult) -> RouteRow {
        RouteRow {
            request: RequestId::new(0, 0),
            model: at.model,
            position: tokens.len() as u32,
            generated: at.usage.completion_tokens,
            candidate: result.token,
            signals: result.signals,
            threshold: self.request.threshold,
            visit: at.visit,
            seed: self.request.seed,
            choice: self.request.choice,
            budget: self.budget(),
        }
    }

    fn reach_row<'a>(&self, at: &'a Place) -> ReachRow<'a> {
        ReachRow {
            model: at.model,
            generated: at.usage.completion_tokens,
            threshold: self.request.threshold,
            budget: self.budget(),
            max_new_tokens: self.request.max_new_tokens,
            visit: at.visit,
            usage: &at.usage,
        }
    }

    /// Why the answer ends with `token`, its `count`-th.
    fn ending(&self, token: u32, count: u32) -> Option<FinishReason> {
        let may_end = count > self.request.min_tokens;
        if may_end && !self.request.ignore_eos && self.eos_ids.contains(&token) {
            Some(FinishReason::Eos(token))
        } else if may_end && self.request.stop_ids.contains(&token) {
            Some(FinishReason::StopId(token))
        } else if count == self.request.max_new_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    fn arrival(&self, tokens: &[u32], from: ModelId, to: ModelId, payload: &Payload) -> Visit {
        let row = ReceiveRow {
            request: RequestId::new(0, 0),
            model: to,
            position: tokens.len() as u32,
            generated: (tokens.len() - self.request.prompt.len()) as u32,
            threshold: self.request.threshold,
            seed: self.request.seed,
            choice: self.request.choice,
            budget: self.budget(),
        };
        let mut visit = Visit::default();
        self.router.receive(&row, from, payload, &mut visit);
        visit
    }
}
