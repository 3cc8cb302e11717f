//! The demo pair in this process: an engine without sockets.

use std::collections::{BTreeMap, HashMap};

use tokenrouter_engine::budget::BudgetError;
use tokenrouter_engine::{
    ClientEvent, Command, DType, DeviceKind, EngineConfig, EngineError, EngineHandle, EngineModel,
    EngineRequest, FaultOptions, RouteConfig, SamplingParams, TokenLogprobs, WeightForm,
};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{FinishReason, Handoff, Policy, RouteId, Usage};

use super::root;

/// The demo pair with the given routes.
pub fn demo_config(routes: Vec<RouteConfig>) -> EngineConfig {
    let model = |name: &str, dir: &str| EngineModel {
        weights: WeightForm::Stored,
        name: name.into(),
        dir: root().join("models/demo").join(dir),
        devices: vec![0],
        threads: 1,
        max_batch_rows: 32,
        max_step_tokens: 256,
        heads: Vec::new(),
    };
    EngineConfig {
        models: vec![model("small", "slm"), model("large", "llm")],
        routes,
        device: DeviceKind::Cpu,
        budget_bytes: 64 << 20,
        kv_dtype: DType::F16,
        context_len: 0,
        prefix_cache: true,
        reserve_pages: 8,
        max_running: 64,
        max_waiting: 256,
        real_vocab: 455,
        eos_ids: Vec::new(),
        policy: Policy::default(),
        handoff: Handoff::default(),
        planner: None,
        faults: FaultOptions::default(),
    }
}

/// A route with one parameter.
pub fn route(name: &str, router: &str, key: &str, value: ParamValue) -> RouteConfig {
    RouteConfig { name: name.into(), router: router.into(), params: BTreeMap::from([(key.into(), value)]) }
}

/// Starts it.
pub fn start(config: &EngineConfig, registry: &Registry) -> EngineHandle {
    tokenrouter_engine::start(config, registry, Box::new(|| ())).expect("the demo pair starts")
}

/// A greedy request.
pub fn request(client: u64, prompt: &[u32], route: u16, max_new_tokens: u32) -> EngineRequest {
    EngineRequest {
        client,
        route: RouteId(route),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ..EngineRequest::new(prompt.to_vec(), max_new_tokens)
    }
}

/// One finished answer.
#[derive(Debug)]
pub struct Outcome {
    /// Token ids, the end included.
    pub tokens: Vec<u32>,
    /// The writer of each.
    pub writers: Vec<u8>,
    /// What the writer said about each, of a request that asks.
    pub logprobs: Vec<TokenLogprobs>,
    /// What was said about the tokens of the prompt but the first, of a request that asks.
    pub prompt: Vec<TokenLogprobs>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Its account.
    pub usage: Usage,
}

#[derive(Default)]
struct Written {
    tokens: Vec<u32>,
    writers: Vec<u8>,
    logprobs: Vec<TokenLogprobs>,
    prompt: Vec<TokenLogprobs>,
}

/// Submits all requests at once and waits for every answer.
pub fn run_all(engine: &EngineHandle, requests: Vec<EngineRequest>) -> HashMap<u64, Outcome> {
    let count = requests.len();
    for request in requests {
        engine.send(Command::Submit(Box::new(request))).expect("the engine runs");
    }
    answers(engine, count)
}

/// Takes the answers of `count` requests that were sent before.
pub fn answers(engine: &EngineHandle, count: usize) -> HashMap<u64, Outcome> {
    let mut written: HashMap<u64, Written> = HashMap::new();
    let mut done = HashMap::new();
    while done.len() < count {
        let report = engine.wait_report().expect("the engine runs");
        for event in report.events {
            match event {
                ClientEvent::Prompt { client, start, scores } => {
                    let written = written.entry(client).or_default();
                    assert_eq!(written.prompt.len() + 1, start, "parts of a prompt follow on each other");
                    assert!(written.tokens.is_empty(), "a prompt is scored before the answer");
                    written.prompt.extend(scores);
                }
                ClientEvent::Token { client, token, model, logprobs } => {
                    assert!(!done.contains_key(&client), "a token after the end");
                    let written = written.entry(client).or_default();
                    written.tokens.push(token);
                    written.writers.push(model);
                    written.logprobs.extend(logprobs.map(|boxed| *boxed));
                }
                ClientEvent::Finished { client, reason, usage } => {
                    let Written { tokens, writers, logprobs, prompt } =
                        written.remove(&client).unwrap_or_default();
                    let outcome = Outcome { tokens, writers, logprobs, prompt, reason, usage };
                    assert!(done.insert(client, outcome).is_none(), "{client} ends twice");
                }
                ClientEvent::Refused { client, error } => panic!("request {client} was refused: {error}"),
            }
        }
    }
    done
}

/// Ends the engine.
pub fn stop(engine: &EngineHandle) {
    let _ = engine.send(Command::Shutdown);
    while engine.wait_report().is_some() {}
}

/// The smallest budget with which the models start.
pub fn smallest(mut config: EngineConfig) -> EngineConfig {
    config.budget_bytes = 1;
    let refused = tokenrouter_engine::start(&config, &Registry::builtin(), Box::new(|| ()));
    match refused.err() {
        Some(EngineError::Budget(BudgetError::TooSmall { needed_bytes, .. })) => {
            config.budget_bytes = needed_bytes;
        }
        other => panic!("{other:?}"),
    }
    config
}
