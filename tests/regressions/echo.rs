//! L18: prompts are scored, each token under those before it, by the entry model; answers by whoever wrote the token.
//! Every value is the log-softmax of logits that the test has written.

use serde_json::{Value, json};

use crate::support::http::post;
use crate::support::process::ServerProcess;
use crate::support::scripted::{SURE, Script, pair_config};
use crate::support::tokenizers::{TestTokenizer, byte_bpe};

struct Rig {
    server: ServerProcess,
    tokenizer: TestTokenizer,
}

/// Logits of a model after a token: uneven, without equals, different for both models.
fn logits(model: usize, token: u32, vocab: usize) -> Vec<f32> {
    let noise = |next: usize| ((next * 7919 + token as usize * 104_729 + model * 31) % 4093) as f32 / 4093.0;
    (0..vocab).map(|next| 9.0 * noise(next).powi(4) + 0.001 * noise(next + 1)).collect()
}

fn rig() -> Rig {
    let tokenizer = byte_bpe(&[b"ab", b"\xf0\x9f", b"\x98\x80"]);
    let vocab = tokenizer.vocab();
    let [small, large] = [0, 1].map(|model| {
        let mut script = Script::new(&tokenizer);
        for token in 0..vocab as u32 {
            script.logits(token, &logits(model, token, vocab));
        }
        if model == 0 {
            // Behind "z" the small model is sure; everywhere else it is not.
            script.say(tokenizer.id("z"), tokenizer.id("y"), SURE);
        }
        script.write("scored", &tokenizer)
    });
    // Pages of 16 tokens and steps of 8: prompts are read in pieces, and found in the cache the second time.
    let config = pair_config(&small, &large, "name = \"r-stitch\"\nthreshold = 0.03", "");
    let config = config.replace("threads = 1", "threads = 1\nmax_batch = 8\nmax_step_tokens = 8");
    Rig { server: ServerProcess::start(&config), tokenizer }
}

impl Rig {
    /// Natural logarithms of the probabilities after a token.
    fn after(&self, model: usize, token: u32) -> Vec<f64> {
        let mut x = logits(model, token, self.tokenizer.vocab());
        if model == 0 && token == self.tokenizer.id("z") {
            x[self.tokenizer.id("y") as usize] = SURE;
        }
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = x.iter().map(|x| f64::from(x - most).exp()).sum();
        x.iter().map(|x| f64::from(*x) - f64::from(most) - sum.ln()).collect()
    }

    fn ask(&self, body: &Value) -> Value {
        let answer = post(self.server.http, "/v1/completions", body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        answer.json()["choices"][0].clone()
    }
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("{name} in {choice}"))
}

#[test]
fn the_prompt_was_not_scored_or_its_scores_were_shifted_by_one() {
    let rig = rig();
    let id = |text: &str| rig.tokenizer.id(text);
    let long: Vec<u32> = (0..70).map(|i| 33 + i * 5 % 90).collect();
    let prompts = [vec![5, 6, 7, 8], vec![id("a"), id("ab"), id("z")], vec![id("q")], long];
    for (model, members) in [("demo", [0, 1]), ("small", [0, 0]), ("large", [1, 1])] {
        for prompt in &prompts {
            for most in [0, 1, 3] {
                // Cold, then warm.
                for _ in 0..2 {
                    let body = json!({"model": model, "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": most,
                        "temperature": 0, "ignore_eos": true, "return_token_ids": true,
                        "token_routing": {"return": "tokens"}});
                    let choice = rig.ask(&body);
                    let written: Vec<u32> = choice["token_ids"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(|id| id.as_u64().expect("an id") as u32)
                        .collect();
                    assert_eq!(written.len(), most, "{choice}");
                    let writers = choice["token_routing"]["model_index"].clone();
                    let all: Vec<u32> = prompt.iter().chain(&written).copied().collect();
                    let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
                    for name in lists {
                        assert_eq!(list(&choice, name).len(), all.len(), "{name} in {choice}");
                    }
                    assert!(list(&choice, "token_logprobs")[0].is_null(), "{choice}");
                    for at in 1..all.len() {
                        let writer = match at.checked_sub(prompt.len()) {
                            None => members[0],
                            Some(answer) => writers[answer].as_u64().expect("a writer") as usize,
                        };
                        assert!(members.contains(&writer), "{choice}");
                        let truth = rig.after(writer, all[at - 1]);
                        let got = list(&choice, "token_logprobs")[at].as_f64().expect("a number");
                        let wanted = truth[all[at] as usize];
                        assert!(
                            (got - wanted).abs() < 2e-5 * (1.0 + wanted.abs()),
                            "{at} of {all:?}: {got}, {wanted}"
                        );
                        let top = list(&choice, "top_logprobs")[at].as_object().expect("a map");
                        let mut best = truth.clone();
                        best.sort_by(|a, b| b.total_cmp(a));
                        let values: Vec<f64> = top.values().map(|v| v.as_f64().expect("a number")).collect();
                        assert!((2..=3).contains(&values.len()), "{top:?}");
                        for (got, wanted) in values.iter().zip(&best[..2]) {
                            assert!(
                                (got - wanted).abs() < 2e-5 * (1.0 + wanted.abs()),
                                "{top:?} and {best:?}"
                            );
                        }
                    }
                    let offsets: Vec<u64> =
                        list(&choice, "text_offset").iter().map(|o| o.as_u64().expect("a place")).collect();
                    assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
                    let text = choice["text"].as_str().expect("a text");
                    assert_eq!(text, rig.tokenizer.text(&all), "the prompt stands in front of the answer");
                }
            }
        }
    }
    rig.server.stop();
}

/// What likelihood tasks do: a context, then a continuation; the sum over the continuation is that of two calls.
#[test]
fn a_continuation_has_the_score_of_two_separate_calls() {
    let rig = rig();
    let (context, more) = (vec![40, 50, 60, 45, 55], vec![70, 42, 99]);
    let scores = |prompt: &[u32]| -> Vec<f64> {
        let body = json!({"model": "small", "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 0});
        let choice = rig.ask(&body);
        list(&choice, "token_logprobs").iter().skip(1).map(|v| v.as_f64().expect("a number")).collect()
    };
    let whole: Vec<u32> = context.iter().chain(&more).copied().collect();
    let (all, first) = (scores(&whole), scores(&context));
    assert_eq!(all[..first.len()], first[..], "what comes behind changes no score");
    let sum: f64 = all[first.len()..].iter().sum();
    let truth: f64 = whole[context.len() - 1..].windows(2).map(|w| rig.after(0, w[0])[w[1] as usize]).sum();
    assert!((sum - truth).abs() < 1e-4, "{sum} and {truth}");
    rig.server.stop();
}
