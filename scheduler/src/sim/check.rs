//! A run against the sequential truth.

use super::reference::reference;
use super::run::{Outcome, SimError, Stream};
use super::scenario::Scenario;
use crate::config::NewRequest;
use crate::event::{FailKind, FinishReason};
use crate::ids::ModelId;

/// Compares every stream of a run with [`reference()`]: equal if the request ended by itself, a prefix if something
/// interfered; and every account with its stream.
pub fn check(scenario: &Scenario, outcome: &Outcome) -> Result<(), SimError> {
    let routers = scenario.routers();
    for arrival in &scenario.requests {
        let request = &arrival.request;
        let stream = &outcome.streams[request.client as usize];
        let Some(reason) = &stream.reason else { continue };
        let expected = reference(request, &*routers[usize::from(request.route.0)], &scenario.config.eos_ids);
        compare(stream, &expected, reason)
            .and_then(|()| check_usage(request, stream, reason))
            .map_err(|e| SimError(format!("client {}: {e}", request.client)))?;
    }
    Ok(())
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
