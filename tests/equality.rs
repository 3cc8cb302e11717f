//! The main promise: for a seed, the tokens over HTTP are those of the slow sequential reference loop, token for
//! token, at any concurrency, greedy and sampled, for every router.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::process::{ServerProcess, demo_config};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{http, problems, rendered};
use tokenrouter_engine::SamplingParams;

const PROMPTS: usize = 64;
const MAX_TOKENS: usize = 160;
const CONCURRENCY: [usize; 3] = [1, 4, 16];

/// How the tokens are drawn; the index of a prompt is part of its seed.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Greedy,
    Sampled,
}

impl Mode {
    fn fields(self, prompt: usize) -> Value {
        match self {
            Mode::Greedy => json!({"temperature": 0, "seed": 11 + prompt}),
            Mode::Sampled => json!({"temperature": 1.0, "top_p": 0.98, "seed": 11 + prompt}),
        }
    }

    fn params(self) -> SamplingParams {
        match self {
            Mode::Greedy => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            Mode::Sampled => SamplingParams { temperature: 1.0, top_p: 0.98, ..SamplingParams::default() },
        }
    }
}

/// One answer over HTTP.
struct Asked {
    /// Token ids of the prompt.
    prompt: Vec<u32>,
    /// Token ids of the answer, and the writer of each.
    answer: (Vec<u32>, Vec<u8>),
}

/// Asks for one answer.
fn ask(server: &ServerProcess, prompt: &str, fields: &Value) -> Asked {
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

/// All prompts over HTTP with this many clients at a time.
fn ask_all(server: &ServerProcess, prompts: &[String], mode: Mode, clients: usize) -> HashMap<usize, Asked> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut answers = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = prompts.get(i) else { return answers };
            answers.push((i, ask(server, prompt, &mode.fields(i))));
        }
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        handles.into_iter().flat_map(|h| h.join().expect("a client")).collect()
    })
}

fn check(router_section: &str, router: RefRouter) {
    let prompts: Vec<String> = problems(PROMPTS).iter().map(|p| rendered(&p.prompt)).collect();
    let server = ServerProcess::start(&demo_config(router_section, ""));
    let reference = Reference::demo();
    let recomputing = Reference { recompute: true, ..Reference::demo() };
    for mode in [Mode::Greedy, Mode::Sampled] {
        let mut expected: HashMap<usize, (Vec<u32>, Vec<u8>)> = HashMap::new();
        let mut by_peer = 0;
        let recomputed = match mode {
            Mode::Greedy => 0..2,
            Mode::Sampled => 2..4,
        };
        for clients in CONCURRENCY {
            let answers = ask_all(&server, &prompts, mode, clients);
            assert_eq!(answers.len(), PROMPTS);
            for (i, asked) in answers {
                let wanted = expected.entry(i).or_insert_with(|| {
                    let seed = 11 + i as u64;
                    let request = RefRequest {
                        prompt: &asked.prompt,
                        max_tokens: MAX_TOKENS,
                        sampling: mode.params(),
                        seed,
                        choice: 0,
                    };
                    let answer = reference.run(router, &request);
                    // Two prompts greedy and two sampled: every token from the whole prefix again.
                    if recomputed.contains(&i) {
                        assert_eq!(answer, recomputing.run(router, &request), "caches change nothing");
                    }
                    answer
                });
                let what = format!("{router:?} {mode:?} prompt {i} at concurrency {clients}");
                assert_eq!(&asked.answer, wanted, "{what}");
                by_peer += asked.answer.1.iter().filter(|w| **w == 1).count();
            }
        }
        assert!(by_peer > 0, "{router:?} {mode:?}: the large model wrote something");
    }
    server.stop();
}

#[test]
fn r_stitch_equals_the_reference() {
    check("name = \"r-stitch\"\nthreshold = 0.03", RefRouter::RStitch(0.03));
}

#[test]
fn fixed_equals_the_reference() {
    check("name = \"fixed\"\nfraction = 0.3", RefRouter::Fixed(0.3));
}

/// The member models answer under their own names, each as if it were alone.
#[test]
fn single_models_equal_the_reference() {
    let server = ServerProcess::start(&demo_config("name = \"single\"\nmodel = \"large\"", ""));
    let reference = Reference::demo();
    for (name, model) in [("small", 0), ("large", 1), ("demo", 1)] {
        for (i, problem) in problems(4).iter().enumerate() {
            let mut fields = Mode::Sampled.fields(i);
            fields["model"] = json!(name);
            let asked = ask(&server, &rendered(&problem.prompt), &fields);
            let request = RefRequest {
                prompt: &asked.prompt,
                max_tokens: MAX_TOKENS,
                sampling: Mode::Sampled.params(),
                seed: 11 + i as u64,
                choice: 0,
            };
            assert_eq!(asked.answer, reference.run(RefRouter::Single(model), &request), "{name} {i}");
        }
    }
    server.stop();
}
