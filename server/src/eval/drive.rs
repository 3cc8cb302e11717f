//! Runs prompts through one route, so many at a time, greedy, in this process.

use std::time::Instant;

use serde_json::json;
use tokenrouter_engine::{ClientEvent, Command, EngineRequest, SamplingParams};
use tokenrouter_scheduler::{FinishReason, RouteId, Threshold, Usage};

use super::problems::Problem;
use super::setting::SettingArgs;
use crate::deploy::Deployment;
use crate::text::ChatOptions;

/// A prompt in tokens.
pub(crate) struct Prompt {
    ids: Vec<u32>,
    max_new_tokens: u32,
    score: Option<f32>,
}

/// The prompts in tokens, in the chat template unless `--raw`.
///
/// # Errors
/// When the models have no template, or a prompt leaves no room for an answer.
pub(crate) fn prepare(
    deployment: &Deployment,
    args: &SettingArgs,
    problems: &[Problem],
) -> Result<Vec<Prompt>, String> {
    let text = &deployment.text;
    let most = deployment.engine.info.context_len;
    let one = |problem: &Problem| {
        let ids = if args.raw {
            text.encode_prompt(&problem.prompt, true)
        } else {
            let messages = json!([{"role": "user", "content": problem.prompt}]);
            text.chat_prompt(&messages, &ChatOptions::default()).and_then(|p| text.encode_rendered(&p))
        };
        let ids = ids.map_err(|e| e.to_string())?;
        match most.saturating_sub(ids.len()) as u32 {
            0 => {
                Err(format!("it has {} tokens; at most {most} are possible, the answer included", ids.len()))
            }
            room => Ok(Prompt { ids, max_new_tokens: args.max_tokens.min(room), score: problem.score }),
        }
    };
    problems.iter().enumerate().map(|(i, p)| one(p).map_err(|e| format!("prompt {i}: {e}"))).collect()
}

/// Which route answers, and by what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) route: RouteId,
    /// In place of the route's own.
    pub(crate) threshold: Option<Threshold>,
    /// Requests of different salts share no cached pages, so that no run profits from one before it.
    pub(crate) salt: u64,
    pub(crate) concurrency: usize,
}

/// One answer.
pub(crate) struct Answer {
    /// Token ids, the end included.
    pub(crate) tokens: Vec<u32>,
    /// Who wrote each.
    pub(crate) writers: Vec<u8>,
    pub(crate) usage: Usage,
    /// From the submission to the end.
    pub(crate) seconds: f64,
}

/// All answers, in the order of the prompts.
pub(crate) struct Batch {
    pub(crate) answers: Vec<Answer>,
    /// From the first submission to the last end.
    pub(crate) seconds: f64,
}

/// An answer under way.
struct Open {
    started: Instant,
    tokens: Vec<u32>,
    writers: Vec<u8>,
}

/// Answers every prompt; `tick` hears how many are done. Prompt `i` has seed `i`.
///
/// # Errors
/// When a request is refused or fails, with the number of its prompt.
pub(crate) fn drive(
    deployment: &Deployment,
    prompts: &[Prompt],
    how: How,
    tick: &mut dyn FnMut(usize),
) -> Result<Batch, String> {
    let started = Instant::now();
    let mut open: Vec<Option<Open>> = prompts.iter().map(|_| None).collect();
    let mut answers: Vec<Option<Answer>> = prompts.iter().map(|_| None).collect();
    let (mut sent, mut done) = (0, 0);
    tick(0);
    while done < prompts.len() {
        while sent < prompts.len() && sent - done < how.concurrency {
            let command = Command::Submit(Box::new(request(&prompts[sent], sent, how)));
            deployment.engine.send(command).map_err(|_| "the engine has ended")?;
            open[sent] = Some(Open { started: Instant::now(), tokens: Vec::new(), writers: Vec::new() });
            sent += 1;
        }
        let report = deployment.engine.wait_report().ok_or("the engine has ended")?;
        for event in report.events {
            match event {
                ClientEvent::Token { client, token, model, .. } => {
                    if let Some(open) = open.get_mut(client as usize).and_then(Option::as_mut) {
                        open.tokens.push(token);
                        open.writers.push(model);
                    }
                }
                ClientEvent::Finished { client, reason, usage } => {
                    if let FinishReason::Failed(why) = reason {
                        return Err(format!("prompt {client}: {why}"));
                    }
                    let Some(open) = open.get_mut(client as usize).and_then(Option::take) else { continue };
                    let Open { started, tokens, writers } = open;
                    let seconds = started.elapsed().as_secs_f64();
                    answers[client as usize] = Some(Answer { tokens, writers, usage, seconds });
                    done += 1;
                    tick(done);
                }
                ClientEvent::Prompt { .. } => {}
                ClientEvent::Refused { client, error } => return Err(format!("prompt {client}: {error}")),
            }
        }
    }
    Ok(Batch { answers: answers.into_iter().flatten().collect(), seconds: started.elapsed().as_secs_f64() })
}

fn request(prompt: &Prompt, index: usize, how: How) -> EngineRequest {
    EngineRequest {
        client: index as u64,
        route: how.route,
        threshold: how.threshold,
        query_score: prompt.score,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        seed: index as u64,
        cache_salt: Some(how.salt),
        ..EngineRequest::new(prompt.ids.clone(), prompt.max_new_tokens)
    }
}

/// Ends the engine and waits for it.
pub(crate) fn stop(deployment: &Deployment) {
    let _ = deployment.engine.send(Command::Shutdown);
    while deployment.engine.wait_report().is_some() {}
}
