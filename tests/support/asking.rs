//! Asking the running server and getting token ids and writers back, one prompt or many at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokenrouter_engine::SamplingParams;

use super::http;
use super::process::ServerProcess;

/// Most tokens of an answer.
pub const MAX_TOKENS: usize = 160;

/// How the tokens are drawn; the index of a prompt is part of its seed.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// The best token.
    Greedy,
    /// Temperature 1, nucleus 0.98.
    Sampled,
}

impl Mode {
    /// The fields of the request body.
    pub fn fields(self, prompt: usize) -> Value {
        match self {
            Mode::Greedy => json!({"temperature": 0, "seed": 11 + prompt}),
            Mode::Sampled => json!({"temperature": 1.0, "top_p": 0.98, "seed": 11 + prompt}),
        }
    }

    /// The same for the reference loop.
    pub fn params(self) -> SamplingParams {
        match self {
            Mode::Greedy => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            Mode::Sampled => SamplingParams { temperature: 1.0, top_p: 0.98, ..SamplingParams::default() },
        }
    }
}

/// One answer over HTTP.
pub struct Asked {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the answer, and the writer of each.
    pub answer: (Vec<u32>, Vec<u8>),
}

/// Asks for one answer.
pub fn ask(server: &ServerProcess, prompt: &str, fields: &Value) -> Asked {
    let mut body = json!({
        "prompt": prompt, "max_tokens": MAX_TOKENS, "return_token_ids": true,
        "token_routing": {"return": "tokens"},
    });
    for (key, value) in fields.as_object().expect("fields") {
        body[key.as_str()] = value.clone();
    }
    let response = http::post(server.http, "/v1/completions", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let answer = response.json();
    let choice = &answer["choices"][0];
    let list = |v: &Value| -> Vec<u32> {
        let items = v.as_array().unwrap_or_else(|| panic!("a list in {}", response.body));
        items.iter().map(|n| n.as_u64().expect("a number") as u32).collect()
    };
    let prompt_ids = if answer["prompt_token_ids"].is_array() {
        list(&answer["prompt_token_ids"])
    } else {
        list(&choice["prompt_token_ids"])
    };
    let writers = list(&choice["token_routing"]["model_index"]).iter().map(|m| *m as u8).collect();
    Asked { prompt: prompt_ids, answer: (list(&choice["token_ids"]), writers) }
}

/// All prompts over HTTP with this many clients at a time; `fields` gives the other fields of a prompt's request.
pub fn ask_all(
    server: &ServerProcess,
    prompts: &[String],
    clients: usize,
    fields: impl Fn(usize) -> Value + Sync,
) -> HashMap<usize, Asked> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut answers = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = prompts.get(i) else { return answers };
            answers.push((i, ask(server, prompt, &fields(i))));
        }
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        handles.into_iter().flat_map(|h| h.join().expect("a client")).collect()
    })
}
