//! Bad requests against the real binary: a clear refusal each, and a good request right after succeeds.

mod support;

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};
use support::http::{connect, get, post, request, send};
use support::problems;
use support::process::{ServerProcess, demo_config};

fn server() -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", "max_body_bytes = 1000000"))
}

fn good(server: &ServerProcess) {
    let answer = post(server.http, "/v1/completions", &json!({"prompt": "Ann has", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn bad_fields_are_named() {
    let server = server();
    let cases = [
        (json!({"max_tokens": 4}), 400, "prompt"),
        (json!({"prompt": ""}), 400, "prompt"),
        (json!({"prompt": []}), 400, "prompt"),
        (json!({"prompt": [[]]}), 400, "prompt"),
        (json!({"prompt": [1, "a"]}), 400, "prompt"),
        (json!({"prompt": [99999]}), 400, "prompt"),
        (json!({"prompt": [-1]}), 400, "prompt"),
        (json!({"prompt": 5}), 400, "prompt"),
        (json!({"prompt": "a", "max_tokens": 0}), 400, "max_tokens"),
        (json!({"prompt": "a", "max_tokens": -3}), 400, "max_tokens"),
        (json!({"prompt": "a", "max_tokens": 1e300}), 400, "max_tokens"),
        (json!({"prompt": "a", "max_tokens": "ten"}), 400, "max_tokens"),
        (json!({"prompt": "a", "max_tokens": 100000}), 400, "100000 were requested"),
        (json!({"prompt": "a", "temperature": -1}), 400, "temperature"),
        (json!({"prompt": "a", "temperature": "hot"}), 400, "temperature"),
        (json!({"prompt": "a", "top_p": 7}), 400, "top_p"),
        (json!({"prompt": "a", "stop": ""}), 400, "stop"),
        (json!({"prompt": "a", "logit_bias": {"99999": 1}}), 400, "logit_bias"),
        (json!({"prompt": "a", "logit_bias": {"x": 1}}), 400, "logit_bias"),
        (json!({"prompt": "a", "n": 1000}), 400, "n"),
        (json!({"prompt": "a", "seed": "x"}), 400, "seed"),
        (json!({"prompt": "a", "model": "medium"}), 404, "model"),
        (json!({"prompt": "a", "response_format": {"type": "json_object"}}), 422, "response_format"),
        (json!({"prompt": "a", "token_routing": {"thresold": 1}}), 400, "token_routing"),
    ];
    for (body, status, field) in cases {
        let answer = post(server.http, "/v1/completions", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        let error = &answer.json()["error"];
        let named = error["param"].as_str().is_some_and(|p| p.contains(field))
            || error["message"].as_str().is_some_and(|m| m.contains(field));
        assert!(named, "{body}: {error}");
    }
    good(&server);
    server.stop();
}

#[test]
fn bad_bodies_are_refused_and_harm_nobody() {
    let server = server();
    let deep = [b"{\"prompt\":".as_slice(), &vec![b'['; 100_000]].concat();
    let bodies: [&[u8]; 10] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{\"prompt\": NaN}",
        b"{\"prompt\": \"a\"} x",
        b"\xff\xfe\x00",
        b"{\"prompt\": \"\xc3\x28\"}",
        b"{\"prompt\": 1e999}",
        &deep,
    ];
    for body in bodies {
        for path in ["/v1/completions", "/v1/chat/completions"] {
            let answer = send(server.http, &request("POST", path, body));
            assert_eq!(answer.status, 400, "{body:?}: {}", answer.body);
            assert!(answer.json()["error"]["message"].is_string(), "{}", answer.body);
        }
    }
    let large = vec![b' '; 1_000_001];
    assert_eq!(send(server.http, &request("POST", "/v1/completions", &large)).status, 413);
    good(&server);
    server.stop();
}

#[test]
fn a_prompt_longer_than_any_context_is_refused_with_the_numbers() {
    let server = server();
    let prompt = vec![430; 4097];
    let answer = post(server.http, "/v1/completions", &json!({"prompt": prompt}));
    assert_eq!(answer.status, 400);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("4096") && message.contains("4097"), "{message}");
    // The limit itself is legal.
    let answer = post(server.http, "/v1/completions", &json!({"prompt": vec![430; 4095], "max_tokens": 1}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.stop();
}

#[test]
fn the_raw_port_answers_good_and_bad_lines() {
    let server = server();
    let mut socket = connect(server.tcp);
    let lines: [&[u8]; 5] = [
        b"{\"id\": 1, \"prompt\": \"Ann has\", \"max_tokens\": 4, \"temperature\": 0}\n",
        b"not json\n",
        b"{\"id\": 2, \"prompt\": \"\xff\"}\n",
        b"{\"id\": \"three\", \"prompt\": \"Ann\", \"temperature\": -1}\n",
        b"{\"id\": 4, \"messages\": [{\"role\": \"user\", \"content\": \"Ann has 2.\"}], \"max_tokens\": 3}\n",
    ];
    for line in lines {
        socket.write_all(line).expect("the server reads");
    }
    socket.shutdown(std::net::Shutdown::Write).expect("a half close");
    let events: Vec<Value> = BufReader::new(socket)
        .lines()
        .map(|l| serde_json::from_str(&l.expect("a line")).expect("JSON"))
        .collect();
    let of = |id: Value| -> Vec<&Value> { events.iter().filter(|e| e["id"] == id).collect() };
    let kinds =
        |id: Value| -> Vec<&str> { of(id).iter().map(|e| e["event"].as_str().expect("an event")).collect() };
    assert_eq!(kinds(json!(1)), ["token", "token", "token", "token", "finish", "done"]);
    assert_eq!(kinds(json!(4)), ["token", "token", "token", "finish", "done"]);
    assert!(of(json!(1)).iter().take(4).all(|e| e["model"] == "small" || e["model"] == "large"));
    assert_eq!(kinds(json!("three")), ["error"]);
    assert_eq!(of(json!("three"))[0]["error"]["param"], "temperature");
    assert_eq!(events.iter().filter(|e| e["event"] == "error").count(), 3, "{events:?}");

    let mut socket = connect(server.tcp);
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the server reads");
    let answer: Vec<String> = BufReader::new(socket).lines().map_while(Result::ok).collect();
    assert!(answer.iter().any(|l| l.contains("HTTP")), "{answer:?}");
    good(&server);
    server.stop();
}

/// A budget that holds fewer tokens than the models' context: what fits is the context then, so that a chat that
/// does not say how long its answer may be is served.
#[test]
fn a_cache_smaller_than_the_context_is_the_context() {
    let config = demo_config("name = \"r-stitch\"\nthreshold = 0.03", "").replace("64MiB", "9MB");
    let server = ServerProcess::start(&config);
    let models = get(server.http, "/v1/models").json();
    let most = models["data"][0]["max_model_len"].as_u64().expect("a number");
    assert!((256..4096).contains(&most), "{models}");
    let chat = json!({"messages": [{"role": "user", "content": problems(1)[0].prompt}], "temperature": 0});
    let answer = post(server.http, "/v1/chat/completions", &chat);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ask = |tokens: u64| json!({"prompt": [430], "max_tokens": tokens, "ignore_eos": true});
    let answer = post(server.http, "/v1/completions", &ask(most - 1));
    assert_eq!(answer.json()["usage"]["completion_tokens"], most - 1, "{}", answer.body);
    assert_eq!(post(server.http, "/v1/completions", &ask(most)).status, 400);
    server.stop();
}

/// Nobody reads the log any more: that is no reason to stop serving.
#[test]
fn a_closed_log_pipe_does_not_end_the_server() {
    let server = ServerProcess::start_without_log(&demo_config("name = \"single\"", ""));
    for _ in 0..3 {
        good(&server);
    }
}
