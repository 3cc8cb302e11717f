//! `tokenrouter generate`: one answer in this process, no sockets.

use std::io::IsTerminal;

use serde_json::json;
use tokenrouter_engine::{ClientEvent, Command, EngineRequest, SamplingParams};
use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::{FinishReason, RouteId, Threshold, Usage};

use crate::cli::GenerateArgs;
use crate::config::{Config, DeviceName};
use crate::demo;
use crate::deploy::{self, Deployment};
use crate::paint::{Painter, emit};
use crate::text::{ChatOptions, Detokenizer};

const CLIENT: u64 = 1;

/// Loads the models, answers the prompt, prints the answer with its writers' colours and a summary.
///
/// # Errors
/// One line that says what is wrong.
pub fn run(args: &GenerateArgs, device: Option<DeviceName>, registry: &Registry) -> Result<(), String> {
    let mut config = match &args.config {
        Some(path) => Config::load_with(Some(path), &args.set.clone().into())?,
        None => demo::config_with(None, &args.set.clone().into())?,
    };
    config.on_device(device)?;
    let deployment = deploy::start(&config, registry, Box::new(|| ()))?;
    let request = build_request(args, &deployment)?;
    deployment.engine.send(Command::Submit(Box::new(request))).map_err(|_| "the engine has ended")?;
    let outcome = print_answer(&deployment);
    let _ = deployment.engine.send(Command::Shutdown);
    while deployment.engine.wait_report().is_some() {}
    outcome
}

fn build_request(args: &GenerateArgs, deployment: &Deployment) -> Result<EngineRequest, String> {
    let text = &deployment.text;
    let info = &deployment.engine.info;
    let prompt = if args.chat {
        let messages = json!([{"role": "user", "content": args.prompt}]);
        let rendered = text.chat_prompt(&messages, &ChatOptions::default()).map_err(|e| e.to_string())?;
        text.encode_rendered(&rendered)
    } else {
        text.encode_prompt(&args.prompt, true)
    };
    let prompt = prompt.map_err(|e| e.to_string())?;
    let room = info.context_len.saturating_sub(prompt.len()) as u32;
    if room == 0 {
        let (most, is) = (info.context_len, prompt.len());
        return Err(format!("the prompt has {is} tokens; at most {most} are possible, the answer included"));
    }
    if !args.temperature.is_finite() || args.temperature < 0.0 {
        return Err(format!("--temperature is {}; it must be 0 or more", args.temperature));
    }
    Ok(EngineRequest {
        client: CLIENT,
        route: route(args.model.as_deref(), &deployment.limits.routes)?,
        threshold: args.threshold.as_deref().map(threshold).transpose()?,
        sampling: SamplingParams { temperature: args.temperature, ..SamplingParams::default() },
        seed: args.seed,
        ..EngineRequest::new(prompt, args.max_tokens.min(room))
    })
}

fn route(name: Option<&str>, routes: &[String]) -> Result<RouteId, String> {
    let Some(name) = name else { return Ok(RouteId(0)) };
    let found = routes.iter().position(|r| r == name);
    let index = found.ok_or_else(|| format!("--model is \"{name}\"; known: {}", routes.join(", ")))?;
    Ok(RouteId(index as u16))
}

fn threshold(text: &str) -> Result<Threshold, String> {
    text.parse().map_err(|e| format!("--threshold: {e}"))
}

fn print_answer(deployment: &Deployment) -> Result<(), String> {
    let names: Vec<&str> = deployment.engine.info.models.iter().map(|m| m.name.as_str()).collect();
    let mut painter = Painter::new(std::io::stdout().is_terminal());
    let mut detokenizer = Detokenizer::new(deployment.text.clone(), true);
    let mut piece = String::new();
    while let Some(report) = deployment.engine.wait_report() {
        for event in report.events {
            match event {
                ClientEvent::Token { token, model, .. } => {
                    detokenizer.push(token, &mut piece);
                    emit(&painter.piece(usize::from(model), &piece))?;
                    piece.clear();
                }
                ClientEvent::Finished { reason, usage, .. } => {
                    detokenizer.finish(&mut piece);
                    emit(&format!("{piece}{}\n", painter.end()))?;
                    if let FinishReason::Failed(why) = reason {
                        return Err(why.to_string());
                    }
                    return emit(&summary(&painter, &names, &usage));
                }
                ClientEvent::Prompt { .. } => {}
                ClientEvent::Refused { error, .. } => return Err(error.to_string()),
            }
        }
    }
    Err("the engine ended before the answer did".into())
}

/// Two lines: who wrote how much, and how often control moved.
fn summary(painter: &Painter, names: &[&str], usage: &Usage) -> String {
    painter.summary(names, &usage.committed[..names.len()], &usage.discarded[..names.len()], usage.handoffs)
}
