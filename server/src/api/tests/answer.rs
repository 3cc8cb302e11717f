//! Helpers that play a scripted chain of tokens through an answer, and its plain bodies.

use crate::api::{Answer, AnswerContext, ApiLimits, Sink, StopAt, fixtures, parse_chat, parse_completion};
use crate::text::TextModel;
use crate::text::fixtures as text;
use serde_json::{Value, json};
use std::sync::Arc;
use tokenrouter_scheduler::router::{Source, Threshold};
use tokenrouter_scheduler::{FailKind, FinishReason, ModelId, RowFault, Usage};

/// A committed token and who wrote it.
pub(super) type Chain = Vec<(u32, u8)>;

/// The ids of a text, every other token by the large model.
pub(super) fn chain(model: &TextModel, text: &str) -> Chain {
    let ids = model.encode(text, false).unwrap();
    ids.into_iter().enumerate().map(|(i, id)| (id, (i % 2) as u8)).collect()
}

/// What the engine says when it has written this chain.
pub(super) fn usage(chain: &[(u32, u8)]) -> Usage {
    let mut usage = Usage { prompt_tokens: 3, completion_tokens: chain.len() as u32, ..Usage::default() };
    chain.iter().for_each(|&(_, model)| usage.committed[usize::from(model)] += 1);
    usage.discarded[0] = 1;
    usage.steps = [5, 2, 0, 0, 0, 0, 0, 0];
    usage.handoffs = 2;
    usage.fed = [7, 2, 0, 0, 0, 0, 0, 0];
    usage.terms.threshold = Some((Threshold::Value(0.1), Source::Request));
    usage.cached = [2, 3, 0, 0, 0, 0, 0, 0];
    usage
}

pub(super) fn answer(context: &Arc<AnswerContext>, body: &Value, sink: Sink) -> Answer {
    answer_with(&fixtures::limits(&context.text, 4096), context, body, sink)
}

pub(super) fn answer_with(
    limits: &ApiLimits,
    context: &Arc<AnswerContext>,
    body: &Value,
    sink: Sink,
) -> Answer {
    let body = body.to_string();
    let request = match body.contains("\"messages\"") {
        true => parse_chat(body.as_bytes(), limits, &context.text),
        false => parse_completion(body.as_bytes(), limits),
    };
    let request = request.unwrap();
    let prompts = vec![vec![7, 8, 9]; request.prompts.len()];
    let id = format!("{}1", request.kind.id_prefix());
    Answer::new(request, id, 1_700_000_000, Arc::clone(context), prompts, sink)
}

/// Plays one chain per choice, choices taking turns, as an engine does that hears of stops one step late.
pub(super) fn play(
    answer: &mut Answer,
    chains: &[(Chain, FinishReason)],
    out: &mut Vec<u8>,
) -> Vec<Option<StopAt>> {
    let mut stops = vec![None; chains.len()];
    let longest = chains.iter().map(|(chain, _)| chain.len()).max().unwrap_or(0);
    for at in 0..=longest {
        for (choice, (chain, reason)) in chains.iter().enumerate() {
            if let Some(&(token, model)) = chain.get(at) {
                let stop = answer.on_token(choice, token, model, None, out);
                stops[choice] = stops[choice].or(stop);
            } else if at == chain.len() {
                answer.on_finished(choice, reason, &usage(chain), out);
            }
        }
    }
    stops
}

pub(super) fn body(context: &Arc<AnswerContext>, body: &Value, chains: &[(Chain, FinishReason)]) -> Value {
    let mut out = Vec::new();
    let mut answer = answer(context, body, Sink::Http);
    play(&mut answer, chains, &mut out);
    assert!(answer.is_done() && out.is_empty(), "a plain answer is written in one piece");
    assert_eq!(answer.status(), 200);
    serde_json::from_slice(&answer.final_body()).unwrap()
}

#[test]
fn a_plain_completion() {
    let model = text::byte_level();
    let context = fixtures::context(&model);
    let mut chain = chain(&model, "hi abc");
    chain.push((264, 0));
    let request = json!({"prompt": [1], "return_token_ids": true, "token_routing": {"return": "tokens", "threshold": 0.1}});
    let got = body(&context, &request, &[(chain.clone(), FinishReason::Eos(264))]);
    let ids: Vec<u32> = chain.iter().map(|t| t.0).collect();
    let models: Vec<u8> = chain.iter().map(|t| t.1).collect();
    let large = models.iter().filter(|&&m| m == 1).count();
    let expected = json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1_700_000_000, "model": "org/pair",
        "system_fingerprint": "fp_test",
        "choices": [{"index": 0, "text": "hi abc", "logprobs": null, "finish_reason": "stop", "stop_reason": null,
            "token_routing": {"model_index": models, "spans": crate::api::routing::spans(&models)}, "token_ids": ids, "prompt_token_ids": [7, 8, 9]}],
        "usage": {"prompt_tokens": 3, "completion_tokens": ids.len(), "total_tokens": ids.len() + 3,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 0}},
        "token_routing": {"algorithm": "r-stitch", "entry_model": 0, "threshold": 0.1, "threshold_from": "request", "models": [
            {"index": 0, "name": "small", "committed_tokens": ids.len() - large, "discarded_tokens": 1,
             "forward_steps": 5, "fed_tokens": 7, "prefill_tokens": 0, "cached_tokens": 2,
             "queue_ms": 0.0, "pending_ms": 0.0, "compute_ms": 0.0},
            {"index": 1, "name": "large", "committed_tokens": large, "discarded_tokens": 0, "forward_steps": 2, "fed_tokens": 2,
             "prefill_tokens": 0, "cached_tokens": 3, "queue_ms": 0.0, "pending_ms": 0.0, "compute_ms": 0.0}],
            "routed_tokens": large, "routed_fraction": large as f64 / ids.len() as f64, "switches": 2, "waiting_ms": 0.0}
    });
    assert_eq!(got, expected);
}

#[test]
fn a_plain_chat_with_choices_that_end_differently() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let eos = || [chain(&model, "4"), vec![(452, 1)]].concat();
    let chains = [
        (eos(), FinishReason::Eos(452)),
        (chain(&model, "12 apples"), FinishReason::Length),
        (chain(&model, "1"), FinishReason::Cancelled),
    ];
    let request = json!({"messages": [{"role": "user", "content": "a"}], "n": 3});
    let got = body(&context, &request, &chains);
    assert_eq!((&got["object"], &got["id"]), (&json!("chat.completion"), &json!("chatcmpl-1")));
    let shown: Vec<_> = got["choices"].as_array().unwrap().iter().collect();
    assert_eq!(shown[0]["message"], json!({"role": "assistant", "content": "4"}));
    assert_eq!(shown[1]["message"]["content"], "12 apples");
    let reasons: Vec<_> = shown.iter().map(|choice| choice["finish_reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["stop", "length", "abort"]);
    // The prompt counts once, answers sum up.
    let completion: usize = chains.iter().map(|(chain, _)| chain.len()).sum();
    assert_eq!(
        (&got["usage"]["prompt_tokens"], &got["usage"]["completion_tokens"]),
        (&json!(3), &json!(completion))
    );
    assert!(got.get("token_routing").is_none() && shown[0].get("token_ids").is_none());
}

#[test]
fn several_prompts_are_ordered_prompt_first() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let chains: Vec<_> =
        ["1", "2", "3", "4"].map(|digit| (chain(&model, digit), FinishReason::Length)).into();
    let got = body(&context, &json!({"prompt": ["a", "b"], "n": 2}), &chains);
    let texts: Vec<_> =
        got["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["1", "2", "3", "4"]);
    assert_eq!(got["usage"]["prompt_tokens"], 6);
}

/// The stop crosses tokens and models; the engine hears of it late (bug log L01).
#[test]
fn stop_strings_cut_text_tokens_and_usage() {
    let model = text::byte_level();
    let context = fixtures::context(&model);
    let letters: Chain =
        "ABCDEFGHIJKL".bytes().enumerate().map(|(i, b)| (u32::from(b), u8::from(i > 4))).collect();
    for (include, shown) in [(false, "ABC"), (true, "ABCDEFGHIJ")] {
        let request = json!({"prompt": [1], "stop": ["DEFGHIJ", "zz"], "include_stop_str_in_output": include,
            "return_token_ids": true, "token_routing": {"return": "summary"}});
        let mut answer = answer(&context, &request, Sink::Http);
        let stops = play(&mut answer, &[(letters.clone(), FinishReason::Length)], &mut Vec::new());
        assert_eq!(stops, [Some(StopAt { committed_len: 10 })]);
        let got: Value = serde_json::from_slice(&answer.final_body()).unwrap();
        let choice = &got["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["finish_reason"], &choice["stop_reason"]),
            (&json!(shown), &json!("stop"), &json!("DEFGHIJ"))
        );
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), 10);
        assert_eq!(got["usage"]["completion_tokens"], 10);
        let models = &got["token_routing"]["models"];
        assert_eq!((&models[0]["committed_tokens"], &models[1]["committed_tokens"]), (&json!(5), &json!(5)));
        assert_eq!(got["token_routing"]["routed_fraction"], 0.5);
        assert!((answer.routed_fraction() - 0.5).abs() < 1e-12 && answer.algorithm() == "r-stitch");
    }
}

#[test]
fn minimum_tokens_shield_the_text_before_them() {
    let model = text::byte_level();
    let context = fixtures::context(&model);
    let letters: Chain = "abab!".bytes().map(|b| (u32::from(b), 0)).collect();
    for (min, shown, count) in [(0, "", 2), (2, "ab", 4), (3, "abab!", 5)] {
        let request = json!({"prompt": [1], "stop": "ab", "min_tokens": min});
        let got = body(&context, &request, &[(letters.clone(), FinishReason::Length)]);
        assert_eq!(
            (&got["choices"][0]["text"], &got["usage"]["completion_tokens"]),
            (&json!(shown), &json!(count)),
            "{min}"
        );
    }
}

#[test]
fn ids_that_end_an_answer_are_not_in_its_text() {
    let model = text::byte_level();
    let context = fixtures::context(&model);
    let run = |extra: Value, last: u32, reason: FinishReason| {
        let mut request = json!({"prompt": [1], "skip_special_tokens": false});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let got = body(&context, &request, &[(vec![(97, 0), (last, 0)], reason)]);
        let choice = &got["choices"][0];
        assert_eq!(got["usage"]["completion_tokens"], 2);
        (choice["text"].clone(), choice["finish_reason"].clone(), choice["stop_reason"].clone())
    };
    assert_eq!(run(json!({}), 264, FinishReason::Eos(264)), (json!("a"), json!("stop"), json!(null)));
    assert_eq!(
        run(json!({"stop_token_ids": [98]}), 98, FinishReason::StopId(98)),
        (json!("a"), json!("stop"), json!(98))
    );
    let included = json!({"stop_token_ids": [98], "include_stop_str_in_output": true});
    assert_eq!(run(included, 98, FinishReason::StopId(98)), (json!("ab"), json!("stop"), json!(98)));
    let ignored = json!({"ignore_eos": true});
    assert_eq!(run(ignored, 264, FinishReason::Length), (json!("a<|end|>"), json!("length"), json!(null)));
}

#[test]
fn a_failed_choice_fails_the_answer() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let mut answer = answer(&context, &json!({"prompt": [1], "n": 2}), Sink::Http);
    let failed = FinishReason::Failed(FailKind::Row { model: ModelId(1), fault: RowFault::NonFinite });
    let mut out = Vec::new();
    answer.on_token(0, 5, 0, None, &mut out);
    answer.on_finished(1, &failed, &Usage::default(), &mut out);
    assert!(answer.is_done() && answer.status() == 500 && out.is_empty());
    assert_eq!(answer.on_token(0, 6, 0, None, &mut out), None);
    answer.on_finished(0, &FinishReason::Length, &Usage::default(), &mut out);
    let got: Value = serde_json::from_slice(&answer.final_body()).unwrap();
    assert_eq!(
        (&got["error"]["type"], &got["error"]["code"]),
        (&json!("server_error"), &json!("engine_error"))
    );
    assert!(
        got["error"]["message"].as_str().unwrap().contains("not finite") && got["error"]["param"].is_null()
    );
}

#[test]
fn events_about_unknown_or_finished_choices_are_harmless() {
    let model = text::demo();
    let context = fixtures::context(&model);
    let mut answer = answer(&context, &json!({"prompt": [1], "stream": true}), Sink::Http);
    let mut out = Vec::new();
    assert_eq!(answer.on_token(3, 5, 0, None, &mut out), None);
    answer.on_finished(3, &FinishReason::Length, &Usage::default(), &mut out);
    answer.on_token(0, u32::MAX, 200, None, &mut out);
    answer.on_finished(0, &FinishReason::Length, &Usage::default(), &mut out);
    let length = out.len();
    answer.on_finished(0, &FinishReason::Length, &Usage::default(), &mut out);
    answer.on_token(0, 5, 0, None, &mut out);
    answer.on_error(crate::api::ApiError::engine("late"), &mut out);
    assert!(answer.is_done() && out.len() == length);
}
