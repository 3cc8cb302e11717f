//! A run against the sequential truth.

use super::model::fake_result;
use super::reference::reference;
use super::run::{Outcome, SimError, Stream};
use super::scenario::Scenario;
use crate::config::{NewRequest, PeerLoss};
use crate::event::{FailKind, FinishReason};
use crate::ids::ModelId;
use crate::router::{Budget, Router, Source};

/// Compares every stream of a run with [`reference()`]: equal if the request ended by itself, a prefix if something
/// interfered; and every account with its stream.
pub fn check(scenario: &Scenario, outcome: &Outcome) -> Result<(), SimError> {
    let routers = scenario.routers();
    for arrival in &scenario.requests {
        let request = &arrival.request;
        let stream = &outcome.streams[request.client as usize];
        let Some(reason) = &stream.reason else { continue };
        let router = &*routers[usize::from(request.route.0)];
        let terms = stream.usage.terms;
        // What the answer reports replays it, also where a route has learned in between.
        let replay = NewRequest {
            threshold: terms.threshold.map(|(threshold, _)| threshold),
            max_llm_fraction: terms.budget.map(Budget::share),
            ..request.clone()
        };
        let expected = reference(&replay, router, &scenario.config.eos_ids);
        let compared = match stream.usage.degraded {
            true => compare_degraded(scenario, request, stream),
            false => compare(stream, &expected, reason),
        };
        compared
            .and_then(|()| check_usage(request, stream, reason))
            .and_then(|()| check_terms(request, router, stream))
            .map_err(|e| SimError(format!("client {}: {e}", request.client)))?;
    }
    check_deployments(scenario, outcome)
}

/// The requests of a route together stay within its deployment's share.
fn check_deployments(scenario: &Scenario, outcome: &Outcome) -> Result<(), SimError> {
    for (index, (route, router)) in scenario.routes.iter().zip(scenario.routers()).enumerate() {
        let Some(share) = route.online.deployment else { continue };
        let of_route = scenario.requests.iter().filter(|r| usize::from(r.request.route.0) == index);
        let (mut all, mut others) = (0, 0);
        for usage in of_route.map(|r| &outcome.streams[r.request.client as usize].usage) {
            all += u64::from(usage.completion_tokens);
            others += u64::from(usage.completion_tokens - usage.committed[router.entry().index()]);
        }
        if others * 1_000_000 > share.millionths() * all {
            return SimError::new(format!("route {index}: {others} of {all} tokens, not {}", share.share()));
        }
    }
    Ok(())
}

/// Who wrote is not who would have, but each has written what it says after what stands before.
fn compare_degraded(scenario: &Scenario, request: &NewRequest, stream: &Stream) -> Result<(), SimError> {
    let mut tokens = request.prompt.clone();
    for (&token, &writer) in stream.tokens.iter().zip(&stream.writers) {
        let says = fake_result(tokens.iter().copied(), writer).token;
        if says != token {
            return SimError::new(format!("{writer} says {says}, not {token}, after {tokens:?}"));
        }
        tokens.push(token);
    }
    let troubled = !scenario.outages.is_empty() || scenario.step_timeout.is_some();
    match troubled && scenario.on_loss == PeerLoss::Continue {
        true => Ok(()),
        false => SimError::new("degraded, and no model was lost"),
    }
}

fn compare(stream: &Stream, expected: &Stream, reason: &FinishReason) -> Result<(), SimError> {
    let interrupted = match reason {
        FinishReason::Stop | FinishReason::Cancelled => true,
        FinishReason::Failed(kind) => !matches!(kind, FailKind::NoProgress { .. }),
        FinishReason::Eos(_) | FinishReason::StopId(_) | FinishReason::Length => false,
    };
    let same = if interrupted {
        expected.tokens.starts_with(&stream.tokens) && expected.writers.starts_with(&stream.writers)
    } else {
        expected.tokens == stream.tokens
            && expected.writers == stream.writers
            && expected.reason == stream.reason
    };
    if same {
        return Ok(());
    }
    SimError::new(format!(
        "ended with {reason:?} after {:?} by {:?}; the sequential walk says {:?} after {:?} by {:?}",
        stream.tokens, stream.writers, expected.reason, expected.tokens, expected.writers
    ))
}

/// The request's own threshold wins, its budget and the route's hold at every token, and without learning the terms are
/// known beforehand.
fn check_terms(request: &NewRequest, router: &dyn Router, stream: &Stream) -> Result<(), SimError> {
    let (terms, standing) = (stream.usage.terms, router.terms());
    let own = request.threshold.map(|threshold| (threshold, Source::Request));
    let limit = Budget::tighter(request.max_llm_fraction.and_then(Budget::new), standing.budget);
    let learned = router.online();
    let threshold_fits = match (own, learned.target_share) {
        (None, Some(_)) => true,
        _ => terms.threshold == own.or(standing.threshold),
    };
    let budget_fits = match learned.deployment {
        Some(_) => terms.budget.is_some() && terms.budget == Budget::tighter(terms.budget, limit),
        None => terms.budget == limit,
    };
    let mut others = 0;
    let within = stream.writers.iter().enumerate().all(|(before, &writer)| {
        let other = u64::from(writer != router.entry());
        let allowed = other == 0 || terms.budget.is_none_or(|b| b.allows(others, before as u32));
        others += other;
        allowed
    });
    if threshold_fits && budget_fits && within {
        return Ok(());
    }
    SimError::new(format!("{terms} for {request:?}, written by {:?}", stream.writers))
}

fn check_usage(request: &NewRequest, stream: &Stream, reason: &FinishReason) -> Result<(), SimError> {
    let usage = &stream.usage;
    let counted = usage.completion_tokens as usize;
    let stopped = *reason == FinishReason::Stop;
    let by = |model: ModelId| stream.writers.iter().take(counted).filter(|&&w| w == model).count() as u32;
    let writers_agree = usage.committed.iter().enumerate().all(|(m, &n)| n == by(ModelId(m as u8)));
    let count_agrees = if stopped { counted <= stream.tokens.len() } else { counted == stream.tokens.len() };
    let sampled: u32 = usage.steps.iter().sum();
    let decided = stream.tokens.len() as u32 + usage.discarded.iter().sum::<u32>();
    let prompt_agrees = usage.prompt_tokens as usize == request.prompt.len();
    let cache_agrees = usage.cached.iter().all(|&found| found <= usage.prompt_tokens);
    if writers_agree && count_agrees && prompt_agrees && cache_agrees && sampled >= decided {
        return Ok(());
    }
    SimError::new(format!("{usage:?} does not fit {} tokens by {:?}", stream.tokens.len(), stream.writers))
}
