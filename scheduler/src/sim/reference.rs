//! The sequential truth: one request, no batches, no queues, no pages.
//!
//! Written on its own, not on top of the core's walk, so that the two can disagree.

use super::model::fake_result;
use super::run::Stream;
use crate::config::NewRequest;
use crate::event::{FailKind, FinishReason};
use crate::ids::{ModelId, RequestId};
use crate::router::{Payload, ReceiveRow, RouteRow, Router, StepView, Verdict, Visit};

/// The answer that any schedule must give to `request` on `router`, if nothing interferes.
pub fn reference(request: &NewRequest, router: &dyn Router, eos_ids: &[u32]) -> Stream {
    let mut tokens = request.prompt.clone();
    let mut stream = Stream::default();
    let (mut model, mut visit, mut drops) = (router.entry(), Visit::default(), 0);
    while stream.reason.is_none() {
        let result = fake_result(tokens.iter().copied(), model);
        let generated = stream.tokens.len() as u32;
        let row = RouteRow {
            request: RequestId::new(0, 0),
            model,
            position: tokens.len() as u32,
            generated,
            candidate: result.token,
            signals: result.signals,
            threshold: request.threshold,
            visit,
            seed: request.seed,
            choice: request.choice,
        };
        let mut to = [model];
        router.route(&StepView { model, rows: &[row] }, &mut to);
        let [to] = to;
        let mut payload = Payload::default();
        let dropped = to != model && router.send(&row, to, &mut payload) == Verdict::Drop;
        if dropped {
            drops += 1;
            if drops == 64 {
                stream.reason = Some(FinishReason::Failed(FailKind::NoProgress { drops }));
            }
        } else {
            drops = 0;
            tokens.push(result.token);
            stream.tokens.push(result.token);
            stream.writers.push(model);
            visit.committed += 1;
            stream.reason = ending(request, eos_ids, result.token, stream.tokens.len() as u32);
        }
        if stream.reason.is_none() && to != model {
            visit = arrival(request, router, &tokens, model, to, &payload);
            model = to;
        }
    }
    stream
}

/// Why the answer ends with `token`, its `count`-th.
fn ending(request: &NewRequest, eos_ids: &[u32], token: u32, count: u32) -> Option<FinishReason> {
    let may_end = count > request.min_tokens;
    if may_end && !request.ignore_eos && eos_ids.contains(&token) {
        Some(FinishReason::Eos(token))
    } else if may_end && request.stop_ids.contains(&token) {
        Some(FinishReason::StopId(token))
    } else if count == request.max_new_tokens {
        Some(FinishReason::Length)
    } else {
        None
    }
}

fn arrival(
    request: &NewRequest,
    router: &dyn Router,
    tokens: &[u32],
    from: ModelId,
    to: ModelId,
    payload: &Payload,
) -> Visit {
    let row = ReceiveRow {
        request: RequestId::new(0, 0),
        model: to,
        position: tokens.len() as u32,
        generated: (tokens.len() - request.prompt.len()) as u32,
        threshold: request.threshold,
        seed: request.seed,
        choice: request.choice,
    };
    let mut visit = Visit::default();
    router.receive(&row, from, payload, &mut visit);
    visit
}
