//! Whole answers over fake models.

use super::{Rule, Violation, require, thresholds};
use crate::config::NewRequest;
use crate::event::{FinishReason, MAX_HEADS, RowResult, Signals};
use crate::ids::ModelId;
use crate::router::{Budget, Budgeted, ReachRow, Router, Threshold};
use crate::sim::{FAKE_VOCAB, Reference, Say, Stream, fake_result, reference};

/// Requests walked from prompt to end.
const WALKS: u64 = 40;
/// Tokens of each.
const LONG: u32 = 60;

/// Answers whose signals are as good as random: alone on a fresh router, and again on one that has served many.
pub(super) fn check_walks(factory: &impl Fn() -> Box<dyn Router>) -> Result<(), Violation> {
    let used = factory();
    for seed in 0..WALKS {
        for threshold in thresholds(&*used) {
            let request = request(seed, threshold, None);
            let say = |tokens: &[u32], model| fake_result(tokens.iter().copied(), model);
            let alone = walk(&request, &*factory(), &say)?;
            let later = reference(&request, &*used, &[]);
            let detail =
                || format!("threshold {threshold:?}, seed {seed}: earlier requests change the answer");
            require(Rule::Determinism, alone == later, detail)?;
        }
    }
    Ok(())
}

/// Answers over models that are always sure, never sure, broken, or anything: within budgets and without.
pub(super) fn check_one_way(factory: &impl Fn() -> Box<dyn Router>) -> Result<(), Violation> {
    // As the core does it: somebody keeps the budget.
    let router = Budgeted::new(factory(), None);
    for certainty in [Some(0.0), Some(1.0), Some(f32::NAN), None] {
        let say = |tokens: &[u32], model| say_one_way(certainty, tokens, model);
        for threshold in thresholds(&router) {
            for share in [None, Some(0.0), Some(0.1), Some(0.35), Some(1.0)] {
                let request = request(7, threshold, share);
                let stream = walk(&request, &router, &say)?;
                check_budget(&request, &router, &stream)?;
            }
        }
    }
    Ok(())
}

fn request(seed: u64, threshold: Option<Threshold>, share: Option<f32>) -> NewRequest {
    NewRequest {
        prompt: vec![(seed % u64::from(FAKE_VOCAB)) as u32, 1, 2],
        max_new_tokens: LONG,
        seed,
        threshold,
        max_llm_fraction: share,
        query_score: Some((seed % 11) as f32 / 10.0),
        ignore_eos: true,
        ..NewRequest::default()
    }
}

/// What a model says, with all its signals at one value.
fn say_one_way(value: Option<f32>, tokens: &[u32], model: ModelId) -> RowResult {
    let usual = fake_result(tokens.iter().copied(), model);
    let Some(value) = value else { return usual };
    let signals = Signals {
        entropy: value,
        entropy_norm: value,
        margin: 1.0 - value,
        scores: [value; MAX_HEADS],
        ..usual.signals
    };
    RowResult { signals, ..usual }
}

/// Walks a request to its end and watches where it goes.
fn walk(request: &NewRequest, router: &dyn Router, say: Say<'_>) -> Result<Stream, Violation> {
    let mut open = router.reach();
    let mut outside = None;
    let watch = |row: &ReachRow<'_>| {
        if !open.contains(row.model) && outside.is_none() {
            outside = Some((row.model, row.generated, open));
        }
        open = open.intersection(router.may_visit(row));
        // Where it is, it may stay, whatever is said.
        open.insert(row.model);
    };
    let stream = Reference { request, router, eos_ids: &[], say }.walk(watch);
    let NewRequest { threshold, max_llm_fraction, .. } = request;
    if let Some((model, generated, open)) = outside {
        let detail = format!(
            "threshold {threshold:?}, budget {max_llm_fraction:?}: at {model} after {generated} tokens, but only {open:?} were said to be possible"
        );
        return Err(Violation { rule: Rule::MayVisit, detail });
    }
    require(Rule::Progress, stream.reason == Some(FinishReason::Length), || {
        let (written, model) = (stream.tokens.len(), stream.writers.last());
        format!("threshold {threshold:?}: stuck after {written} tokens, the last by {model:?}")
    })?;
    Ok(stream)
}

fn check_budget(request: &NewRequest, router: &dyn Router, stream: &Stream) -> Result<(), Violation> {
    let Some(budget) = request.max_llm_fraction.and_then(Budget::new) else { return Ok(()) };
    let mut others = 0;
    for (before, &writer) in stream.writers.iter().enumerate() {
        if writer != router.entry() {
            require(Rule::Budget, budget.allows(others, before as u32), || {
                format!("{others} of {before} tokens by others, and {writer} writes on: {request:?}")
            })?;
            others += 1;
        }
    }
    Ok(())
}
