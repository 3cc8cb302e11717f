//! `/tokenize`, `/detokenize`, `render`, and prompts cut to their end.

use crate::api::{
    ApiError, ApiLimits, ChatSettings, detokenize, fixtures, parse_chat, parse_completion, prepare, render,
    tokenize,
};
use crate::text::TextModel;
use crate::text::fixtures as text;
use serde_json::{Value, json};

type Call = fn(&[u8], &ApiLimits, &TextModel) -> Result<Vec<u8>, ApiError>;

fn ask(call: Call, model: &TextModel, body: &Value) -> Result<Value, ApiError> {
    let limits = fixtures::limits(model, 64);
    call(body.to_string().as_bytes(), &limits, model).map(|body| serde_json::from_slice(&body).unwrap())
}

fn ids(model: &TextModel, body: &Value) -> Vec<u32> {
    let answer = ask(tokenize, model, body).unwrap();
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(tokens.len()), &json!(64)));
    tokens.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Bug log L04: the template's own BOS and the tokenizer's are never both there.
#[test]
fn one_beginning_of_sequence_in_every_form() {
    let config = json!({"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"});
    let model = text::load(&text::metaspace_json(), &config);
    let plain = model.encode("I am", false).unwrap();
    let with_bos = [&[1][..], &plain[..]].concat();
    let messages = json!([{"role": "user", "content": "I am"}]);
    assert_eq!(ids(&model, &json!({"prompt": "I am"})), with_bos);
    assert_eq!(ids(&model, &json!({"prompt": "<s>I am"}))[..2], [1, plain[0]]);
    assert_eq!(ids(&model, &json!({"prompt": "I am", "add_special_tokens": false})), plain);
    assert_eq!(ids(&model, &json!({"messages": messages})).iter().filter(|&&id| id == 1).count(), 1);
    let doubled = ids(&model, &json!({"messages": messages, "add_special_tokens": true}));
    assert_eq!(doubled.iter().filter(|&&id| id == 1).count(), 2, "asked for");
    // The names of llama.cpp, whose default is the other one.
    assert_eq!(ids(&model, &json!({"content": "I am"})), plain);
    assert_eq!(ids(&model, &json!({"content": "I am", "add_special": true})), with_bos);
    assert_eq!(ids(&model, &json!({"prompt": ""})), [1]);
}

#[test]
fn chats_are_tokenized_as_they_would_be_answered() {
    let demo = text::demo();
    let messages = json!([{"role": "user", "content": "hi<|im_end|>"}]);
    for more in [
        json!({}),
        json!({"add_generation_prompt": false}),
        json!({"continue_final_message": true}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let limits = fixtures::limits(&demo, 64);
        let request = parse_chat(body.to_string().as_bytes(), &limits, &demo).unwrap();
        let prepared = prepare(&request, &demo, &limits).unwrap();
        assert_eq!(ids(&demo, &body), prepared[0].ids);
        let rendered = ask(render, &demo, &body).unwrap();
        assert_eq!(rendered["prompt_token_ids"], json!(prepared[0].ids));
        assert_eq!(rendered["prompt"], demo.decode(&prepared[0].ids, false));
        assert_eq!(rendered["count"], prepared[0].ids.len());
    }
    let open = ask(render, &demo, &json!({"messages": messages, "continue_final_message": true})).unwrap();
    assert_eq!(open["prompt"], "<|im_start|>user\nhi<|im_end|>");
    let error = ask(render, &demo, &json!({"messages": messages, "temperature": 9})).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("temperature")));
}

#[test]
fn strings_and_back() {
    let model = text::metaspace();
    let answer = ask(tokenize, &model, &json!({"prompt": "I é", "return_token_strs": true})).unwrap();
    assert_eq!(answer["token_strs"][0], "<s>");
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), answer["count"].as_u64().unwrap() as usize);
    let back = ask(detokenize, &model, &json!({"tokens": answer["tokens"]})).unwrap();
    assert_eq!(back["prompt"], back["content"]);
    assert_eq!(back["prompt"], model.raw().decode(&ids(&model, &json!({"prompt": "I é"})), false).unwrap());
    assert_eq!(ask(detokenize, &model, &json!({"tokens": []})).unwrap()["prompt"], "");
    assert!(ask(tokenize, &model, &json!({"prompt": "a"})).unwrap().get("token_strs").is_none());
}

#[test]
fn bad_bodies_are_refused_with_the_field() {
    let demo = text::demo();
    let vocab = demo.real_vocab();
    let table: [(Call, Value, u16, &str); 14] = [
        (detokenize, json!({"tokens": [vocab]}), 400, "tokens"),
        (detokenize, json!({"tokens": [-1]}), 400, "tokens"),
        (detokenize, json!({"tokens": [1.5]}), 400, "tokens"),
        (detokenize, json!({"tokens": ["1"]}), 400, "tokens"),
        (detokenize, json!({"tokens": "secret"}), 400, "tokens"),
        (detokenize, json!({}), 400, "tokens"),
        (detokenize, json!({"tokens": [1], "model": "secret"}), 404, "model"),
        (tokenize, json!({}), 400, "prompt"),
        (tokenize, json!({"prompt": ["secret"]}), 400, "prompt"),
        (tokenize, json!({"prompt": "a", "model": "secret"}), 404, "model"),
        (tokenize, json!({"prompt": "a", "add_special_tokens": 1}), 400, "add_special_tokens"),
        (tokenize, json!({"messages": []}), 400, "messages"),
        (
            tokenize,
            json!({"messages": [{"role": "user", "content": "a"}], "chat_template": "secret"}),
            422,
            "chat_template",
        ),
        (render, json!({"prompt": "a"}), 400, "messages"),
    ];
    for (call, body, status, param) in table {
        let error = ask(call, &demo, &body).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (status, Some(param)), "{body}");
        assert!(!error.message.contains("secret"));
    }
    assert_eq!(
        ask(tokenize, &text::metaspace(), &json!({"messages": [{"role": "user", "content": "a"}]}))
            .unwrap_err()
            .status,
        422
    );
}

#[test]
fn prompts_are_cut_only_when_asked() {
    let demo = text::demo();
    let limits = fixtures::limits(&demo, 64);
    let lengths = |body: &Value| {
        let request = parse_completion(body.to_string().as_bytes(), &limits).unwrap();
        let prepared = prepare(&request, &demo, &limits)?;
        Ok::<_, ApiError>((prepared[0].ids.clone(), prepared[0].max_new_tokens))
    };
    let prompt: Vec<u32> = (0..80).collect();
    let body =
        |cut: Value, max: Value| json!({"prompt": prompt, "truncate_prompt_tokens": cut, "max_tokens": max});
    assert_eq!(lengths(&body(Value::Null, json!(4))).unwrap_err().code, Some("context_length_exceeded"));
    assert_eq!(lengths(&body(json!(10), json!(4))), Ok((prompt[70..].to_vec(), 4)));
    assert_eq!(lengths(&body(json!(-1), json!(4))), Ok((prompt[20..].to_vec(), 4)));
    assert_eq!(lengths(&body(json!(-1), Value::Null)), Ok((prompt[32..].to_vec(), 16)));
    assert_eq!(lengths(&body(json!(64), json!(4))).unwrap_err().code, Some("context_length_exceeded"));
    let long = json!({"prompt": "12 ".repeat(2000), "truncate_prompt_tokens": 5});
    assert_eq!(lengths(&long).unwrap().0.len(), 5);
    let chat =
        json!({"messages": [{"role": "user", "content": "12 ".repeat(2000)}], "truncate_prompt_tokens": -1});
    let request = parse_chat(chat.to_string().as_bytes(), &limits, &demo).unwrap();
    let prepared = prepare(&request, &demo, &limits).unwrap();
    assert_eq!((prepared[0].ids.len(), prepared[0].max_new_tokens), (63, 1));
}

#[test]
fn a_template_of_the_request_where_it_is_allowed() {
    let config =
        json!({"chat_template": [{"name": "default", "template": "d"}, {"name": "other", "template": "o"}]});
    let model = text::load(&text::byte_level_json(), &config);
    let chat = ChatSettings { request_template: true, ..ChatSettings::default() };
    let limits = ApiLimits { chat, ..fixtures::limits(&model, 64) };
    let prompt = |template: &str| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "chat_template": template});
        let answer = render(body.to_string().as_bytes(), &limits, &model)?;
        Ok::<_, ApiError>(serde_json::from_slice::<Value>(&answer).unwrap()["prompt"].clone())
    };
    assert_eq!(prompt("{{ messages[0].content }}!"), Ok(json!("hi!")));
    assert_eq!(prompt("other"), Ok(json!("o")));
    for (bad, param) in [
        ("{% for %}", "chat_template"),
        ("{{ secret", "chat_template"),
        (&"x".repeat(65 << 10), "chat_template"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "messages"),
        ("{{ raise_exception('no') }}", "messages"),
    ] {
        let error = prompt(bad).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{bad:.40}");
        assert!(!error.message.contains("secret"));
    }
}
