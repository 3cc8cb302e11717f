//! What the end-to-end tests share: the real binary on free loopback ports, and a plain HTTP client.
//! Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub, reason = "every test binary compiles this module and uses a part of it")]

pub mod asking;
pub mod browser;
pub mod dtmc;
pub mod engine;
pub mod faulty;
pub mod heads;
pub mod http;
pub mod metrics;
pub mod process;
pub mod reference;
pub mod scripted;
pub mod story;
pub mod tokenizers;

use std::path::PathBuf;

use serde_json::Value;

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Random tiny models in `tests/golden`, with logits of transformers (`tests/golden/README.md`).
pub const GOLDEN_MODELS: [&str; 10] = [
    "qwen3-tied",
    "qwen3-untied-sharded",
    "qwen3-yarn",
    "qwen3-yarn-factors",
    "qwen2-mha-tied",
    "qwen2-f16",
    "llama-gqa8-llama3",
    "llama-linear",
    "llama-bias-f32",
    "llama-odd",
];

/// One problem of the demo language.
pub struct Problem {
    /// The question.
    pub prompt: String,
    /// The exact answer.
    pub answer: String,
}

/// The first `count` problems of the demo pair's evaluation set.
pub fn problems(count: usize) -> Vec<Problem> {
    let path = root().join("models/demo/eval.jsonl");
    let text = std::fs::read_to_string(path).expect("the evaluation set is in the repository");
    let problem = |line: &str| {
        let value: Value = serde_json::from_str(line).expect("a JSON line");
        Problem {
            prompt: value["prompt"].as_str().expect("prompt").to_owned(),
            answer: value["answer"].as_str().expect("answer").to_owned(),
        }
    };
    text.lines().take(count).map(problem).collect()
}

/// One case of `tests/golden/demo.json`: what transformers wrote, greedily.
pub struct GoldenCase {
    /// Its name.
    pub id: String,
    /// Token ids of the rendered question.
    pub prompt: Vec<u32>,
    /// Tokens of the small model alone, of the large one alone, and of the routed pair.
    pub answers: [Vec<u32>; 3],
    /// The writer of every token of the routed pair.
    pub writers: Vec<u8>,
    /// Handoffs of the routed pair.
    pub handoffs: u64,
    /// Tokens of the small model that were dropped.
    pub dropped: u64,
}

/// `tests/golden/demo.json`.
pub struct Golden {
    /// Its cases.
    pub cases: Vec<GoldenCase>,
    /// The threshold of the routed answers.
    pub threshold: f64,
    /// Most tokens of an answer.
    pub max_new_tokens: u32,
}

/// What transformers wrote for the demo pair.
pub fn golden() -> Golden {
    let text = std::fs::read_to_string(root().join("tests/golden/demo.json")).expect("the golden file");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
    };
    let case = |case: &Value| GoldenCase {
        id: case["id"].as_str().expect("a name").to_owned(),
        prompt: ids(&case["prompt_ids"]),
        answers: ["slm", "llm", "routed"].map(|name| ids(&case[name]["ids"])),
        writers: case["routed"]["writers"].as_str().expect("writers").bytes().map(|b| b - b'0').collect(),
        handoffs: case["routed"]["handoffs"].as_u64().expect("a number"),
        dropped: case["routed"]["dropped"].as_u64().expect("a number"),
    };
    let cases = golden["cases"].as_array().expect("cases").iter().map(case).collect();
    Golden {
        cases,
        threshold: golden["threshold"].as_f64().expect("a number"),
        max_new_tokens: golden["max_new_tokens"].as_u64().expect("a number") as u32,
    }
}

/// Token ids of a rendered question of the demo language: the first golden case.
pub fn golden_prompt() -> Vec<u32> {
    golden().cases.swap_remove(0).prompt
}

/// The text that the demo's chat template makes of one user message.
pub fn rendered(prompt: &str) -> String {
    format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n<think>\n")
}

/// Whether an answer of the demo language ends in the right number.
pub fn is_right(text: &str, answer: &str) -> bool {
    text.contains(&format!("The answer is {answer}."))
}

/// A test that cannot run says so in one line; where `TOKENROUTER_NO_SKIP` is set (CI), that is a failure.
pub fn skip(what: &str) {
    assert!(
        std::env::var_os("TOKENROUTER_NO_SKIP").is_none(),
        "skipped, and a skip is a failure here: {what}"
    );
    eprintln!("skipped: {what}");
}
