use crate::api::{ApiLimits, PromptInput, fixtures, parse_chat, parse_completion, prepare};
use crate::text::fixtures as text;
use serde_json::{Value, json};

fn limits(context: usize) -> ApiLimits {
    fixtures::limits(&text::demo(), context)
}

/// Status, code and message.
type Refusal = (u16, Option<&'static str>, String);

/// Prompt length and most new tokens of every prompt.
fn completion(body: Value, context: usize) -> Result<Vec<(usize, u32)>, Refusal> {
    let limits = limits(context);
    let request = parse_completion(body.to_string().as_bytes(), &limits).unwrap();
    let prepared = prepare(&request, &text::demo(), &limits);
    prepared
        .map(|all| all.into_iter().map(|one| (one.ids.len(), one.max_new_tokens)).collect())
        .map_err(|error| (error.status, error.code, error.message))
}

/// The limit is exact (bug log L15), with explicit and with default lengths.
#[test]
fn the_edge_of_the_context() {
    for prompt in [62usize, 63, 64, 65] {
        for max in [Some(1u32), Some(2), None] {
            let got = completion(json!({"prompt": vec![5; prompt], "max_tokens": max}), 64);
            let wanted = max.map_or(1, |max| max as usize);
            if prompt + wanted <= 64 {
                let expected = max.unwrap_or(64 - prompt as u32);
                assert_eq!(got, Ok(vec![(prompt, expected)]), "{prompt} {max:?}");
            } else {
                let (status, code, message) = got.unwrap_err();
                assert_eq!((status, code), (400, Some("context_length_exceeded")), "{prompt} {max:?}");
                assert!(message.contains("64") && message.contains(&prompt.to_string()), "{message}");
                assert!(
                    max.is_none_or(|max| message.contains(&format!("{max} were requested"))),
                    "{message}"
                );
            }
        }
    }
    assert_eq!(completion(json!({"prompt": [[1], [1, 2]]}), 64), Ok(vec![(1, 16), (2, 16)]));
}

#[test]
fn a_chat_may_use_what_is_left() {
    let demo = text::demo();
    let body = br#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let limits = limits(64);
    let request = parse_chat(body, &limits, &demo).unwrap();
    let PromptInput::Chat(prompt) = &request.prompts[0] else { panic!() };
    let ids = demo.encode(&prompt.plain(), false).unwrap();
    let prepared = prepare(&request, &demo, &limits).unwrap();
    assert_eq!((&prepared[0].ids, prepared[0].max_new_tokens as usize), (&ids, 64 - ids.len()));
    for context in [ids.len() - 1, ids.len()] {
        let error = prepare(&request, &demo, &fixtures::limits(&demo, context)).unwrap_err();
        assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("messages")));
    }
    assert_eq!(
        prepare(&request, &demo, &fixtures::limits(&demo, ids.len() + 1)).unwrap()[0].max_new_tokens,
        1
    );
}

#[test]
fn hopeless_prompts_are_refused_without_tokenizing() {
    let (status, code, message) = completion(json!({"prompt": "a".repeat(100_000)}), 64).unwrap_err();
    assert_eq!((status, code), (400, Some("context_length_exceeded")));
    assert!(message.contains("100000 bytes"), "{message}");
}

#[test]
fn texts_that_come_to_nothing_and_impossible_minimums() {
    let mut tokenizer = text::metaspace_json();
    tokenizer["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    let model = text::load(&tokenizer, &json!({}));
    let limits = fixtures::limits(&model, 64);
    let request = parse_completion(br#"{"prompt": "   ", "add_special_tokens": false}"#, &limits).unwrap();
    let error = prepare(&request, &model, &limits).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("prompt")));
    let (status, _, message) = completion(json!({"prompt": vec![5; 60], "min_tokens": 5}), 64).unwrap_err();
    assert!(status == 400 && message.contains("at most 4"), "{message}");
}
