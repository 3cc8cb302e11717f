//! L24: logits that are no numbers end the request that has them, and nobody else's.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::{Response, get, post};
use crate::support::process::ServerProcess;
use crate::support::scripted::{SURE, Script, UNSURE, pair_config};
use crate::support::tokenizers::{START, TestTokenizer, byte_bpe};

/// Both models write "a", "b", then a token behind which one of them has no numbers, and then go on. From "m" on they
/// write "mnmn..", which is nobody's poison.
fn serve(tokenizer: &TestTokenizer, by_large: bool) -> ServerProcess {
    let id = |text: &str| tokenizer.id(text);
    let [small, large] = [0, 1].map(|model| {
        let mut script = Script::new(tokenizer);
        script.chain(&[tokenizer.control(START), id("a"), id("b"), id("p"), id("c"), id("d")]);
        script.chain(&[id("m"), id("n"), id("m")]);
        if model == 0 && by_large {
            // What comes behind the poisoned token is asked of the large model.
            script.say(id("p"), id("c"), UNSURE);
        }
        if (model == 1) == by_large {
            script.poisoned = vec![id("p")];
        }
        script.say(id("d"), id("d"), SURE);
        script.write("poisoned", tokenizer)
    });
    ServerProcess::start(&pair_config(&small, &large, "name = \"r-stitch\"\nthreshold = 0.03", ""))
}

fn ask(server: &ServerProcess, token: u32, more: &Value) -> Response {
    let mut body = json!({"prompt": [token], "max_tokens": 40, "ignore_eos": true, "return_token_ids": true});
    for (key, value) in more.as_object().expect("fields") {
        body[key] = value.clone();
    }
    post(server.http, "/v1/completions", &body)
}

#[test]
fn a_request_without_numbers_failed_its_batch_or_wrote_token_zero() {
    let tokenizer = byte_bpe(&[]);
    let (start, m) = (tokenizer.control(START), tokenizer.id("m"));
    for by_large in [false, true] {
        let server = serve(&tokenizer, by_large);
        for temperature in [0.0, 1.0] {
            let fields = json!({"temperature": temperature, "seed": 5});
            let clean = ask(&server, m, &fields).json()["choices"][0]["token_ids"].clone();
            assert_eq!(clean.as_array().map(Vec::len), Some(40));
            for stream in [false, true] {
                let mut poisoned = fields.clone();
                poisoned["stream"] = json!(stream);
                let (bad, others) = std::thread::scope(|scope| {
                    let others: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&server, m, &fields))).collect();
                    let bad = scope.spawn(|| ask(&server, start, &poisoned)).join().expect("an answer");
                    (bad, others.into_iter().map(|o| o.join().expect("an answer")).collect::<Vec<_>>())
                });
                for other in others {
                    assert_eq!(other.json()["choices"][0]["token_ids"], clean, "a neighbour");
                }
                failed(&bad, stream);
            }
        }
        // Again: what failed is not found in the cache. Its pages are free.
        failed(&ask(&server, start, &json!({"temperature": 0})), false);
        let until = Instant::now() + Duration::from_secs(30);
        while let state = get(server.http, "/ready").json()
            && state["pages_free"] != state["pages_total"]
        {
            assert!(Instant::now() < until, "{state}");
        }
        let page = get(server.http, "/metrics").body;
        let errors = page.lines().find(|l| l.contains("request_success_total") && l.contains("\"error\""));
        assert!(errors.is_some_and(|l| l.ends_with(" 5")), "{errors:?}");
        server.stop();
    }
}

/// A clear failure; not a word that was not the model's.
fn failed(answer: &Response, stream: bool) {
    let error = if stream {
        assert_eq!(answer.status, 200, "{}", answer.body);
        let events = answer.events();
        let (error, before) = events.split_last().expect("events");
        let text: String = before.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, "abp", "{}", answer.body);
        error["error"].clone()
    } else {
        assert_eq!(answer.status, 500, "{}", answer.body);
        answer.json()["error"].clone()
    };
    assert_eq!(error["type"], "server_error", "{}", answer.body);
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{}", answer.body);
}
