//! Streams: framing, stop, disconnects, slow readers.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use super::{Harness, post};

const STREAM: &str = "{\"prompt\":\"a\",\"stream\":true}";

#[test]
fn every_event_is_one_chunk() {
    let server = Harness::new();
    let mut client = server.client();
    for _ in 0..3 {
        client.send(post(STREAM));
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        assert!(answer.headers["content-type"].starts_with("text/event-stream"));
        assert_eq!(answer.headers["cache-control"], "no-cache");
        assert_eq!(answer.headers["x-token-routing"], "fake");
        assert_eq!(answer.chunks.len(), 5, "three tokens, an end, [DONE]");
        for chunk in &answer.chunks {
            assert!(
                chunk.starts_with("data: ") && chunk.ends_with("\n\n") && chunk.matches("\n\n").count() == 1
            );
        }
        assert_eq!(answer.chunks[4], "data: [DONE]\n\n");
    }
}

#[test]
fn tokens_arrive_while_the_answer_goes_on() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang-late\",\"stream\":true}"));
    assert_eq!(client.head().status, 200);
    assert!(client.chunk().contains("\"token\":1"));
}

#[test]
fn a_stop_string_stops_the_engine_and_hides_later_tokens() {
    let server = Harness::new();
    let answer = server.complete("{\"prompt\":\"slow\",\"max_tokens\":100000,\"stop_after\":2}");
    assert_eq!(answer.json()["tokens"].to_string(), "[[1,2]]");
    assert_eq!(answer.json()["ends"][0], "stop");
    server.engine.wait_for("stop 2", 1);
}

#[test]
fn a_failure_in_mid_stream_is_an_event() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"fail-late\",\"stream\":true}"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.chunks.len()), (200, 3));
    assert!(answer.chunks[1].contains("\"error\":{") && answer.chunks[1].contains("engine_error"));
    assert_eq!(answer.chunks[2], "data: [DONE]\n\n");
    client.send(post(STREAM));
    assert_eq!(client.answer().status, 200, "the connection goes on");
}

#[test]
fn a_client_that_leaves_cancels_its_choices() {
    let server = Harness::new();
    let mut busy = 0;
    for (body, choices, read_head) in [
        ("{\"prompt\":\"hang-late\",\"stream\":true,\"n\":3}", 3, true),
        ("{\"prompt\":\"hang\",\"stream\":true}", 1, false),
        ("{\"prompt\":\"hang\",\"n\":2}", 2, false),
        ("{\"prompt\":\"slow\",\"max_tokens\":1000000,\"stream\":true}", 1, true),
    ] {
        let mut client = server.client();
        client.send(post(body));
        if read_head {
            client.head();
            client.chunk();
        }
        busy += choices;
        server.engine.wait_for("submit", busy);
        drop(client);
        server.engine.wait_for("cancel", busy);
    }
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang\"}"));
    server.engine.wait_for("submit", busy + 1);
    client.stream.shutdown(Shutdown::Write).unwrap();
    server.engine.wait_for("cancel", busy + 1);
    assert_eq!(client.rest(), "", "half-closed is gone, on HTTP");
    assert_eq!(server.complete(STREAM).status, 200);
    assert_eq!(server.engine.count("cancel"), busy + 1);
}

#[test]
fn a_client_that_leaves_before_tokenizing_never_reaches_the_engine() {
    let server = Harness::new();
    let mut first = server.client();
    first.send(post("{\"prompt\":\"nap\"}"));
    let mut second = server.client();
    second.send(post("{\"prompt\":\"gone\"}"));
    std::thread::sleep(Duration::from_millis(50));
    drop(second);
    assert_eq!(first.answer().status, 200);
    assert_eq!(server.complete(STREAM).status, 200);
    assert_eq!(server.engine.count("submit gone"), 0);
}

#[test]
fn a_client_far_ahead_of_its_answer_is_not_read_but_its_end_is_seen() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang\"}"));
    server.engine.wait_for("submit", 1);
    // More than the server takes ahead, less than the system holds for it.
    client.send(vec![b'x'; 100_000]);
    drop(client);
    server.engine.wait_for("cancel", 1);
}

#[test]
fn what_a_client_sends_ahead_is_bounded() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang\"}"));
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let junk = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while let Ok(count) = client.stream.write(&junk) {
        sent += count;
        assert!(sent < 64 << 20, "the server reads without bound");
    }
    assert_eq!(server.complete(STREAM).status, 200);
}

/// 3000 events of 6 kB fit into no socket buffer.
const LARGE: &str = "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":3000,\"pad\":6000}";

#[test]
fn a_client_that_stops_reading_is_cut_and_harms_nobody() {
    let server = Harness::with(|config| config.timeouts.write = Duration::from_millis(300));
    let mut stuck = server.client();
    stuck.send(post(LARGE));
    let mut endless = server.client();
    endless.send(post(&LARGE.replace("\"a\"", "\"slow\"").replace("3000", "1000000")));
    for _ in 0..5 {
        assert_eq!(server.complete(STREAM).chunks.len(), 5);
    }
    server.engine.wait_for("cancel", 1);
    assert!(!stuck.rest().ends_with("0\r\n\r\n"), "cut, not finished");
}

#[test]
fn a_slow_reader_gets_everything() {
    let server = Harness::with(|config| config.outbox_bytes = 50_000);
    let mut client = server.client();
    client.send(post(LARGE));
    server.engine.wait_for("submit", 1);
    std::thread::sleep(Duration::from_millis(100));
    let answer = client.answer();
    assert_eq!(answer.chunks.len(), 3002);
    for (index, chunk) in answer.chunks[..3000].iter().enumerate() {
        assert!(chunk.contains(&format!("\"token\":{},", index + 1)), "{index}");
    }
}

#[test]
fn a_quiet_stream_is_pinged() {
    let server = Harness::with(|config| config.timeouts.ping = Duration::from_millis(30));
    let mut client = server.client();
    client.send(post("{\"prompt\":\"hang-late\",\"stream\":true}"));
    client.head();
    client.chunk();
    assert_eq!(client.chunk(), ": ping\n\n");
    assert_eq!(client.chunk(), ": ping\n\n");
}
