//! Answers with thoughts and tool calls: what goes where, streamed and whole.

use super::answer::{Chain, answer_with, chain, play, usage};
use super::stream::events;
use crate::api::{ApiLimits, ChatSettings, ReasoningField, Sink, ToolFormat, fixtures};
use crate::text::TextModel;
use crate::text::fixtures as text;
use serde_json::{Value, json};
use std::sync::Arc;
use tokenrouter_scheduler::FinishReason;

/// A template that leaves thinking to the model, opens the block for much of it, and closes it for none.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}{{ tools | tojson }}\n\
    {% endif %}{% if add_generation_prompt %}assistant:\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n\
    </think>\n\n{% elif reasoning_effort is defined and reasoning_effort == 'high' %}<think>\n{% endif %}{% endif %}";

fn model() -> Arc<TextModel> {
    let config = json!({"chat_template": TEMPLATE, "eos_token": "<|end|>"});
    Arc::new(text::load(&text::byte_level_json(), &config))
}

fn settings() -> ChatSettings {
    ChatSettings { reasoning: true, tools: Some(ToolFormat::Hermes), ..ChatSettings::default() }
}

fn ask(more: &Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "2+2?"}]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// The single choice of a plain answer, with the usage.
fn whole(settings: &ChatSettings, request: &Value, chain: &Chain, reason: &FinishReason) -> (Value, Value) {
    let context = fixtures::context(&model());
    let limits = ApiLimits { chat: settings.clone(), ..fixtures::limits(&context.text, 4096) };
    let mut answer = answer_with(&limits, &context, request, Sink::Http);
    let mut out = Vec::new();
    play(&mut answer, &[(chain.clone(), reason.clone())], &mut out);
    let body: Value = serde_json::from_slice(&answer.final_body()).unwrap();
    (body["choices"][0].clone(), body["usage"].clone())
}

/// A streamed answer put together again as a client would, with its usage.
fn streamed(
    settings: &ChatSettings,
    request: &Value,
    chain: &Chain,
    reason: &FinishReason,
) -> (Value, Value) {
    let context = fixtures::context(&model());
    let limits = ApiLimits { chat: settings.clone(), ..fixtures::limits(&context.text, 4096) };
    let mut request = request.clone();
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let (mut out, mut answer) = (Vec::new(), answer_with(&limits, &context, &request, Sink::Http));
    play(&mut answer, &[(chain.clone(), reason.clone())], &mut out);
    let mut message = json!({"role": null, "content": null});
    let (mut finish, mut last_usage) = (Value::Null, Value::Null);
    for event in events(&out) {
        let Some(choice) = event["choices"].get(0) else {
            last_usage = event["usage"].clone();
            continue;
        };
        assert!(finish.is_null(), "nothing comes after the finish: {choice}");
        add_delta(&mut message, choice["delta"].as_object().unwrap());
        finish = choice["finish_reason"].clone();
    }
    (json!({"message": message, "finish_reason": finish}), last_usage)
}

fn append(text: &mut Value, more: &Value) {
    *text = format!("{}{}", text.as_str().unwrap_or_default(), more.as_str().unwrap()).into();
}

fn add_delta(message: &mut Value, delta: &serde_json::Map<String, Value>) {
    for (key, value) in delta {
        match key.as_str() {
            "role" => message["role"] = value.clone(),
            "content" | "reasoning_content" | "reasoning" => {
                assert!(value != "" || message["role"] != Value::Null);
                append(&mut message[key], value);
            }
            "tool_calls" => value.as_array().unwrap().iter().for_each(|call| add_call(message, call)),
            other => panic!("{other}"),
        }
    }
}

fn add_call(message: &mut Value, delta: &Value) {
    let index = delta["index"].as_u64().unwrap() as usize;
    if message.get("tool_calls").is_none() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().unwrap();
    if index == calls.len() {
        let mut call = delta.clone();
        call.as_object_mut().unwrap().shift_remove("index");
        assert!(call["id"].is_string() && call["type"] == "function" && call["function"]["name"].is_string());
        calls.push(call);
        return;
    }
    let keys: Vec<_> = delta.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        (keys, index),
        (vec!["index", "function"], calls.len() - 1),
        "later pieces are arguments only"
    );
    assert_eq!(delta["function"].as_object().unwrap().len(), 1);
    append(&mut calls[index]["function"]["arguments"], &delta["function"]["arguments"]);
}

/// The pieces of a stream are the plain answer, for every length; content that never came is null or empty.
fn same_for_every_length(settings: &ChatSettings, request: &Value, chain: &Chain, end: &FinishReason) {
    for length in 1..=chain.len() {
        let cut: Chain = chain[..length].to_vec();
        let reason = if length == chain.len() { end.clone() } else { FinishReason::Length };
        let (plain, plain_usage) = whole(settings, request, &cut, &reason);
        let (mut put, put_usage) = streamed(settings, request, &cut, &reason);
        if put["message"]["content"].is_null() && plain["message"]["content"] == "" {
            put["message"]["content"] = "".into();
        }
        // A stream's first chunk has a role and, where nothing else came, an empty text.
        if put["message"]["content"] == "" && plain["message"]["content"].is_null() {
            put["message"]["content"] = Value::Null;
        }
        assert_eq!(put["message"], plain["message"], "{length} {request}");
        assert_eq!((&put["finish_reason"], &put_usage), (&plain["finish_reason"], &plain_usage), "{length}");
        let reasoning = plain_usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        assert!(reasoning <= length as u64 && plain_usage["completion_tokens"] == length);
    }
}

fn with_end(model: &TextModel, text: &str) -> Chain {
    [chain(model, text), vec![(264, 1)]].concat()
}

/// Bug log L31: on, off, opened by the template, closed by itself, cut inside. Token ends and writers fall anywhere
/// in the tags, as the chains change writers with every token.
#[test]
fn thoughts_in_every_setting() {
    let model = model();
    let on = settings();
    let none = ChatSettings::default();
    let high = json!({"reasoning_effort": "high"});
    let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let effort_off = json!({"reasoning_effort": "none"});
    let hidden = json!({"include_reasoning": false});
    let blank = json!({});
    // settings, request, text, content, thoughts
    let table: [(&ChatSettings, &Value, &str, Value, Value); 11] = [
        (&on, &blank, "<think>\nabc\n</think>\n\nhi", json!("hi"), json!("abc")),
        (&on, &blank, "hi <think>abc</think>", json!("hi <think>abc</think>"), Value::Null),
        (&on, &high, "abc\n</think>\n\nhi", json!("hi"), json!("abc")),
        (&on, &high, "abc</think>", json!(""), json!("abc")),
        (&on, &high, "abc", Value::Null, json!("abc")),
        (&on, &off, "hi <think> abc</think>", json!("hi <think> abc</think>"), Value::Null),
        (&on, &effort_off, "<think>hi</think>", json!("<think>hi</think>"), Value::Null),
        (&on, &hidden, "<think>abc</think>hi", json!("hi"), Value::Null),
        (&none, &blank, "<think>abc</think>hi", json!("<think>abc</think>hi"), Value::Null),
        (&none, &high, "abc</think>hi", json!("abc</think>hi"), Value::Null),
        (&on, &blank, "", json!(""), Value::Null),
    ];
    for (settings, more, text, content, thoughts) in table {
        let request = ask(more);
        let tokens = with_end(&model, text);
        let (choice, usage) = whole(settings, &request, &tokens, &FinishReason::Eos(264));
        let message = &choice["message"];
        assert_eq!(
            (&message["content"], &message["reasoning_content"]),
            (&content, &thoughts),
            "{text} {more}"
        );
        let counted = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        let thought = *settings == on
            && text.contains("abc")
            && message["content"].as_str().is_none_or(|c| !c.contains("abc"));
        assert_eq!(counted > 0, thought, "{text} {more}");
        same_for_every_length(settings, &request, &tokens, &FinishReason::Eos(264));
        // The same bytes one by one.
        let bytes: Chain = text.bytes().map(|b| (u32::from(b), 0)).chain([(264, 0)]).collect();
        assert_eq!(whole(settings, &request, &bytes, &FinishReason::Eos(264)).0["message"], *message);
        same_for_every_length(settings, &request, &bytes, &FinishReason::Eos(264));
    }
}

#[test]
fn thoughts_go_to_the_field_that_is_configured_and_are_counted() {
    let tokens = with_end(&model(), "<think>abc</think>hi");
    for (field, names) in [
        (ReasoningField::ReasoningContent, &["reasoning_content"][..]),
        (ReasoningField::Reasoning, &["reasoning"]),
        (ReasoningField::Both, &["reasoning_content", "reasoning"]),
    ] {
        let settings = ChatSettings { reasoning_field: field, ..settings() };
        let (choice, usage) = whole(&settings, &ask(&json!({})), &tokens, &FinishReason::Eos(264));
        let message = choice["message"].as_object().unwrap();
        let keys: Vec<_> = message.keys().map(String::as_str).collect();
        assert_eq!(keys, [&["role", "content"][..], names].concat());
        assert!(names.iter().all(|name| message[*name] == "abc"));
        // <think>, a, b, c in two merges, </think>; hi and the end are content.
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], tokens.len() - 2);
        same_for_every_length(&settings, &ask(&json!({})), &tokens, &FinishReason::Eos(264));
    }
    let hidden = ask(&json!({"include_reasoning": false}));
    let (choice, usage) = whole(&settings(), &hidden, &tokens, &FinishReason::Eos(264));
    assert!(choice["message"].get("reasoning_content").is_none());
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], tokens.len() - 2);
}

/// Some vocabularies mark the tags as special, which `skip_special_tokens` leaves out of texts.
#[test]
fn tags_that_are_special_tokens_are_found() {
    let mut tokenizer = text::byte_level_json();
    for tag in [2, 3] {
        tokenizer["added_tokens"][tag]["special"] = true.into();
    }
    let model = Arc::new(text::load(&tokenizer, &json!({"chat_template": TEMPLATE, "eos_token": "<|end|>"})));
    let context = fixtures::context(&model);
    for (chat, content, thoughts) in
        [(settings(), "hi", json!("abc")), (ChatSettings::default(), "abchi", Value::Null)]
    {
        let limits = ApiLimits { chat, ..fixtures::limits(&model, 4096) };
        let mut answer = answer_with(&limits, &context, &ask(&json!({})), Sink::Http);
        let tokens = with_end(&model, "<think>abc</think>hi");
        play(&mut answer, &[(tokens, FinishReason::Eos(264))], &mut Vec::new());
        let body: Value = serde_json::from_slice(&answer.final_body()).unwrap();
        let message = &body["choices"][0]["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(content), &thoughts));
    }
}

#[test]
fn stop_strings_are_looked_for_in_the_answer_only() {
    let model = model();
    let request = ask(&json!({"stop": ["ab", "think"]}));
    let tokens = chain(&model, "<think>\nabc think\n</think>\n\nhi abc");
    let (choice, usage) = whole(&settings(), &request, &tokens, &FinishReason::Length);
    assert_eq!(choice["message"]["content"], "hi ");
    assert_eq!(choice["message"]["reasoning_content"], "abc think");
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("ab")));
    assert!(usage["completion_tokens"].as_u64().unwrap() <= tokens.len() as u64);
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {}}}])
}

#[test]
fn calls_become_tool_calls() {
    let model = model();
    let text = "<think>abc</think>\nLet me.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é😀\"}}\n</tool_call>\n\
                <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let request = ask(&json!({"tools": tools()}));
    let tokens = with_end(&model, text);
    let (choice, _) = whole(&settings(), &request, &tokens, &FinishReason::Eos(264));
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": "Let me.", "reasoning_content": "abc", "tool_calls": [
            {"id": "call_1_0_0", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"é😀\"}"}},
            {"id": "call_1_0_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]})
    );
    assert_eq!(choice["finish_reason"], "tool_calls");
    same_for_every_length(&settings(), &request, &tokens, &FinishReason::Eos(264));
    let bytes: Chain = text.bytes().map(|b| (u32::from(b), 0)).collect();
    same_for_every_length(&settings(), &request, &bytes, &FinishReason::Length);
    // A call alone: no content. Cut by the length: `length`, even though a call has begun.
    let alone = with_end(&model, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>");
    let (choice, _) = whole(&settings(), &request, &alone, &FinishReason::Eos(264));
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&Value::Null, &json!("tool_calls"))
    );
    let cut: Chain = alone[..alone.len() - 6].to_vec();
    let (choice, _) = whole(&settings(), &request, &cut, &FinishReason::Length);
    assert_eq!(
        (&choice["message"]["tool_calls"][0]["function"]["name"], &choice["finish_reason"]),
        (&json!("f"), &json!("length"))
    );
}

#[test]
fn without_tools_or_with_choice_none_the_text_stays() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let tokens = with_end(&model(), text);
    for more in [json!({}), json!({"tools": []}), json!({"tools": tools(), "tool_choice": "none"})] {
        let (choice, _) = whole(&settings(), &ask(&more), &tokens, &FinishReason::Eos(264));
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(text), &json!("stop")),
            "{more}"
        );
    }
    let broken = "<tool_call>{\"name\": \"f\", \"arguments\": nothing}</tool_call>";
    let (choice, _) = whole(
        &settings(),
        &ask(&json!({"tools": tools()})),
        &with_end(&model(), broken),
        &FinishReason::Eos(264),
    );
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(broken), &json!("stop")));
}

#[test]
fn lines_carry_thoughts_and_calls() {
    let context = fixtures::context(&model());
    let limits = ApiLimits { chat: settings(), ..fixtures::limits(&context.text, 4096) };
    let text = "<think>abc</think>hi<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let tokens = chain(&context.text, text);
    for stream in [true, false] {
        let request = ask(&json!({"tools": tools(), "stream": stream}));
        let (mut out, mut answer) =
            (Vec::new(), answer_with(&limits, &context, &request, Sink::Lines(json!(1))));
        play(&mut answer, &[(tokens.clone(), FinishReason::Stop)], &mut out);
        let mut message = json!({"role": "assistant", "text": ""});
        let lines: Vec<Value> = std::str::from_utf8(&out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for line in lines.iter().filter(|line| line["event"] == "token" || line["event"] == "finish") {
            append(&mut message["text"], &line["text"]);
            if let Some(thought) = line.get("reasoning_content") {
                append(&mut message["reasoning_content"], thought);
            }
            line["tool_calls"].as_array().into_iter().flatten().for_each(|call| add_call(&mut message, call));
        }
        assert_eq!((&message["text"], &message["reasoning_content"]), (&json!("hi"), &json!("abc")));
        assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{}"}));
        let finish = lines.iter().find(|line| line["event"] == "finish").unwrap();
        assert_eq!(finish["finish_reason"], "tool_calls");
        assert_eq!(lines.last().unwrap()["usage"]["completion_tokens"], usage(&tokens).completion_tokens);
    }
}
