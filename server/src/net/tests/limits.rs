//! Requests that wait or take too long, and a server that is still loading.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::engine::FakeEngine;
use super::frontend::FakeFrontend;
use super::{Client, Harness, get, post, served};
use crate::net::{App, NetConfig, Server};

fn ms(count: u64) -> Option<Duration> {
    Some(Duration::from_millis(count))
}

#[test]
fn a_request_that_waits_too_long_is_told_to_come_again() {
    let server = Harness::with(|config| config.timeouts.queue = ms(60));
    server.engine.status.waiting.store(1, Ordering::Relaxed);
    let answer = server.complete("{\"prompt\":\"hang\",\"stream\":true}");
    assert_eq!((answer.status, answer.code().as_str()), (503, "queue_timeout"));
    assert_eq!(answer.headers["retry-after"], "1");
    server.engine.wait_for("cancel", 1);
    let mut line = server.line_client();
    line.send("{\"id\":1,\"prompt\":\"hang\"}\n");
    assert_eq!(line.line()["error"]["code"], "queue_timeout");
    // One that has begun is not waiting.
    let answer = server.complete("{\"prompt\":\"slow\",\"max_tokens\":100}");
    assert_eq!(answer.status, 200);
    // And none is where the engine has no queue: this one's prompt is being read.
    server.engine.status.waiting.store(0, Ordering::Relaxed);
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang\",\"stop_after\":1}"));
    server.engine.wait_for("submit hang", 3);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(server.engine.count("cancel"), 2);
}

#[test]
fn a_request_that_takes_too_long_ends_with_what_it_has() {
    let server = Harness::with(|config| config.timeouts.request = ms(150));
    for stream in [false, true] {
        let answer = server.complete(&format!("{{\"prompt\":\"hang-late\",\"n\":2,\"stream\":{stream}}}"));
        assert_eq!(answer.status, 200);
        match stream {
            false => assert_eq!(answer.body, "{\"tokens\":[[1],[1]],\"ends\":[\"length\",\"length\"]}"),
            true => assert_eq!(answer.body.matches("\"finish\":\"length\"").count(), 2, "{}", answer.body),
        }
    }
    server.engine.wait_for("stop 1", 4);
    let answer = server.complete("{\"prompt\":\"hang\"}");
    assert_eq!((answer.status, answer.code().as_str()), (504, "request_timeout"));
    assert_eq!(answer.json()["error"]["type"], "timeout_error");
    assert_eq!(answer.headers["x-should-retry"], "false");
    server.engine.wait_for("cancel", 1);
    let whole = server.complete("{\"prompt\":\"a\"}");
    assert_eq!(whole.body, "{\"tokens\":[[1,2,3]],\"ends\":[\"length\"]}");
}

#[test]
fn tokens_behind_the_cut_do_not_count() {
    let server = Harness::with(|config| config.timeouts.request = ms(100));
    let answer = server.complete("{\"prompt\":\"slow\",\"max_tokens\":100000}");
    let tokens = answer.json()["tokens"][0].as_array().unwrap().len();
    server.engine.wait_for("stop", 1);
    assert_eq!(server.engine.log().last().unwrap(), &format!("stop {tokens}"));
}

#[test]
fn a_full_queue_refuses_before_it_tokenizes() {
    let server = Harness::with(|config| config.max_waiting = 5);
    server.engine.status.waiting.store(5, Ordering::Relaxed);
    let mut client = server.client();
    client.send(post("{\"prompt\":\"panic\"}"));
    assert_eq!(client.answer().code(), "queue_full");
    client.send("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1");
    assert_eq!(client.answer().status, 200, "this waits for no engine");
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    );
    assert_eq!(client.answer().status, 429, "instead of 100");
}

#[test]
fn failures_that_would_come_again_say_so() {
    let server = Harness::new();
    let answer = server.complete("{\"prompt\":\"fail\"}");
    assert_eq!((answer.status, answer.headers["x-should-retry"].as_str()), (500, "false"));
    let answer = server.complete("{\"prompt\":\"panic\"}");
    assert_eq!((answer.status, answer.headers["x-should-retry"].as_str()), (500, "false"));
    let answer = server.complete("{\"prompt\":\"refuse-full\"}");
    assert!(answer.status == 429 && !answer.headers.contains_key("x-should-retry"));
}

#[test]
fn a_loading_server_says_so_and_then_serves_the_same_connections() {
    let any = Some((std::net::Ipv4Addr::LOCALHOST, 0).into());
    let config = NetConfig { http: any, tcp: any, handle_signals: false, ..NetConfig::default() };
    let server = Server::bind(config).unwrap();
    let waker = server.waker();
    let loading = server.answer_loading().unwrap();
    let http = loading.http_addr().unwrap();
    let mut client = Client::new(http);
    for path in ["/health", "/ready", "/v1/models", "/metrics", "/props", "/v1/models/pair"] {
        client.send(get(path));
        let answer = client.answer();
        assert_eq!((answer.status, answer.code().as_str()), (503, "loading"), "{path}");
        assert!(answer.headers.contains_key("retry-after"));
    }
    client.send(post("{\"prompt\":\"a\"}"));
    assert_eq!(client.answer().code(), "loading");
    client.send(get("/version"));
    assert_eq!(client.answer().status, 200);
    let mut line = Client::new(loading.tcp_addr().unwrap());
    line.send("{\"id\":1,\"prompt\":\"a\"}\n");
    assert_eq!(line.line()["error"]["code"], "loading");

    let (_engine, handle) = FakeEngine::start(Box::new(waker));
    let app =
        App { engine: handle, frontend: Arc::new(FakeFrontend), routes: served(), props: b"{}".to_vec() };
    let loaded = loading.finish(app).unwrap();
    let control = loaded.control();
    let thread = std::thread::spawn(move || loaded.run().unwrap());
    client.send(get("/ready"));
    assert_eq!(
        client.answer().json()["status"],
        "ready",
        "from the moment on at which it is known to be loaded"
    );
    client.send(post("{\"prompt\":\"a\"}"));
    assert_eq!(client.answer().status, 200);
    line.send("{\"id\":2,\"prompt\":\"a\"}\n");
    assert_eq!(line.line()["event"], "token");
    control.exit();
    thread.join().unwrap();
}

#[test]
fn a_server_that_cannot_load_closes_its_ports() {
    let any = Some((std::net::Ipv4Addr::LOCALHOST, 0).into());
    let config = NetConfig { http: any, tcp: None, handle_signals: false, ..NetConfig::default() };
    let loading = Server::bind(config).unwrap().answer_loading().unwrap();
    let http = loading.http_addr().unwrap();
    let mut client = Client::new(http);
    client.send(get("/health"));
    assert_eq!(client.answer().status, 503);
    drop(loading);
    assert_eq!(client.rest(), "");
    assert!(std::net::TcpStream::connect(http).is_err());
}
