//! Log-probabilities and echoed prompts: one entry per token, in one piece and in pieces.

use super::answer::{Chain, answer, chain, usage};
use crate::api::{AnswerContext, Sink, fixtures};
use crate::text::TextModel;
use crate::text::fixtures as text;
use serde_json::{Value, json};
use std::sync::Arc;
use tokenrouter_engine::TokenLogprobs;
use tokenrouter_scheduler::FinishReason;

/// The byte-level tokenizer with a template, so that it can chat.
fn model() -> Arc<TextModel> {
    let config = json!({"eos_token": "<|end|>", "bos_token": {"content": "<s>"},
        "chat_template": "{{ messages[0].content }}"});
    Arc::new(text::load(&text::byte_level_json(), &config))
}

/// What the engine says about the token at `place`: its value names the place, and the token itself is in the list only
/// at even places.
fn said(token: u32, place: usize, top: usize) -> TokenLogprobs {
    let logprob = -(place as f32) - 0.5;
    let list = (0..top).map(|i| match i {
        0 if place.is_multiple_of(2) => (token, logprob),
        _ => (100 + i as u32, logprob - i as f32),
    });
    TokenLogprobs { logprob, top: list.collect() }
}

/// Plays chains for the choices, with scores of a prompt of three tokens in two parts; returns everything written, and the
/// body of a plain answer.
fn play(
    context: &Arc<AnswerContext>,
    body: &Value,
    chains: &[(Chain, FinishReason)],
    sink: Sink,
) -> (String, Value) {
    let (mut out, mut answer) = (Vec::new(), answer(context, body, sink));
    let asked = answer.request().logprobs;
    let top = usize::from(asked.unwrap_or(0));
    for choice in 0..chains.len() {
        if answer.request().echo && asked.is_some() {
            answer.on_prompt(choice, 1, vec![said(8, 1, top)]);
            answer.on_prompt(choice, 2, vec![said(9, 2, top)]);
        }
    }
    let longest = chains.iter().map(|(chain, _)| chain.len()).max().unwrap_or(0);
    for at in 0..=longest {
        for (choice, (chain, reason)) in chains.iter().enumerate() {
            if let Some(&(token, model)) = chain.get(at) {
                let logprobs = asked.map(|_| Box::new(said(token, 10 + at, top)));
                answer.on_token(choice, token, model, logprobs, &mut out);
            } else if at == chain.len() {
                answer.on_finished(choice, reason, &usage(chain), &mut out);
            }
        }
    }
    assert!(answer.is_done());
    let plain =
        if out.is_empty() { serde_json::from_slice(&answer.final_body()).unwrap() } else { Value::Null };
    (String::from_utf8(out).unwrap(), plain)
}

fn plain(context: &Arc<AnswerContext>, body: &Value, chains: &[(Chain, FinishReason)]) -> Value {
    play(context, body, chains, Sink::Http).1
}

/// What a client puts together from a stream: per choice the text, and every list of `logprobs` joined.
fn joined(stream: &str, choices: usize) -> Vec<(String, Value)> {
    let mut all = vec![(String::new(), Value::Null); choices];
    for event in stream.split_terminator("\n\n").filter(|event| *event != "data: [DONE]") {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        for part in event["choices"].as_array().unwrap() {
            let (text, lists) = &mut all[part["index"].as_u64().unwrap() as usize];
            text.push_str(part["text"].as_str().or(part["delta"]["content"].as_str()).unwrap_or(""));
            let Some(new) = part["logprobs"].as_object() else { continue };
            if lists.is_null() {
                *lists = json!({});
            }
            for (name, list) in new {
                let list = list.as_array().unwrap().clone();
                assert!(!list.is_empty(), "a chunk tells of tokens or of nothing: {event}");
                match lists.get_mut(name).and_then(Value::as_array_mut) {
                    Some(known) => known.extend(list),
                    None => lists[name] = list.into(),
                }
            }
        }
    }
    all
}

#[test]
fn a_chat_tells_token_value_bytes_and_writer() {
    let model = model();
    let context = fixtures::context(&model);
    // Two bytes of one character, then the end.
    let mut chain = chain(&model, "aé");
    chain.push((264, 0));
    assert_eq!(chain.len(), 4);
    let request = json!({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 2,
        "token_routing": {"return": "tokens"}});
    let got = plain(&context, &request, &[(chain.clone(), FinishReason::Eos(264))]);
    let content = got["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4, "one entry per committed token, the end included");
    let second = &content[1];
    assert_eq!((&second["token"], &second["bytes"]), (&json!("bytes:\\xc3"), &json!([0xc3])));
    assert_eq!((&content[2]["token"], &content[2]["bytes"]), (&json!("bytes:\\xa9"), &json!([0xa9])));
    assert_eq!((&second["logprob"], &second["model_index"]), (&json!(-11.5), &json!(1)));
    for (entry, token) in content.iter().zip(&chain) {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2, "exactly as many as asked for");
        assert!(top.iter().all(|t| t["token"].is_string() && t["logprob"].is_f64() && t["bytes"].is_array()));
        assert_eq!(entry["bytes"], json!(model.token_bytes(token.0).unwrap()));
    }
    let names: Vec<_> = content[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["token", "logprob", "bytes", "top_logprobs", "model_index"]);
    let flag_only = json!({"messages": [{"role": "user", "content": "a"}], "logprobs": true});
    let got = plain(&context, &flag_only, &[(chain, FinishReason::Eos(264))]);
    let entry = &got["choices"][0]["logprobs"]["content"][0];
    assert_eq!((&entry["top_logprobs"], entry.get("model_index")), (&json!([]), None));
}

#[test]
fn a_completion_tells_parallel_arrays_with_the_echoed_prompt_in_front() {
    let model = model();
    let context = fixtures::context(&model);
    let chain = chain(&model, "hé");
    let request = json!({"prompt": [7, 8, 9], "echo": true, "logprobs": 2, "max_tokens": 3});
    let got = plain(&context, &request, &[(chain.clone(), FinishReason::Length)]);
    let prompt = model.decode(&[7, 8, 9], true);
    assert_eq!(got["choices"][0]["text"], format!("{prompt}hé"));
    let told = &got["choices"][0]["logprobs"];
    let list = |name: &str| told[name].as_array().unwrap().clone();
    let names = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    assert_eq!(told.as_object().unwrap().keys().collect::<Vec<_>>(), names);
    assert!(names.iter().all(|name| list(name).len() == 6), "{told}");
    assert_eq!(
        list("token_logprobs"),
        json!([null, -1.5, -2.5, -10.5, -11.5, -12.5]).as_array().unwrap()[..]
    );
    assert_eq!(
        list("text_offset"),
        json!([0, 1, 2, 3, 4, 4]).as_array().unwrap()[..],
        "both halves of a character"
    );
    let top = list("top_logprobs");
    assert_eq!(top[0], Value::Null);
    // Beside the list, the token itself where it is not in it.
    let sizes: Vec<usize> = top[1..].iter().map(|top| top.as_object().unwrap().len()).collect();
    assert_eq!(sizes, [3, 2, 2, 3, 2]);
    for (tokens, top) in list("tokens").iter().zip(&top).skip(1) {
        assert!(top.get(tokens.as_str().unwrap()).is_some(), "{tokens} in {top}");
    }
    let none = json!({"prompt": [7, 8, 9], "logprobs": 0});
    let got = plain(&context, &none, &[(chain, FinishReason::Length)]);
    assert_eq!(got["choices"][0]["logprobs"]["top_logprobs"][0], json!({"h": -10.5}), "its own at least");
}

#[test]
fn scoring_only_and_an_echo_alone() {
    let model = model();
    let context = fixtures::context(&model);
    let over = [(Vec::new(), FinishReason::Length)];
    let request = json!({"prompt": [7, 8, 9], "echo": true, "logprobs": 1, "max_tokens": 0});
    let got = plain(&context, &request, &over);
    let choice = &got["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(model.decode(&[7, 8, 9], true)), &json!("length"))
    );
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -1.5, -2.5]));
    assert_eq!(got["usage"]["completion_tokens"], 0);
    let mut streamed = request.clone();
    streamed["stream"] = json!(true);
    let (stream, _) = play(&context, &streamed, &over, Sink::Http);
    let whole = &joined(&stream, 1)[0];
    assert_eq!((&json!(whole.0), &whole.1), (&choice["text"], &choice["logprobs"]));
    let request = json!({"prompt": "hi é", "echo": true});
    let got = plain(&context, &request, &[(chain(&model, " abc"), FinishReason::Length)]);
    assert_eq!(
        (&got["choices"][0]["text"], &got["choices"][0]["logprobs"]),
        (&json!("hi é abc"), &Value::Null)
    );
}

#[test]
fn a_stream_tells_what_a_plain_answer_tells() {
    let model = model();
    let context = fixtures::context(&model);
    let texts = ["hi abc", "😀é", "abcabd and", "", "a\u{85}b"];
    let stops = [json!(null), json!(["abd"]), json!(["é", "zz"]), json!(["abcabdabc"])];
    for kind in [
        json!({"prompt": [7, 8, 9], "logprobs": 3}),
        json!({"prompt": [7, 8, 9], "logprobs": 0, "echo": true}),
        json!({"prompt": [7, 8, 9], "echo": true}),
        json!({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "top_logprobs": 1}),
    ] {
        for (i, first) in texts.iter().enumerate() {
            for stop in &stops {
                let mut request = kind.clone();
                request["stop"] = stop.clone();
                request["n"] = json!(2);
                let ends = [(264, FinishReason::Eos(264))];
                let mut ended = chain(&model, first);
                ended.push((ends[0].0, 1));
                let chains = [
                    (ended, ends[0].1.clone()),
                    (chain(&model, texts[(i + 1) % texts.len()]), FinishReason::Length),
                ];
                let expected = plain(&context, &request, &chains);
                request["stream"] = json!(true);
                let (stream, _) = play(&context, &request, &chains, Sink::Http);
                for (index, (text, told)) in joined(&stream, 2).iter().enumerate() {
                    let choice = &expected["choices"][index];
                    let whole = choice.get("text").unwrap_or(&choice["message"]["content"]);
                    assert_eq!((&json!(text), told), (whole, &choice["logprobs"]), "{request} {first}");
                    // As many entries as tokens that count.
                    let count = told["content"].as_array().or(told["tokens"].as_array()).map_or(0, Vec::len);
                    let stopped = choice["stop_reason"].is_string();
                    let prompt = if request["echo"] == json!(true) { 3 } else { 0 };
                    let all = chains[index].0.len() + prompt;
                    let asked = request.get("logprobs").is_some();
                    assert!(
                        !asked || count == all || stopped && count < all,
                        "{count} of {all}: {request} {first}"
                    );
                }
            }
        }
    }
}

#[test]
fn lines_carry_them_too() {
    let model = model();
    let context = fixtures::context(&model);
    let tokens = chain(&model, "ha");
    let events = |request: &Value| -> Vec<Value> {
        let chains = [(tokens.clone(), FinishReason::Length)];
        let (lines, _) = play(&context, request, &chains, Sink::Lines(json!(1)));
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let request = json!({"prompt": [7, 8, 9], "echo": true, "logprobs": 1, "stream": true,
        "token_routing": {"return": "tokens"}});
    let got = events(&request);
    let kinds: Vec<_> = got.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["prompt", "token", "token", "finish", "done"]);
    assert_eq!(got[0]["text"], model.decode(&[7, 8, 9], true));
    assert_eq!(got[0]["logprobs"]["token_logprobs"], json!([null, -1.5, -2.5]));
    let said = &got[1]["logprobs"];
    assert_eq!(
        (&said["token"], &said["logprob"], &said["model_index"]),
        (&json!("h"), &json!(-10.5), &json!(0))
    );
    assert_eq!((&got[1]["text"], got[3].get("logprobs")), (&json!("h"), None));
    let mut whole = request.clone();
    whole["stream"] = json!(false);
    let got = events(&whole);
    assert_eq!(got[0]["event"], "finish");
    assert_eq!(got[0]["text"], format!("{}ha", model.decode(&[7, 8, 9], true)));
    assert_eq!(got[0]["logprobs"]["token_logprobs"], json!([null, -1.5, -2.5, -10.5, -11.5]));
    let plain = events(&json!({"prompt": [7, 8, 9], "stream": true}));
    assert!(plain.iter().all(|event| event.get("logprobs").is_none()), "not asked for, not there");
}
