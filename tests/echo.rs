//! `echo` and `logprobs` over HTTP and raw TCP (bug-log L18, L23): one entry per token of prompt and answer, the first one
//! null, the same in every way of asking.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use serde_json::{Value, json};
use support::http::{connect, get, post};
use support::process::{ServerProcess, demo_config};

const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

fn server(steps: usize) -> ServerProcess {
    let (config, rows) = (demo_config("name = \"r-stitch\"\nthreshold = 0.03", ""), steps.min(32));
    let config =
        config.replace("[[model]]", &format!("[[model]]\nmax_step_tokens = {steps}\nmax_batch = {rows}"));
    let server = ServerProcess::start(&config);
    // It answers while the models are being loaded.
    while get(server.http, "/ready").status != 200 {
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

fn ask(server: &ServerProcess, body: &Value) -> Value {
    let answer = post(server.http, "/v1/completions", body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()
}

/// The one choice of an answer, its lists checked.
fn choice(answer: &Value, entries: usize) -> Value {
    let choice = answer["choices"][0].clone();
    for name in LISTS {
        assert_eq!(choice["logprobs"][name].as_array().expect(name).len(), entries, "{name}: {answer}");
    }
    choice
}

fn values(choice: &Value) -> Vec<Option<f64>> {
    choice["logprobs"]["token_logprobs"].as_array().unwrap().iter().map(Value::as_f64).collect()
}

#[test]
fn the_prompt_is_scored_and_the_first_entry_is_null() {
    let server = server(256);
    let body =
        json!({"prompt": [5, 6, 7, 8], "echo": true, "logprobs": 2, "max_tokens": 1, "temperature": 0});
    let five = choice(&ask(&server, &body), 5);
    let known = values(&five);
    assert!(known[0].is_none() && five["logprobs"]["top_logprobs"][0].is_null(), "{five}");
    assert!(known[1..].iter().all(|v| v.is_some_and(|v| v.is_finite() && v <= 0.0)), "{five}");
    for top in &five["logprobs"]["top_logprobs"].as_array().unwrap()[1..] {
        assert!((2..=3).contains(&top.as_object().unwrap().len()), "{top}");
    }
    let mut none = body.clone();
    none["max_tokens"] = json!(0);
    let scoring = ask(&server, &none);
    let four = choice(&scoring, 4);
    assert_eq!(values(&four), known[..4]);
    assert_eq!(
        (&four["finish_reason"], &scoring["usage"]["completion_tokens"]),
        (&json!("length"), &json!(0))
    );
    // Every way of asking says the same: a stream, several answers, the raw port.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = post(server.http, "/v1/completions", &streamed).events();
    let (mut text, mut lists) = (String::new(), vec![Vec::new(); 4]);
    for part in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        text.push_str(part["text"].as_str().unwrap());
        for (list, name) in lists.iter_mut().zip(LISTS) {
            list.extend(part["logprobs"][name].as_array().cloned().unwrap_or_default());
        }
    }
    assert_eq!(text, five["text"]);
    for (list, name) in lists.into_iter().zip(LISTS) {
        assert_eq!(Value::from(list), five["logprobs"][name], "{name}");
    }
    let mut several = body.clone();
    several["n"] = json!(3);
    let answers = ask(&server, &several);
    for one in answers["choices"].as_array().unwrap() {
        assert_eq!((&one["text"], &one["logprobs"]), (&five["text"], &five["logprobs"]));
    }
    let mut line = body.clone();
    line["stream"] = json!(false);
    let mut socket = connect(server.tcp);
    socket.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(&socket).read_line(&mut reply).unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!((&reply["text"], &reply["logprobs"]), (&five["text"], &five["logprobs"]), "{reply}");
    server.stop();
}

#[test]
fn a_warm_cache_and_chunks_give_the_same_scores_and_continuations_add_up() {
    let prompt: Vec<u32> = (0..75u32).map(|i| 20 + i * 104_729 % 9_973 % 400).collect();
    let body = |prompt: &[u32], tokens: u32, model: &str| {
        json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true, "model": model})
    };
    let mut told = Vec::new();
    for steps in [256, 7] {
        let server = server(steps);
        let model = post_names(&server);
        for round in 0..2 {
            let answer = ask(&server, &body(&prompt, 8, &model[1]));
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "round {round}");
            told.push(choice(&answer, 83));
        }
        // The answer as a prompt: what was said as it was written, and the sum over it from two calls.
        let ids = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true,
            "model": model[1], "return_token_ids": true});
        let written = ask(&server, &ids);
        let tokens =
            written["choices"][0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
        let whole: Vec<u32> = prompt.iter().copied().chain(tokens.map(|id| id as u32)).collect();
        let later = values(&choice(&ask(&server, &body(&whole, 0, &model[1])), 83));
        assert_eq!(later, values(&told[0]));
        // A route scores the prompt with its entry model.
        let routed = values(&choice(&ask(&server, &body(&prompt, 0, &model[0])), 75));
        assert_eq!(routed, values(&told[0])[..75]);
        assert_ne!(
            values(&choice(&ask(&server, &body(&prompt, 0, &model[2])), 75)),
            routed,
            "the other model"
        );
        server.stop();
    }
    assert!(told.iter().all(|one| one["logprobs"] == told[0]["logprobs"] && one["text"] == told[0]["text"]));
}

/// Names of the route, the small and the large model.
fn post_names(server: &ServerProcess) -> Vec<String> {
    let models = get(server.http, "/v1/models").json();
    models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// L23: an id that is no token is refused, and whoever is answered beside it is not touched.
#[test]
fn refused_biases_change_no_bit_of_a_neighbour_s_log_probabilities() {
    let server = server(256);
    let neighbour = json!({"prompt": [40, 41, 42, 43], "max_tokens": 24, "logprobs": 20, "temperature": 1, "seed": 3,
        "ignore_eos": true});
    let alone = ask(&server, &neighbour)["choices"][0].clone();
    let beside = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&server, &neighbour)["choices"][0].clone());
        for bias in
            [json!({"191222": -100}), json!({"-1": 1}), json!({"1e3": 1}), json!({"07": 1}), json!({"x": 1})]
        {
            let body = json!({"prompt": [5, 6], "logit_bias": bias, "max_tokens": 4});
            assert_eq!(post(server.http, "/v1/completions", &body).status, 400);
        }
        let body = json!({"prompt": [5, 6], "logit_bias": {"44": 100, "45": -100}, "max_tokens": 9});
        assert_eq!(post(server.http, "/v1/completions", &body).status, 200);
        asked.join().unwrap()
    });
    assert_eq!(alone, beside);
    server.stop();
}

#[test]
fn a_chat_tells_log_probabilities_and_writers() {
    let server = server(256);
    let mut body = json!({"messages": [{"role": "user", "content": "What is 2 + 3?"}], "logprobs": true,
        "top_logprobs": 3, "temperature": 0, "token_routing": {"return": "tokens"}, "max_tokens": 40});
    let answer = post(server.http, "/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().expect("entries");
    assert_eq!(content.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    let writers: Vec<&Value> = content.iter().map(|entry| &entry["model_index"]).collect();
    assert_eq!(
        writers,
        choice["token_routing"]["model_index"].as_array().unwrap().iter().collect::<Vec<_>>()
    );
    for entry in content {
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(entry["logprob"], entry["top_logprobs"][0]["logprob"], "greedy: {entry}");
    }
    body["stream"] = json!(true);
    let events = post(server.http, "/v1/chat/completions", &body).events();
    let parts = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let streamed: Vec<Value> =
        parts.flat_map(|part| part["logprobs"]["content"].as_array().cloned().unwrap_or_default()).collect();
    assert_eq!(&streamed, content);
    server.stop();
}
