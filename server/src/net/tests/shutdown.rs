//! Drain, cut, exit, and an engine that ends.

use std::net::TcpStream;
use std::time::Duration;

use super::{Harness, get, post};
use tokenrouter_engine::EngineState;

const SLOW: &str = "{\"prompt\":\"slow\",\"max_tokens\":150,\"stream\":true}";

#[test]
fn a_drain_finishes_what_runs_and_refuses_the_rest() {
    let server = Harness::new();
    let mut idle = server.client();
    idle.send(get("/ready"));
    assert_eq!(idle.answer().status, 200);
    let mut running = server.client();
    running.send(post(SLOW));
    let head = running.head();
    let mut waiting = server.client();
    waiting.send(get("/ready"));
    assert_eq!(waiting.answer().status, 200);
    let mut fresh = server.client();
    let mut fresh_line = server.line_client();
    fresh_line.send("{\"op\":\"ping\"}\n");
    fresh_line.line();
    server.control.drain();
    assert_eq!(idle.rest(), "", "idle connections are closed");
    fresh.send(get("/ready"));
    let ready = fresh.answer();
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    for (request, status) in [(get("/health"), 200), (post(SLOW), 503)] {
        let mut client = server.client();
        client.send(request);
        let answer = client.answer();
        assert_eq!((answer.status, answer.headers["connection"].as_str()), (status, "close"));
        assert_eq!(answer.headers.contains_key("retry-after"), status == 503);
    }
    let mut chunks = Vec::new();
    loop {
        let chunk = running.chunk();
        if chunk.is_empty() {
            break;
        }
        chunks.push(chunk);
    }
    assert_eq!((head.status, chunks.len()), (200, 152), "the running answer is whole");
    assert_eq!(chunks[151], "data: [DONE]\n\n");
    assert_eq!(running.rest(), "");
    let http = server.http;
    let report = server.join();
    assert!(report.clean);
    assert_eq!((report.finished, report.cancelled, report.failed), (1, 0, 0));
    assert!(TcpStream::connect(http).is_err(), "the port is closed");
}

#[test]
fn a_drain_that_takes_too_long_is_cut() {
    let server = Harness::with(|config| config.timeouts.shutdown = Duration::from_millis(100));
    let mut stream = server.client();
    stream.send(post("{\"prompt\":\"hang-late\",\"stream\":true}"));
    stream.head();
    stream.chunk();
    let mut whole = server.client();
    whole.send(post("{\"prompt\":\"hang\"}"));
    let mut line = server.line_client();
    line.send("{\"id\":1,\"prompt\":\"hang\"}\n");
    let mut half = server.client();
    half.send(&post("{\"prompt\":\"hang\"}")[..70]);
    server.engine.wait_for("submit", 3);
    server.control.drain();
    assert!(stream.chunk().contains("\"code\":\"draining\""));
    assert_eq!(stream.chunk(), "data: [DONE]\n\n");
    assert_eq!(stream.chunk(), "");
    assert_eq!((whole.answer().status, line.line()["error"]["code"].as_str()), (503, Some("draining")));
    assert_eq!(half.answer().code(), "draining", "not taken, but answered");
    server.engine.wait_for("cancel", 3);
    drop((stream, whole, line, half));
    server.engine.wait_for("shutdown", 1);
    let report = server.join();
    assert_eq!((report.clean, report.failed), (false, 3));
}

#[test]
fn the_listener_stays_for_the_drain_delay() {
    let server = Harness::with(|config| config.timeouts.drain_delay = Duration::from_millis(300));
    server.control.drain();
    server.engine.wait_for("drain", 1);
    for _ in 0..3 {
        assert_eq!(server.complete(SLOW).code(), "draining");
    }
    assert!(server.join().clean);
}

#[test]
fn a_second_order_ends_at_once() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang-late\",\"stream\":true}"));
    client.head();
    server.control.drain();
    server.engine.wait_for("drain", 1);
    server.control.exit();
    assert!(!server.join().clean);
    client.rest();
}

#[test]
fn a_drain_lets_prepared_requests_through() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"nap\"}"));
    std::thread::sleep(Duration::from_millis(50));
    server.control.drain();
    assert_eq!(client.answer().status, 200, "accepted before the drain");
    assert_eq!(client.rest(), "");
    assert!(server.join().clean);
}

#[test]
fn an_engine_that_ends_fails_what_runs() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"slow\",\"max_tokens\":1000000,\"stream\":true}"));
    client.head();
    server.engine.status.set_state(EngineState::Stopped);
    while !client.chunk().contains("engine_dead") {}
    for (request, code) in [(get("/health"), "engine_dead"), (post(SLOW), "engine_dead")] {
        let mut client = server.client();
        client.send(request);
        let answer = client.answer();
        assert_eq!((answer.status, answer.code().as_str()), (503, code));
    }
}
