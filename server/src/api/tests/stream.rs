//! Streams: framing, and equality with the plain answer.

use super::answer::{Chain, answer, body, chain, play};
use crate::api::{AnswerContext, ApiError, Sink, fixtures};
use crate::text::fixtures::{self as text, Random};
use serde_json::{Value, json};
use std::sync::Arc;
use tokenrouter_scheduler::FinishReason;

/// The events of a stream, the closing one taken off.
pub(super) fn events(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let mut events: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(events.pop(), Some(""), "the stream ends with an empty line");
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let json = |event: &&str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
    events.iter().map(json).collect()
}

fn stream(context: &Arc<AnswerContext>, request: &Value, chains: &[(Chain, FinishReason)]) -> Vec<Value> {
    let mut request = request.clone();
    request["stream"] = true.into();
    let (mut out, mut answer) = (Vec::new(), answer(context, &request, Sink::Http));
    play(&mut answer, chains, &mut out);
    assert!(answer.is_done());
    events(&out)
}

fn text_of(choice: &Value) -> &str {
    choice.get("text").or_else(|| choice["delta"].get("content")).and_then(Value::as_str).unwrap_or("")
}

#[test]
fn a_chat_stream_in_the_order_clients_expect() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let mut tokens = chain(&model, "1+1=2");
    tokens.push((452, 0));
    let events = stream(
        &context,
        &json!({"messages": [{"role": "user", "content": "a"}]}),
        &[(tokens, FinishReason::Eos(452))],
    );
    let first = &events[0];
    assert_eq!(
        first,
        &json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "org/pair",
            "system_fingerprint": "fp_test", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "1"},
            "logprobs": null, "finish_reason": null, "stop_reason": null}]})
    );
    assert_eq!(events[1]["choices"][0]["delta"], json!({"content": "+"}));
    let last = events.last().unwrap();
    assert_eq!(
        (&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]),
        (&json!({}), &json!("stop"))
    );
    assert!(events.iter().all(|event| event.get("usage").is_none() && event.get("token_routing").is_none()));
    assert_eq!(events.len(), 6);
}

#[test]
fn an_answer_without_text_still_has_a_role_and_a_finish() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let chains = [(vec![(452, 0)], FinishReason::Eos(452))];
    let events = stream(&context, &json!({"messages": [{"role": "user", "content": "a"}]}), &chains);
    let deltas: Vec<_> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas, [&json!({"role": "assistant", "content": ""}), &json!({})]);
    let events = stream(&context, &json!({"prompt": [1], "return_token_ids": true}), &chains);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["choices"][0]["token_ids"], json!([452]));
}

#[test]
fn usage_comes_last_and_only_on_demand() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let chains = [(chain(&model, "12"), FinishReason::Length), (chain(&model, "345"), FinishReason::Length)];
    let run = |options: Value| {
        stream(
            &context,
            &json!({"prompt": [1], "n": 2, "stream_options": options,
        "token_routing": {"return": "summary"}}),
            &chains,
        )
    };
    let events = run(json!({"include_usage": true}));
    let (last, before) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
    assert_eq!(last["token_routing"]["algorithm"], "r-stitch");
    assert!(before.iter().all(|event| event["usage"].is_null() && event.get("token_routing").is_none()));
    assert!(before.iter().all(|event| event.as_object().unwrap().contains_key("usage")));
    let events = run(json!({"include_usage": true, "continuous_usage_stats": true}));
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && counts[0] == 1 && counts.last() == Some(&5), "{counts:?}");
    let events = run(json!({"continuous_usage_stats": true}));
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let carriers: Vec<_> = events.iter().filter(|event| event.get("token_routing").is_some()).collect();
    assert_eq!(carriers.len(), 1);
    assert_eq!(events.last(), carriers.first().copied());
}

#[test]
fn an_error_ends_the_stream_properly() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let mut answer = answer(&context, &json!({"prompt": [1], "stream": true}), Sink::Http);
    let mut out = Vec::new();
    answer.on_token(0, chain(&model, "1")[0].0, 0, None, &mut out);
    answer.on_error(ApiError::unavailable("draining", "the server is shutting down"), &mut out);
    let events = events(&out);
    assert_eq!(
        events[1],
        json!({"error": {"message": "the server is shutting down", "type": "server_error",
        "param": null, "code": "draining"}})
    );
    assert!(events.len() == 2 && answer.is_done());
}

#[test]
fn every_event_is_one_line_whatever_the_text() {
    let model = text::byte_level();
    let context = fixtures::context(&model);
    let content = "a\u{2028}b\u{85}c\nd\r\u{2029}";
    let tokens: Chain = content.bytes().map(|b| (u32::from(b), 0)).collect();
    let mut answer = answer(&context, &json!({"prompt": [1], "stream": true}), Sink::Http);
    let mut out = Vec::new();
    play(&mut answer, &[(tokens, FinishReason::Length)], &mut out);
    let raw = std::str::from_utf8(&out).unwrap();
    assert!(!raw.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r']));
    let joined: String = events(&out).iter().map(|event| text_of(&event["choices"][0]).to_owned()).collect();
    assert_eq!(joined, content);
}

/// For random chains, stops, lengths and flags: the pieces of a stream put together are the plain answer.
#[test]
fn a_stream_adds_up_to_the_plain_answer() {
    let mut random = Random(6);
    for model in [text::byte_level(), text::metaspace()] {
        let context = fixtures::context(&model);
        let eos = model.eos_ids()[0];
        for _ in 0..600 {
            let n = 1 + random.below(3);
            let stops: Vec<&str> = ["ab", "bc a", "é", "\u{fffd}", "I am", "<think>"]
                .into_iter()
                .filter(|_| random.below(4) == 0)
                .collect();
            let kind = if random.below(2) == 0 { json!({"prompt": [1]}) } else { json!({"prompt": "hi"}) };
            let mut request = kind;
            for (name, value) in [
                ("n", json!(n)),
                ("stop", json!(stops)),
                ("include_stop_str_in_output", json!(random.below(2) == 0)),
                ("skip_special_tokens", json!(random.below(2) == 0)),
                ("min_tokens", json!(random.below(3))),
                ("return_token_ids", json!(true)),
                ("token_routing", json!({"return": "tokens"})),
            ] {
                request[name] = value;
            }
            let samples = ["ab", "bc", " a", "é", "😀", "I am", "<think>"];
            let chains: Vec<(Chain, FinishReason)> = (0..n)
                .map(|_| {
                    let mut ids = Vec::new();
                    for _ in 0..1 + random.below(6) {
                        match random.below(3) {
                            0 => ids.push(random.below(model.real_vocab() + 3) as u32),
                            _ => {
                                ids.extend(model.encode(samples[random.below(samples.len())], false).unwrap())
                            }
                        }
                    }
                    ids.retain(|&id| id != eos);
                    let at_end = random.below(2) == 0;
                    ids.extend(at_end.then_some(eos));
                    let reason =
                        if at_end && ids.len() > 2 { FinishReason::Eos(eos) } else { FinishReason::Length };
                    (ids.into_iter().map(|id| (id, random.below(2) as u8)).collect(), reason)
                })
                .collect();
            compare(&context, &request, &chains);
        }
    }
}

fn compare(context: &Arc<AnswerContext>, request: &Value, chains: &[(Chain, FinishReason)]) {
    let plain = body(context, request, chains);
    let mut with_usage = request.clone();
    with_usage["stream_options"] = json!({"include_usage": true});
    let events = stream(context, &with_usage, chains);
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!((&last["usage"], &last["token_routing"]), (&plain["usage"], &plain["token_routing"]));
    for (index, choice) in plain["choices"].as_array().unwrap().iter().enumerate() {
        let mine: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index).collect();
        let text: String = mine.iter().map(|c| text_of(c)).collect();
        assert_eq!(text, choice["text"].as_str().unwrap(), "{request} {chains:?}");
        let join = |get: &dyn Fn(&Value) -> Value| -> Vec<Value> {
            mine.iter().flat_map(|c| get(c).as_array().unwrap().clone()).collect()
        };
        assert_eq!(Value::from(join(&|c| c["token_ids"].clone())), choice["token_ids"]);
        let models = join(&|c| c["token_routing"]["model_index"].clone());
        assert_eq!(Value::from(models), choice["token_routing"]["model_index"]);
        let (end, before) = mine.split_last().unwrap();
        assert!(before.iter().all(|c| c["finish_reason"].is_null() && !text_of(c).is_empty()));
        assert_eq!(
            (&end["finish_reason"], &end["stop_reason"]),
            (&choice["finish_reason"], &choice["stop_reason"])
        );
        let prompts: Vec<bool> = mine.iter().map(|c| c.get("prompt_token_ids").is_some()).collect();
        assert!(prompts[0] && !prompts[1..].contains(&true));
        let count = plain["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["token_ids"].as_array().unwrap().len())
            .sum::<usize>();
        assert_eq!(plain["usage"]["completion_tokens"], count, "{request} {chains:?}");
    }
}
