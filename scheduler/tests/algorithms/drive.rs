//! A core that serves to the end, with models given as functions.

use std::collections::BTreeMap;
use tokenrouter_scheduler::router::{Choice, Fixed, HeadKind, Mixture, Query, RStitch, Scored, Source};
use tokenrouter_scheduler::sim::fake_result;
use tokenrouter_scheduler::*;

pub(crate) const A: ModelId = ModelId(0);
pub(crate) const B: ModelId = ModelId(1);
pub(crate) const EOS: u32 = 2;

/// What a model says about the request of a client after these tokens.
pub(crate) type Say<'a> = &'a dyn Fn(u64, &[u32], ModelId) -> RowResult;

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) writers: Vec<ModelId>,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) usage: Usage,
    /// Its rows: model, first position, tokens fed.
    pub(crate) rows: Vec<(ModelId, u32, u32)>,
}

pub(crate) fn config(models: usize, policy: Policy) -> CoreConfig {
    CoreConfig {
        models: vec![ModelLimits { max_batch_rows: 16, max_step_tokens: 256 }; models],
        pages: 512,
        context_len: 1_024,
        max_waiting: 64,
        max_running: 12,
        eos_ids: vec![EOS],
        guard: 1_000_000,
        policy,
        prefix_cache: false,
        reserve_pages: 0,
        planner: None,
        handoff: Handoff::default(),
    }
}

/// Serves the requests of clients 0, 1, ... together.
pub(crate) fn serve(core: &mut Core, requests: Vec<NewRequest>, say: Say<'_>) -> Vec<Answer> {
    let mut answers = vec![Answer::default(); requests.len()];
    let mut clients = BTreeMap::new();
    for (client, request) in requests.into_iter().enumerate() {
        let id = core.submit(0, NewRequest { client: client as u64, ..request }).unwrap();
        clients.insert(id, client);
    }
    for now in 1.. {
        for model in core.launch(now).iter() {
            let rows = core.batch(model).unwrap().rows.clone();
            let results: Vec<RowResult> = rows
                .iter()
                .map(|row| {
                    let client = clients[&row.request];
                    answers[client].rows.push((model, row.start, row.len));
                    let fed = (row.start + row.len) as usize;
                    say(client as u64, &core.tokens(row.request)[..fed], model)
                })
                .collect();
            core.complete(now, model, &results).unwrap();
            core.audit();
        }
        for effect in core.drain_effects() {
            match effect {
                Effect::Token { client, token, model, .. } => {
                    answers[client as usize].tokens.push(token);
                    answers[client as usize].writers.push(model);
                }
                Effect::Terminal { client, reason, usage, .. } => {
                    answers[client as usize].reason = Some(reason);
                    answers[client as usize].usage = usage;
                }
            }
        }
        if core.idle() {
            break;
        }
        assert!(now < 1_000_000, "the core does not come to rest");
    }
    answers
}

/// Serves on one route with the eager policy.
pub(crate) fn run(router: Box<dyn Router>, requests: Vec<NewRequest>, say: Say<'_>) -> Vec<Answer> {
    serve(&mut Core::new(config(4, Policy::Eager), vec![router]).unwrap(), requests, say)
}

/// The models of the simulator.
pub(crate) fn fake(_: u64, tokens: &[u32], model: ModelId) -> RowResult {
    fake_result(tokens.iter().copied(), model)
}

pub(crate) fn request(seed: u64, max_new_tokens: u32) -> NewRequest {
    let prompt = vec![5 + (seed % 40) as u32, 7, 9];
    NewRequest {
        prompt,
        max_new_tokens,
        seed,
        query_score: Some((seed % 10) as f32 / 10.0),
        ..NewRequest::default()
    }
}

pub(crate) fn scored(kind: HeadKind, threshold: Threshold) -> Box<dyn Router> {
    Box::new(Scored::new(kind, [A, B], 0, (threshold, Source::Config)))
}

/// `query` by head 0.
pub(crate) fn by_head(threshold: Threshold) -> Box<dyn Router> {
    Box::new(Query::new([A, B], Choice::Head { head: 0, threshold, source: Source::Config }))
}

/// Every algorithm between A and B at a number, by name.
pub(crate) fn algorithms() -> Vec<(&'static str, Box<dyn Router>)> {
    let number = Threshold::Value(0.4);
    let mut all: Vec<(&'static str, Box<dyn Router>)> =
        HeadKind::OF_TOKENS.map(|kind| (kind.name(), scored(kind, number))).into();
    all.push(("fixed", Box::new(Fixed::new(A, B, 0.3))));
    all.push(("r-stitch", Box::new(RStitch::new(A, B, number))));
    all.push(("me", Box::new(Mixture::new(A, &[0.6, 0.4], true).unwrap())));
    all.push(("query", Box::new(Query::new([A, B], Choice::Score(number)))));
    all.push(("query by its head", by_head(number)));
    all
}
