//! The line protocol.

use super::answer::{Chain, answer, chain, play};
use crate::api::{ApiError, Sink, fixtures, parse_line};
use crate::text::fixtures as text;
use serde_json::{Value, json};
use tokenrouter_scheduler::FinishReason;

fn run(request: &Value, chains: &[(Chain, FinishReason)]) -> Vec<Value> {
    let context = fixtures::context(&text::byte_level());
    let (mut out, mut answer) = (Vec::new(), answer(&context, request, Sink::Lines(json!("r1"))));
    play(&mut answer, chains, &mut out);
    let lines = std::str::from_utf8(&out).unwrap();
    assert!(lines.ends_with('\n'));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_event_per_token_then_finish_then_done() {
    let mut tokens: Chain = "a😀x".bytes().map(|b| (u32::from(b), 0)).collect();
    tokens[5].1 = 1;
    tokens.push((264, 0));
    let request = json!({"prompt": [1], "stream": true, "stop": ["xy"], "return_token_ids": true});
    let events = run(&request, &[(tokens.clone(), FinishReason::Eos(264))]);
    assert_eq!(
        events[0],
        json!({"id": "r1", "event": "token", "choice": 0, "text": "a", "token": 97, "model": "small"})
    );
    let texts: Vec<_> = events[..7].iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "", "", "", "😀", "", ""]);
    assert_eq!(events[5]["model"], "large");
    let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    assert_eq!(
        events[7],
        json!({"id": "r1", "event": "finish", "choice": 0, "text": "x", "finish_reason": "stop", "stop_reason": null, "token_ids": ids})
    );
    assert_eq!((&events[8]["event"], &events[8]["usage"]["completion_tokens"]), (&json!("done"), &json!(7)));
    assert_eq!(events[8]["token_routing"]["routed_tokens"], 1);
    assert_eq!(events.len(), 9);
}

#[test]
fn without_streaming_the_finish_has_the_whole_text() {
    let model = text::byte_level();
    let chains =
        [(chain(&model, "hi abc"), FinishReason::Length), (chain(&model, "ab"), FinishReason::Length)];
    let events = run(&json!({"prompt": [1], "n": 2}), &chains);
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["finish", "finish", "done"]);
    let mut texts: Vec<_> =
        events[..2].iter().map(|e| (e["choice"].as_u64().unwrap(), e["text"].as_str().unwrap())).collect();
    texts.sort_unstable();
    assert_eq!(texts, [(0, "hi abc"), (1, "ab")]);
}

#[test]
fn errors_end_a_request_on_a_line_of_their_own() {
    let context = fixtures::context(&text::byte_level());
    let mut answer = answer(&context, &json!({"prompt": [1]}), Sink::Lines(json!(5)));
    let mut out = Vec::new();
    answer.on_error(ApiError::queue_full("full"), &mut out);
    assert!(out.ends_with(b"\n") && answer.is_done());
    let event: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        (&event["id"], &event["event"], &event["error"]["code"]),
        (&json!(5), &json!("error"), &json!("queue_full"))
    );
}

#[test]
fn lines_are_parsed_and_refused() {
    let demo = text::demo();
    let limits = fixtures::limits(&demo, 64);
    let parse = |line: &str| parse_line(line.as_bytes(), &limits, &demo);
    let good = parse(r#"{"id": 7, "prompt": "a"}"#).unwrap();
    assert!(good.id == json!(7) && good.request.stream);
    let good =
        parse(r#"{"id": "x", "messages": [{"role": "user", "content": "a"}], "stream": false}"#).unwrap();
    assert!(good.id == json!("x") && !good.request.stream);
    assert_eq!(parse(r#"{"prompt": "a"}"#).unwrap().id, Value::Null);
    for (line, param) in [
        (r#"{"id": 7, "prompt": ""}"#, Some("prompt")),
        (r#"{"id": "x", "messages": null}"#, Some("messages")),
        (r#"{"id": 1.5, "prompt": "a"}"#, Some("id")),
        (r#"{"id": [1], "prompt": "a"}"#, Some("id")),
        ("nonsense", None),
        ("", None),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!((error.param.as_deref(), error.status), (param, 400), "{line}");
    }
}
