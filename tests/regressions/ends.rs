//! L05: every place where a checkpoint declares an end-of-sequence token counts, whichever model writes it.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::http::post;
use crate::support::process::ServerProcess;
use crate::support::scripted::{SURE, Script, UNSURE, pair_config};
use crate::support::tokenizers::{END, OTHER, START, TestTokenizer, byte_bpe};

/// A model that writes "ab", then this token, and "zzz.." behind it. It doubts the end if `doubts`.
fn model(tokenizer: &TestTokenizer, end: u32, doubts: bool, edit: impl FnOnce(&mut Script)) -> PathBuf {
    let mut script = Script::new(tokenizer);
    let [a, b, z] = ["a", "b", "z"].map(|text| tokenizer.id(text));
    script.chain(&[tokenizer.control(START), a, b]);
    script.say(b, end, if doubts { UNSURE } else { SURE });
    script.chain(&[end, z]);
    script.say(z, z, SURE);
    edit(&mut script);
    script.write("ends", tokenizer)
}

fn ask(server: &ServerProcess, tokenizer: &TestTokenizer, more: &Value) -> Value {
    let mut body = json!({"prompt": [tokenizer.control(START)], "max_tokens": 12, "temperature": 0,
        "token_routing": {"return": "tokens"}, "return_token_ids": true});
    for (key, value) in more.as_object().expect("fields") {
        body[key] = value.clone();
    }
    let answer = post(server.http, "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0].clone()
}

#[test]
fn an_answer_ran_on_past_an_end_that_only_one_file_declares() {
    let tokenizer = byte_bpe(&[]);
    let [end, other] = [END, OTHER].map(|name| tokenizer.control(name));
    // The tokenizer always declares END. Where OTHER stands: in neither file, in one of both, in both.
    let places: [(Value, Option<Value>); 6] = [
        (json!(other), None),
        (json!(end), Some(json!({"eos_token_id": [end, other]}))),
        (json!([other, end]), Some(json!({"eos_token_id": other}))),
        (Value::Null, Some(json!({"eos_token_id": other}))),
        (json!(end), None),
        (Value::Null, Some(json!({"eos_token_id": null}))),
    ];
    for (config, generation) in places {
        let declared = [&config, &generation.clone().unwrap_or_default()["eos_token_id"]]
            .iter()
            .any(|v| **v == json!(other) || v.as_array().is_some_and(|l| l.contains(&json!(other))));
        for last in [end, other] {
            for by_large in [false, true] {
                // Only the small model's files say it, whoever writes it.
                let small = model(&tokenizer, last, by_large, |script| {
                    script.eos = config.clone();
                    script.generation = generation.clone();
                });
                let large = model(&tokenizer, last, false, |_| {});
                let text = pair_config(&small, &large, "name = \"r-stitch\"\nthreshold = 0.03", "");
                let server = ServerProcess::start(&text);
                let choice = ask(&server, &tokenizer, &json!({}));
                let what = format!("{config} {generation:?}, {last} by the large model {by_large}: {choice}");
                if last == end || declared {
                    assert_eq!(
                        (&choice["text"], &choice["finish_reason"]),
                        (&json!("ab"), &json!("stop")),
                        "{what}"
                    );
                    assert!(choice["stop_reason"].is_null(), "{what}");
                    let writer = choice["token_routing"]["model_index"][2].clone();
                    assert_eq!(writer, u8::from(by_large), "{what}");
                } else {
                    let run_on = json!("abzzzzzzzzz");
                    assert_eq!(
                        (&choice["text"], &choice["finish_reason"]),
                        (&run_on, &json!("length")),
                        "{what}"
                    );
                }
                server.stop();
            }
        }
    }
}

/// `ignore_eos` goes on behind it, `min_tokens` does not let it be drawn, and a stop id ends like it but says so.
#[test]
fn ends_can_be_ignored_put_off_and_added() {
    let tokenizer = byte_bpe(&[]);
    let end = tokenizer.control(END);
    let dir = model(&tokenizer, end, false, |_| {});
    let server = ServerProcess::start(&pair_config(&dir, &dir, "name = \"single\"\nmodel = \"small\"", ""));
    let choice = ask(&server, &tokenizer, &json!({"ignore_eos": true}));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abzzzzzzzzz"), &json!("length")));
    // The end has the largest logit, and id 0 the next: a byte that no character can begin with.
    let choice = ask(&server, &tokenizer, &json!({"min_tokens": 6}));
    assert_eq!(choice["token_ids"][2], 0, "{choice}");
    let b = tokenizer.id("b");
    let choice = ask(&server, &tokenizer, &json!({"stop_token_ids": [b]}));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(b)), "{choice}");
    server.stop();
}
