//! L15: the limit is exact on both endpoints, for members of different limits and with a handoff at the last position.

use serde_json::{Value, json};

use crate::support::http::{get, post};
use crate::support::process::ServerProcess;
use crate::support::scripted::{SURE, Script, UNSURE, pair_config};
use crate::support::tokenizers::{START, TestTokenizer, byte_bpe};

const LIMIT: usize = 64;

/// A pair that writes `a` and `b` in turn for ever; the small model doubts every other token.
fn endless(tokenizer: &TestTokenizer) -> ServerProcess {
    let [a, b] = ["a", "b"].map(|text| tokenizer.id(text));
    let [small, large] = [(LIMIT, UNSURE), (96, SURE)].map(|(context, doubt)| {
        let mut script = Script::new(tokenizer);
        script.context = context;
        for token in (0..tokenizer.vocab() as u32).filter(|token| *token != a) {
            script.say(token, a, SURE);
        }
        script.say(a, b, doubt);
        script.write("endless", tokenizer)
    });
    ServerProcess::start(&pair_config(&small, &large, "name = \"r-stitch\"\nthreshold = 0.03", ""))
}

#[test]
fn the_limit_was_off_by_one_or_printed_as_another_number() {
    let tokenizer = byte_bpe(&[b"ab"]);
    let server = endless(&tokenizer);
    assert_eq!(
        get(server.http, "/v1/models").json()["data"][0]["max_model_len"],
        LIMIT,
        "the smaller of both"
    );
    let start = tokenizer.control(START);
    for model in ["demo", "small", "large"] {
        for prompt in 62..=65 {
            for most in [Some(1), Some(2), None] {
                let z = tokenizer.id("z");
                let ids: Vec<u32> = std::iter::repeat_n(z, prompt - 1).chain([start]).collect();
                let text = "z".repeat(prompt - 1);
                let bodies = [
                    ("/v1/completions", json!({"prompt": ids})),
                    ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]})),
                ];
                for (path, mut body) in bodies {
                    body["model"] = json!(model);
                    body["temperature"] = json!(0);
                    if let Some(most) = most {
                        body["max_tokens"] = json!(most);
                    }
                    let answer = post(server.http, path, &body);
                    let what = format!("{model} {path} {prompt} and {most:?}: {}", answer.body);
                    if prompt < LIMIT && prompt + most.unwrap_or(1) <= LIMIT {
                        assert_eq!(answer.status, 200, "{what}");
                        let answer = answer.json();
                        let written = most.unwrap_or(LIMIT - prompt);
                        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{what}");
                        assert_eq!(answer["usage"]["prompt_tokens"], prompt, "{what}");
                        assert_eq!(answer["usage"]["completion_tokens"], written, "{what}");
                    } else {
                        assert_eq!(answer.status, 400, "{what}");
                        refused(&answer.json(), prompt, most);
                    }
                }
            }
        }
    }
    // The engine is as good as before, and both models write at the very end.
    let body = json!({"prompt": [start], "max_tokens": LIMIT - 1, "temperature": 0, "ignore_eos": true,
        "token_routing": {"return": "tokens"}});
    let answer = post(server.http, "/v1/completions", &body).json();
    let writers = answer["choices"][0]["token_routing"]["model_index"].as_array().expect("writers").clone();
    assert_eq!(writers.len(), LIMIT - 1, "{answer}");
    assert_ne!(writers[LIMIT - 2], writers[LIMIT - 3], "a handoff at the last position: {answer}");
    server.stop();
}

/// The code, and all three numbers as they are.
fn refused(answer: &Value, prompt: usize, most: Option<usize>) {
    let error = &answer["error"];
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let message = error["message"].as_str().expect("a message");
    let words: Vec<&str> = message.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty()).collect();
    let wanted = [Some(LIMIT), Some(prompt), most];
    assert!(wanted.iter().flatten().all(|n| words.contains(&n.to_string().as_str())), "{message}");
}
