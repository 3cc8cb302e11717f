//! L19: the chunks of a stream with several choices, with and without usage.

use serde_json::{Value, json};

use crate::support::http::post;
use crate::support::process::ServerProcess;
use crate::support::scripted::{SURE, Script, pair_config};
use crate::support::tokenizers::{END, START, TestTokenizer, byte_bpe};

/// After the start one of three tokens, equally likely: `a` leads to an end after three tokens, `b` to a stop id after
/// five, and `c` never ends.
fn serve(tokenizer: &TestTokenizer) -> ServerProcess {
    let mut script = Script::new(tokenizer);
    let id = |text: &str| tokenizer.id(text);
    for first in ["a", "b", "c"] {
        script.say(tokenizer.control(START), id(first), SURE);
    }
    script.chain(&[id("a"), id("d"), tokenizer.control(END)]);
    script.chain(&[id("b"), id("e"), id("f"), id("g"), id("h")]);
    script.chain(&[id("c"), id("x"), id("c")]);
    let dir = script.write("three", tokenizer);
    ServerProcess::start(&pair_config(&dir, &dir, "name = \"single\"\nmodel = \"small\"", ""))
}

#[test]
fn every_choice_ends_once_and_usage_comes_last_and_only_on_demand() {
    let tokenizer = byte_bpe(&[]);
    let server = serve(&tokenizer);
    let mut body = json!({"prompt": [tokenizer.control(START)], "max_tokens": 9, "temperature": 1, "n": 3,
        "stop_token_ids": [tokenizer.id("h")]});
    // A seed under which the three choices end in all three ways.
    let whole = (0..200).map(|seed| {
        body["seed"] = json!(seed);
        let answer = post(server.http, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    });
    let firsts = |answer: &Value| -> Vec<String> {
        let texts = answer["choices"].as_array().expect("choices").iter();
        let mut firsts: Vec<String> =
            texts.map(|c| c["text"].as_str().expect("a text")[..1].into()).collect();
        firsts.sort();
        firsts
    };
    let mut whole = whole.into_iter();
    let whole = whole.find(|answer| firsts(answer) == ["a", "b", "c"]).expect("a seed");
    let ends = |choice: &Value| (choice["finish_reason"].clone(), choice["stop_reason"].clone());
    for choice in whole["choices"].as_array().expect("choices") {
        let wanted = match &choice["text"].as_str().expect("a text")[..1] {
            "a" => (json!("stop"), Value::Null),
            "b" => (json!("stop"), json!(tokenizer.id("h"))),
            _ => (json!("length"), Value::Null),
        };
        assert_eq!(ends(choice), wanted, "{choice}");
    }
    assert_eq!(whole["usage"]["prompt_tokens"], 1, "once for all choices");

    body["stream"] = json!(true);
    for options in [
        Value::Null,
        json!({}),
        json!({"include_usage": false}),
        json!({"include_usage": true}),
        json!({"include_usage": true, "continuous_usage_stats": true}),
        json!({"continuous_usage_stats": true}),
    ] {
        body["stream_options"] = options.clone();
        let answer = post(server.http, "/v1/completions", &body);
        let mut events = answer.events();
        if options["include_usage"] == true {
            let last = events.pop().expect("usage");
            assert_eq!(last["choices"], json!([]), "{options}");
            assert_eq!(last["usage"], whole["usage"], "{options}");
        }
        let mut texts = [const { String::new() }; 3];
        let mut finished = [const { Vec::new() }; 3];
        for event in &events {
            // As naive clients do it.
            let choice = &event["choices"][0];
            let index = choice["index"].as_u64().expect("an index") as usize;
            assert!(finished[index].is_empty(), "a chunk behind the end: {}", answer.body);
            texts[index].push_str(choice["text"].as_str().expect("a text"));
            if !choice["finish_reason"].is_null() {
                finished[index].push(ends(choice));
            }
            for field in ["id", "created", "model"] {
                assert_eq!(event[field], events[0][field], "{field}");
            }
            let continuous = options["continuous_usage_stats"] == true && options["include_usage"] == true;
            assert_eq!(event["usage"].is_object(), continuous, "{options}: {event}");
        }
        for (index, choice) in whole["choices"].as_array().expect("choices").iter().enumerate() {
            assert_eq!(texts[index], choice["text"].as_str().expect("a text"), "{options}");
            assert_eq!(finished[index], [ends(choice)], "{options}");
        }
    }
    server.stop();
}
