//! API keys, and pages of other origins.

use std::sync::Arc;

use super::{Client, Harness, get, post};
use crate::net::{Access, NetConfig, Secret};

const BODY: &str = "{\"prompt\":\"a\"}";

fn with_keys(config: &mut NetConfig) {
    let origins = vec!["https://chat.example".to_owned()];
    config.access = Arc::new(Access::new(vec![Secret::new("sk-1"), Secret::new("sk-2")], origins));
}

fn ask(client: &mut Client, request: &str, headers: &str) -> super::Answer {
    client.send(request.replace("Host: a\r\n", &format!("Host: a\r\n{headers}")));
    client.answer()
}

#[test]
fn what_works_without_a_key_and_what_does_not() {
    let server = Harness::with(with_keys);
    let mut client = server.client();
    for free in ["/health", "/v1/health", "/ready", "/metrics", "/version", "/ping", "/load"] {
        assert_eq!(ask(&mut client, &get(free), "").status, 200, "{free}");
    }
    for path in ["/v1/models", "/v1/models/pair", "/v1/scheduling", "/props", "/v1/status"] {
        assert_eq!(ask(&mut client, &get(path), "").status, 401, "{path}");
    }
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/abort_request"] {
        assert_eq!(ask(&mut client, &post(BODY).replace("/v1/completions", path), "").status, 401, "{path}");
    }
    let answer = ask(&mut client, &post(BODY), "Authorization: Bearer sk-3\r\n");
    assert_eq!(
        (answer.code().as_str(), answer.headers["www-authenticate"].as_str()),
        ("invalid_api_key", "Bearer")
    );
    assert_eq!(answer.headers["connection"], "keep-alive", "the body was read");
    assert_eq!(ask(&mut client, &post(BODY), "authorization: bearer sk-2\r\n").status, 200);
    assert_eq!(ask(&mut client, &get("/v1/models"), "Authorization: Bearer sk-1\r\n").status, 200);
    assert_eq!(ask(&mut client, &get("/nothing"), "").status, 404);
}

#[test]
fn metrics_ask_for_a_key_when_told_so() {
    let server = Harness::with(|config| {
        with_keys(config);
        config.metrics_need_key = true;
    });
    let mut client = server.client();
    assert_eq!(ask(&mut client, &get("/metrics"), "").status, 401);
    assert_eq!(ask(&mut client, &get("/metrics"), "Authorization: Bearer sk-1\r\n").status, 200);
}

/// What strangers send is read, so that they can read the answer, but not kept.
#[test]
fn a_stranger_holds_no_memory() {
    let server = Harness::with(|config| {
        with_keys(config);
        config.max_held_bytes = 100_000;
    });
    let mut client = server.client();
    client.send(post(&"x".repeat(3 << 20)));
    assert_eq!(client.answer().status, 401);
    client.send("POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..40 {
        client.send(format!("10000\r\n{}\r\n", "x".repeat(0x10000)));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status, 401);
    assert_eq!(ask(&mut client, &post(BODY), "Authorization: Bearer sk-1\r\n").status, 200);
}

#[test]
fn expectations_are_refused_before_the_body() {
    let server = Harness::with(with_keys);
    let mut client = server.client();
    client.send("POST /tokenize HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.headers["connection"].as_str()), (401, "close"));
    assert_eq!(client.rest(), "");
}

#[test]
fn pages_of_listed_origins_can_read_answers_and_errors() {
    let server = Harness::with(with_keys);
    let mut client = server.client();
    let origin = "Origin: https://chat.example\r\n";
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAccess-Control-Request-Method: POST\r\n\
                     Access-Control-Request-Headers: authorization,content-type\r\n\r\n";
    let answer = ask(&mut client, preflight, origin);
    assert_eq!((answer.status, answer.body.as_str()), (204, ""), "no key needed");
    assert_eq!(answer.headers["access-control-allow-origin"], "https://chat.example");
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,content-type");
    assert!(answer.headers["access-control-allow-methods"].contains("POST"));
    assert_eq!(ask(&mut client, preflight, "Origin: https://evil.example\r\n").status, 403);

    let keyed = format!("{origin}Authorization: Bearer sk-1\r\n");
    let stream = post("{\"prompt\":\"a\",\"stream\":true}");
    for (request, headers, status) in [
        (post(BODY), origin, 401),
        (post(BODY), keyed.as_str(), 200),
        (stream, keyed.as_str(), 200),
        (post("nonsense"), keyed.as_str(), 400),
        (get("/nothing"), origin, 404),
        (get("/v1/completions"), origin, 405),
    ] {
        let answer = ask(&mut client, &request, headers);
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers["access-control-allow-origin"], "https://chat.example");
        assert_eq!(answer.headers["vary"], "Origin");
        assert!(answer.headers["access-control-expose-headers"].contains("x-request-id"));
        let plain = ask(&mut client, &request, headers.replace(origin, "").as_str());
        assert!(!plain.headers.contains_key("access-control-allow-origin"));
    }
    // Faults that end the connection carry them too, and the id.
    let fault =
        post(BODY).replace("Content-Length", "Content-Encoding: gzip\r\nx-request-id: r7\r\nContent-Length");
    let answer = ask(&mut client, &fault, origin);
    assert_eq!((answer.status, answer.headers["x-request-id"].as_str()), (415, "r7"));
    assert_eq!(answer.headers["access-control-allow-origin"], "https://chat.example");
    assert_eq!(client.rest(), "");
}

#[test]
fn a_line_connection_opens_with_a_key() {
    let server = Harness::with(with_keys);
    let mut client = server.line_client();
    client.send(
        "{\"op\":\"auth\",\"id\":1,\"key\":\"sk-2\"}\n{\"op\":\"ping\"}\n{\"id\":2,\"prompt\":\"a\"}\n",
    );
    assert_eq!(client.line(), serde_json::json!({"id": 1, "event": "ok"}));
    assert_eq!(client.line()["event"], "pong");
    assert_eq!(client.line()["event"], "token");

    let large = format!("{{\"prompt\":\"{}\"}}\n", "x".repeat(20_000));
    for (first, code) in [
        ("{\"op\":\"auth\",\"key\":\"sk-3\"}\n", "invalid_api_key"),
        ("{\"op\":\"auth\",\"key\":7}\n", "invalid_api_key"),
        ("{\"op\":\"auth\"}\n", "invalid_api_key"),
        ("{\"op\":\"ping\"}\n", "invalid_api_key"),
        ("{\"prompt\":\"a\",\"key\":\"sk-1\"}\n", "invalid_api_key"),
        ("nonsense\n", "invalid_api_key"),
        (large.as_str(), "request_too_large"),
    ] {
        let mut client = server.line_client();
        client.send(first);
        assert_eq!(client.line()["error"]["code"], code, "{first:.40}");
        assert_eq!(client.rest(), "", "closed");
    }
    assert_eq!(server.engine.count("submit"), 1);
}

#[test]
fn without_keys_an_auth_line_does_no_harm() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("{\"op\":\"auth\",\"id\":\"a\",\"key\":\"anything\"}\n");
    assert_eq!(client.line(), serde_json::json!({"id": "a", "event": "ok"}));
}
