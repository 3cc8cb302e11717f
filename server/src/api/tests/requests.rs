use crate::api::{
    ApiError, ApiLimits, ApiRequest, PromptInput, RoutingReturn, fixtures, parse_chat, parse_completion,
};
use crate::text::fixtures as text;
use serde_json::{Value, json};
use tokenrouter_scheduler::{RouteId, Threshold};

fn completion(body: &Value) -> Result<ApiRequest, ApiError> {
    parse_completion(body.to_string().as_bytes(), &fixtures::limits(&text::demo(), 64))
}

fn chat(body: &Value) -> Result<ApiRequest, ApiError> {
    parse_chat(body.to_string().as_bytes(), &fixtures::limits(&text::demo(), 64), &text::demo())
}

/// The two minimal requests with one more field.
fn with(name: &str, value: &Value) -> [Result<ApiRequest, ApiError>; 2] {
    let (mut prompt, mut messages) =
        (json!({"prompt": "hi"}), json!({"messages": [{"role": "user", "content": "hi"}]}));
    prompt[name] = value.clone();
    messages[name] = value.clone();
    [completion(&prompt), chat(&messages)]
}

fn refused(result: Result<ApiRequest, ApiError>, status: u16, param: &str, case: &str) {
    let error = result.expect_err(case);
    let code = if status == 422 { Some("unsupported_feature") } else { None };
    assert_eq!((error.status, error.param.as_deref(), error.code), (status, Some(param), code), "{case}");
    assert_eq!(error.kind, "invalid_request_error");
    assert!(!error.message.contains("secret"), "{case}: {}", error.message);
}

/// Both endpoints refuse the same field in the same way.
fn both_refused(name: &str, value: &Value, status: u16, param: &str, case: &str) {
    for result in with(name, value) {
        refused(result, status, param, case);
    }
}

#[test]
fn defaults_are_those_of_the_table() {
    let request = completion(&json!({"prompt": "hi"})).unwrap();
    assert_eq!(request.prompts, [PromptInput::Text { text: "hi".into(), add_special: true }]);
    assert_eq!((request.route, request.served_name.as_str(), request.n), (RouteId(0), "org/pair", 1));
    assert_eq!(request.sampling, fixtures::limits(&text::demo(), 64).default_sampling);
    assert!(!request.stream && !request.ignore_eos && request.skip_special_tokens && !request.include_stop);
    assert_eq!(
        (request.max_tokens, request.seed, request.threshold, request.min_tokens),
        (None, None, None, 0)
    );
    let request = chat(&json!({"messages": [{"role": "user", "content": "hi"}]})).unwrap();
    let PromptInput::Chat(prompt) = &request.prompts[0] else { panic!("{request:?}") };
    assert_eq!(prompt.plain(), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

#[test]
fn good_values_arrive() {
    let body = json!({"prompt": "hi", "model": "large", "n": 2.0, "stream": true, "max_tokens": 16.0, "temperature": 0,
        "top_p": 0, "top_k": 100000, "min_p": 0.25, "presence_penalty": -2, "frequency_penalty": 2,
        "repetition_penalty": 1.5, "seed": -3, "stop": "x", "stop_token_ids": [3, 4.0], "logit_bias": {"0": -100, "454": 1.5},
        "include_stop_str_in_output": true, "skip_special_tokens": false, "ignore_eos": true, "min_tokens": 2,
        "return_token_ids": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true, "other": 1},
        "token_routing": {"return": "tokens", "threshold": 0.03}, "request_id": "abc-1", "add_special_tokens": false,
        "user": "me", "metadata": {"a": [1]}, "unheard_of": {"x": 1}, "best_of": 1, "suffix": "", "echo": false,
        "logprobs": null, "cache_salt": "s", "priority": -7, "response_format": {"type": "text"}});
    let request = completion(&body).unwrap();
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.0, 0.0, 455, 0.25));
    assert_eq!(
        (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty),
        (-2.0, 2.0, 1.5)
    );
    assert_eq!(sampling.logit_bias, [(0, -100.0), (454, 1.5)]);
    assert_eq!(
        (request.route, request.n, request.max_tokens, request.seed),
        (RouteId(2), 2, Some(16), Some(-3i64 as u64))
    );
    assert_eq!((request.stop, request.stop_ids, request.min_tokens), (vec!["x".to_owned()], vec![3, 4], 2));
    assert!(request.stream && request.include_usage && request.continuous_usage && request.return_token_ids);
    assert!(request.include_stop && !request.skip_special_tokens && request.ignore_eos);
    assert_eq!(request.routing_return, RoutingReturn::Tokens);
    assert_eq!(
        (request.threshold, request.request_id.as_deref()),
        (Some(Threshold::Value(0.03)), Some("abc-1"))
    );
    assert_eq!((request.priority, request.cache_salt.as_deref()), (-7, Some("s")));
    let longest = "é".repeat(1024);
    for request in with("cache_salt", &json!(longest)) {
        assert_eq!(request.unwrap().cache_salt.as_deref(), Some(longest.as_str()));
    }
    for request in with("priority", &json!(i32::MAX)) {
        let request = request.unwrap();
        assert_eq!((request.priority, request.cache_salt), (i32::MAX, None));
    }
    for (given, top_k) in [(0, 0), (-1, 0), (5, 5)] {
        assert_eq!(with("top_k", &json!(given)).map(|request| request.unwrap().sampling.top_k), [top_k; 2]);
    }
    let both = completion(&json!({"prompt": "hi", "max_tokens": 3, "max_completion_tokens": 5})).unwrap();
    assert_eq!(both.max_tokens, Some(5));
    let always = completion(&json!({"prompt": "hi", "token_routing": {"threshold": "always"}})).unwrap();
    assert_eq!((always.threshold, always.routing_return), (Some(Threshold::Always), RoutingReturn::None));
    let routing = json!({"max_llm_fraction": 0.25, "query_score": 1});
    let bound = completion(&json!({"prompt": "hi", "token_routing": routing})).unwrap();
    assert_eq!((bound.max_llm_fraction, bound.query_score, bound.threshold), (Some(0.25), Some(1.0), None));
}

#[test]
fn null_means_not_given() {
    let fields = [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop_token_ids",
        "logit_bias",
        "n",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "echo",
        "suffix",
        "best_of",
        "response_format",
        "tools",
        "tool_choice",
        "ignore_eos",
        "min_tokens",
        "return_token_ids",
        "token_routing",
        "request_id",
        "chat_template_kwargs",
        "reasoning_effort",
        "include_reasoning",
        "truncate_prompt_tokens",
        "functions",
        "chat_template",
    ];
    let plain = with("user", &json!("x")).map(Result::unwrap);
    for field in fields {
        assert_eq!(with(field, &Value::Null).map(Result::unwrap), plain, "{field}");
    }
}

#[test]
fn bad_values_are_400_and_name_the_field() {
    let cases = json!({
        "max_tokens": [0, -1, 1.5, "16", true, 1e30, [1]],
        "max_completion_tokens": [0, "secret"],
        "temperature": [-0.1, 2.1, "secret", true, -1e300],
        "top_p": [-0.1, 1.1, "1"],
        "top_k": [-2, 1.5, "1", 1e300],
        "min_p": [-0.1, 1.1],
        "presence_penalty": [-2.1, 2.1, "0"],
        "frequency_penalty": [-2.1, 2.1],
        "repetition_penalty": [0, -1, 1e300, "1"],
        "seed": [1.5, "1", 1e19, 18446744073709551615u64],
        "stop": ["", [""], [1], 5, {"a": 1}, vec!["x"; 17]],
        "stop_token_ids": [[-1], [455], ["1"], 3, vec![1; 257]],
        "include_stop_str_in_output": [1, "true"],
        "skip_special_tokens": [0],
        "spaces_between_special_tokens": [0],
        "ignore_eos": ["secret"],
        "min_tokens": [-1, 1.5],
        "n": [0, 9, -1, "1"],
        "logit_bias": [{"191222": -100}, {"-1": 1}, {"1e3": 1}, {"07": 1}, {"secret": 1}, {"1": 101}, {"1": null}, {"+1": 1}, []],
        "stream": [1, "true"],
        "return_token_ids": [1],
        "response_format": ["text", {}, {"type": "secret"}],
        "best_of": [0, 2, 1.5, "1"],
        "suffix": ["x", 1],
        "use_beam_search": [true],
        "top_logprobs": [1, 21, -1],
        "request_id": ["", "a b", "a\n", "é", vec!["x"], "x".repeat(129)],
        "cache_salt": ["", 1, "x".repeat(1025)],
        "priority": ["1", 0.5, true, i64::from(i32::MAX) + 1, i32::MIN],
        "truncate_prompt_tokens": [0, -2, 65, 1.5, "1", true],
    });
    for (field, values) in cases.as_object().unwrap() {
        for value in values.as_array().unwrap() {
            both_refused(field, value, 400, field, &format!("{field}: {value}"));
        }
    }
    for options in [json!({"include_usage": true}), json!({})] {
        both_refused("stream_options", &options, 400, "stream_options", "without stream");
    }
    let body = json!({"prompt": "hi", "stream": true, "stream_options": {"include_usage": 1}});
    refused(completion(&body), 400, "stream_options.include_usage", "flag");
    refused(
        completion(&json!({"prompt": "hi", "min_tokens": 5, "max_tokens": 4})),
        400,
        "min_tokens",
        "above max",
    );
}

#[test]
fn token_routing_is_checked_strictly() {
    for (value, param) in [
        (json!("summary"), "token_routing"),
        (json!({"secret": 1}), "token_routing"),
        (json!({"return": "all"}), "token_routing.return"),
        (json!({"return": 1}), "token_routing.return"),
        (json!({"threshold": "0.5"}), "token_routing.threshold"),
        (json!({"threshold": 1e300}), "token_routing.threshold"),
        (json!({"threshold": [1]}), "token_routing.threshold"),
        (json!({"max_llm_fraction": 1.5}), "token_routing.max_llm_fraction"),
        (json!({"max_llm_fraction": "most"}), "token_routing.max_llm_fraction"),
        (json!({"query_score": -0.1}), "token_routing.query_score"),
    ] {
        both_refused("token_routing", &value, 400, param, &value.to_string());
    }
    both_refused("token_routing", &json!({"pin": "medium"}), 400, "token_routing.pin", "small, large");
}

#[test]
fn what_is_missing_is_422_and_never_ignored() {
    let cases = json!({
        "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}],
        "guided_json": [{}],
        "structured_outputs": [{"regex": "a"}],
        "prompt_logprobs": [1],
        "allowed_token_ids": [[1]],
        "bad_words": [["x"]],
    });
    for (field, values) in cases.as_object().unwrap() {
        for value in values.as_array().unwrap() {
            both_refused(field, value, 422, field, &format!("{field}: {value}"));
        }
    }
    both_refused("chat_template", &json!("{{ 1 }}"), 422, "chat_template", "not allowed here");
    refused(
        completion(&json!({"prompt": "hi", "documents": [{}]})),
        422,
        "documents",
        "no template to show them",
    );
}

#[test]
fn log_probabilities_are_a_number_for_completions_and_a_flag_with_a_number_for_chats() {
    let refused_value = None;
    for (value, of_prompt, of_chat) in [
        (json!(false), Some(None), Some(None)),
        (json!(true), refused_value, Some(Some(0))),
        (json!(0), Some(Some(0)), refused_value),
        (json!(5.0), Some(Some(5)), refused_value),
        (json!(20), Some(Some(20)), refused_value),
        (json!(21), refused_value, refused_value),
        (json!(-1), refused_value, refused_value),
        (json!(1.5), refused_value, refused_value),
        (json!("1"), refused_value, refused_value),
    ] {
        for (result, expected) in with("logprobs", &value).into_iter().zip([of_prompt, of_chat]) {
            match expected {
                Some(count) => assert_eq!(result.unwrap().logprobs, count, "{value}"),
                None => refused(result, 400, "logprobs", &value.to_string()),
            }
        }
    }
    assert!(with("top_logprobs", &json!(0)).iter().all(|r| r.as_ref().unwrap().logprobs.is_none()));
    for (top, flag, expected) in
        [(2, json!(true), Some(2)), (20, json!(true), Some(20)), (2, json!(false), None)]
    {
        let messages = json!([{"role": "user", "content": "a"}]);
        let body = json!({"messages": messages, "logprobs": flag, "top_logprobs": top});
        match expected {
            Some(top) => assert_eq!(chat(&body).unwrap().logprobs, Some(top)),
            None => refused(chat(&body), 400, "top_logprobs", "without the flag"),
        }
    }
}

#[test]
fn no_token_may_be_asked_for_only_with_an_echo() {
    let request = completion(&json!({"prompt": "hi", "echo": true, "max_tokens": 0, "logprobs": 1})).unwrap();
    assert_eq!((request.echo, request.max_tokens, request.logprobs), (true, Some(0), Some(1)));
    assert!(completion(&json!({"prompt": "hi", "echo": true})).unwrap().max_tokens.is_none());
    refused(completion(&json!({"prompt": "hi", "max_tokens": 0})), 400, "max_tokens", "alone");
    refused(completion(&json!({"prompt": "hi", "echo": 1})), 400, "echo", "no flag");
    refused(
        completion(&json!({"prompt": "hi", "echo": true, "max_tokens": -1})),
        400,
        "max_tokens",
        "negative",
    );
    let chat_body = |echo: bool| json!({"messages": [{"role": "user", "content": "a"}], "echo": echo});
    refused(chat(&chat_body(true)), 422, "echo", "a chat");
    assert!(chat(&chat_body(false)).is_ok());
}

#[test]
fn models_by_name() {
    for name in ["", "org/pair"] {
        assert_eq!(with("model", &json!(name)).map(|r| r.unwrap().route), [RouteId(0); 2]);
    }
    assert_eq!(with("model", &json!("small")).map(|r| r.unwrap().served_name), ["small"; 2]);
    for result in with("model", &json!("secret")) {
        let error = result.unwrap_err();
        assert_eq!(
            (error.status, error.code, error.param.as_deref()),
            (404, Some("model_not_found"), Some("model"))
        );
        assert!(!error.message.contains("secret") && error.message.contains("org/pair"));
    }
    both_refused("model", &json!(3), 400, "model", "a number");
}

#[test]
fn prompts_in_every_shape() {
    let prompts = |prompt: Value| completion(&json!({"prompt": prompt})).map(|request| request.prompts);
    let text = |text: &str| PromptInput::Text { text: text.into(), add_special: true };
    assert_eq!(prompts(json!("a")).unwrap(), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2.0])).unwrap(), [PromptInput::Ids(vec![1, 2])]);
    assert_eq!(
        prompts(json!([[1], [2, 3]])).unwrap(),
        [PromptInput::Ids(vec![1]), PromptInput::Ids(vec![2, 3])]
    );
    for bad in [
        json!(""),
        json!([""]),
        json!([]),
        json!([[]]),
        json!(null),
        json!(5),
        json!({"secret": 1}),
        json!(true),
        json!(["a", 1]),
        json!([1, "a"]),
        json!([[1], "a"]),
        json!([1, [2]]),
        json!([455]),
        json!([-1]),
        json!([1.5]),
        json!([[1], ["a"]]),
        json!([null]),
        json!(vec!["a"; 65]),
        json!(["a", ""]),
    ] {
        refused(completion(&json!({"prompt": bad})), 400, "prompt", &bad.to_string());
    }
    refused(completion(&json!({})), 400, "prompt", "no prompt");
    // A tokenizer that adds a token of its own makes something of an empty prompt.
    let limits = fixtures::limits(&text::metaspace(), 64);
    assert!(parse_completion(br#"{"prompt": ""}"#, &limits).is_ok());
    assert!(parse_completion(br#"{"prompt": "", "add_special_tokens": false}"#, &limits).is_err());
}

#[test]
fn messages_in_every_shape() {
    let rendered = |messages: Value| {
        let request = chat(&json!({"messages": messages, "add_generation_prompt": false}))?;
        match &request.prompts[0] {
            PromptInput::Chat(prompt) => Ok(prompt.plain()),
            other => panic!("{other:?}"),
        }
    };
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(rendered(parts), Ok("<|im_start|>user\na\nb<|im_end|>\n".to_owned()));
    let developer = json!([{"role": "developer", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": []}]);
    assert_eq!(
        rendered(developer),
        Ok("<|im_start|>system\nx<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n".to_owned())
    );
    for bad in [
        json!([]),
        json!(null),
        json!("secret"),
        json!({}),
        json!(["a"]),
        json!([{"content": "a"}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "content": []}]),
        json!([{"role": "secret", "content": "a"}]),
        json!([{"role": 1, "content": "a"}]),
        json!([{"role": "user", "content": 5}]),
        json!([{"role": "assistant", "content": 5}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": ["a"]}]),
        json!([{"role": "user", "content": [{"type": "secret", "text": "a"}]}]),
        json!([{"role": "assistant", "content": "a", "tool_calls": 5}]),
    ] {
        refused(rendered(bad.clone()).map(|_| unreachable!()), 400, "messages", &bad.to_string());
    }
    refused(chat(&json!({})), 400, "messages", "no messages");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    let error = rendered(image).unwrap_err();
    assert!(error.message.contains("messages[0].content") && error.message.contains("image_url"), "{error}");
}

#[test]
fn tools_and_chat_options() {
    let base = |field: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        body[field] = value;
        body
    };
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    refused(chat(&base("tools", tool.clone())), 422, "tools", "tools");
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let mut body = base("tools", tool.clone());
        body["tool_choice"] = choice;
        refused(chat(&body), 422, "tool_choice", "tool_choice");
    }
    let mut body = base("tools", tool);
    body["tool_choice"] = json!("none");
    chat(&body).unwrap();
    for (field, value, status) in [
        ("tools", json!([]), 200),
        ("tools", json!(5), 400),
        ("tool_choice", json!("auto"), 200),
        ("tool_choice", json!("secret"), 400),
        ("functions", json!([{"name": "f"}]), 422),
        ("functions", json!([]), 200),
        ("function_call", json!("none"), 200),
        ("continue_final_message", json!(true), 200),
        ("documents", json!([{"text": "a"}]), 200),
        ("documents", json!(["secret"]), 400),
        ("continue_final_message", json!(false), 200),
        ("include_reasoning", json!(false), 200),
        ("include_reasoning", json!(true), 200),
        ("reasoning_effort", json!("none"), 200),
        ("reasoning_effort", json!(3), 400),
        ("chat_template_kwargs", json!({"enable_thinking": false}), 200),
        ("chat_template_kwargs", json!("secret"), 400),
        ("add_generation_prompt", json!(false), 200),
        ("add_generation_prompt", json!("secret"), 400),
    ] {
        let result = chat(&base(field, value.clone()));
        match status {
            200 => drop(result.unwrap()),
            _ => refused(result, status, field, &format!("{field}: {value}")),
        }
    }
    let mut body = base("continue_final_message", json!(true));
    body["add_generation_prompt"] = json!(true);
    refused(chat(&body), 400, "continue_final_message", "both");
}

#[test]
fn a_template_that_refuses_is_400_and_no_template_is_422() {
    let body = br#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let limits = fixtures::limits(&text::demo(), 64);
    let error = parse_chat(body, &limits, &text::metaspace()).unwrap_err();
    assert_eq!((error.status, error.code), (422, Some("unsupported_feature")));
    let config = json!({"chat_template": "{{ raise_exception('system first') }}"});
    let strict = text::load(&text::byte_level_json(), &config);
    let error = parse_chat(body, &limits, &strict).unwrap_err();
    assert_eq!((error.status, error.message.as_str()), (400, "system first"));
    assert_eq!(parse_chat(b"[]", &limits, &strict).unwrap_err().code, Some("invalid_json"));
}

#[test]
fn thinking_switches_reach_the_template() {
    let config = json!({"chat_template": "{{ enable_thinking | default('unset') }}/{{ reasoning_effort | default('unset') }}"});
    let model = text::load(&text::byte_level_json(), &config);
    for (extra, expected) in [
        (json!({}), "unset/unset"),
        (json!({"reasoning_effort": "none"}), "False/none"),
        (json!({"reasoning_effort": "high"}), "unset/high"),
        (json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}}), "True/none"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request =
            parse_chat(body.to_string().as_bytes(), &fixtures::limits(&text::demo(), 64), &model).unwrap();
        let PromptInput::Chat(prompt) = &request.prompts[0] else { panic!() };
        assert_eq!(prompt.plain(), expected);
    }
}

/// Logits divided by next to nothing are infinite: that is the client's fault, not a failed step.
#[test]
fn a_repetition_penalty_that_overflows_the_logits_is_refused() {
    for value in [json!(1.2e-38), json!(1e-3), json!(3e38), json!(101)] {
        both_refused("repetition_penalty", &value, 400, "repetition_penalty", &value.to_string());
    }
    for value in [json!(0.01), json!(100)] {
        assert!(with("repetition_penalty", &value).iter().all(Result::is_ok), "{value}");
    }
}

/// Each choice looks for every stop string, so a long one times many choices would fill the memory.
#[test]
fn a_stop_string_of_megabytes_is_refused() {
    for value in [json!("x".repeat(1025)), json!(["a", "x".repeat(1 << 20)])] {
        both_refused("stop", &value, 400, "stop", "a long stop string");
    }
    assert!(with("stop", &json!("x".repeat(1024))).iter().all(Result::is_ok));
}

/// More answers than the server can hold at all: trying again later would not help, so it is no 429.
#[test]
fn more_choices_than_the_queues_hold_are_refused_for_good() {
    let limits = ApiLimits { max_choices: 12, ..fixtures::limits(&text::demo(), 64) };
    let ask = |prompts: usize, n: u32| {
        let body = json!({"prompt": vec!["a"; prompts], "n": n}).to_string();
        parse_completion(body.as_bytes(), &limits)
    };
    assert_eq!(ask(3, 4).map(|request| request.choices()), Ok(12));
    for (prompts, n) in [(13, 1), (2, 7)] {
        let error = ask(prompts, n).expect_err("too many");
        assert_eq!((error.status, error.param.as_deref()), (400, Some("n")));
        assert!(error.message.contains("12"), "{}", error.message);
    }
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "n": 3}).to_string();
    let limits = ApiLimits { max_choices: 2, ..limits };
    assert_eq!(parse_chat(chat.as_bytes(), &limits, &text::demo()).expect_err("too many").status, 400);
}
