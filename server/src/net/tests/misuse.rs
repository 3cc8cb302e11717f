//! Clients that break rules or limits: each gets its answer, and the next client is served.

use std::time::Duration;

use super::{Client, Harness, get, post};

const OK: &str = "{\"prompt\":\"a\"}";

fn refused(server: &Harness, bytes: impl AsRef<[u8]>) -> u16 {
    let mut client = server.client();
    client.send(bytes);
    let answer = client.answer();
    assert_eq!(answer.headers["connection"], "close");
    assert!(answer.json()["error"]["message"].is_string());
    assert_eq!(client.rest(), "");
    assert_eq!(server.complete(OK).status, 200);
    answer.status
}

#[test]
fn limits() {
    let server = Harness::with(|config| config.limits.body = 1000);
    assert_eq!(refused(&server, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000))), 414);
    assert_eq!(
        refused(&server, format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(70_000))),
        431
    );
    assert_eq!(refused(&server, format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(101))), 431);
    assert_eq!(refused(&server, post(&"x".repeat(1001))), 413);
    let chunked = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refused(&server, format!("{chunked}ffffff\r\n")), 413);
}

#[test]
fn bad_framing() {
    let server = Harness::new();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";
    assert_eq!(refused(&server, "{\"prompt\":\"a\"}\n"), 400);
    assert_eq!(refused(&server, [0x16, 3, 1, 2, 0]), 400);
    assert_eq!(refused(&server, format!("{head}Content-Length: -1\r\n\r\n")), 400);
    assert_eq!(
        refused(&server, format!("{head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")),
        400
    );
    assert_eq!(refused(&server, format!("{head}Transfer-Encoding: gzip\r\n\r\n")), 501);
    assert_eq!(refused(&server, format!("{head}Expect: wonders\r\n\r\n")), 417);
    assert_eq!(refused(&server, format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n")), 400);
    assert_eq!(refused(&server, "GET / HTTP/3.0\r\n\r\n"), 505);
}

/// The answer must survive although much of the request is never looked at.
#[test]
fn a_large_refused_body_does_not_destroy_the_answer() {
    let server = Harness::with(|config| config.limits.body = 1000);
    let mut client = server.client();
    client.send(post(&"x".repeat(3 << 20)));
    assert_eq!(client.answer().status, 413);
}

#[test]
fn half_a_request_then_silence() {
    let server = Harness::with(|config| {
        config.timeouts.header = Duration::from_millis(150);
        config.timeouts.body_idle = Duration::from_millis(150);
    });
    let mut silent = server.client();
    let mut head = server.client();
    head.send("GET /health HTT");
    let mut body = server.client();
    body.send(&post(OK)[..post(OK).len() - 1]);
    let mut line = server.line_client();
    line.send("{\"prompt\"");
    for client in [&mut head, &mut body] {
        let answer = client.answer();
        assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (408, Some("timeout_error")));
        assert_eq!(client.rest(), "");
    }
    assert_eq!(line.line()["error"]["type"], "timeout_error");
    assert_eq!(silent.rest(), "");
    assert_eq!(server.complete(OK).status, 200);
}

#[test]
fn idle_connections_are_closed() {
    let server = Harness::with(|config| config.timeouts.keep_alive = Duration::from_millis(50));
    let mut client = server.client();
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.rest(), "");
}

#[test]
fn connections_above_the_limit_are_told() {
    let server = Harness::with(|config| config.max_connections = 2);
    let mut kept: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut kept {
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200);
    }
    let mut third = server.client();
    third.send(get("/health"));
    let answer = third.answer();
    assert_eq!((answer.status, answer.code().as_str()), (503, "too_many_connections"));
    let mut line = server.line_client();
    assert_eq!(line.line()["error"]["code"], "too_many_connections");
    drop((kept, third, line));
    let mut served = 0;
    for _ in 0..200 {
        let mut client = server.client();
        client.send(get("/health"));
        served += u32::from(client.answer().status == 200);
        if served > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(served, 1, "room again after the others left");
}

#[test]
fn too_many_bytes_in_flight_are_refused() {
    let server = Harness::with(|config| config.max_held_bytes = 200_000);
    let mut large = server.client();
    large.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    large.send(vec![b' '; 300_000]);
    let answer = large.answer();
    assert_eq!((answer.status, answer.code().as_str()), (503, "overloaded"));
    assert_eq!(server.complete(OK).status, 200);
}

#[test]
fn many_clients_at_once() {
    let server = Harness::with(|config| config.tokenizer_queue = 512);
    let mut clients: Vec<Client> = (0..200).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(post("{\"prompt\":\"slow\",\"max_tokens\":5,\"stream\":true}"));
    }
    for client in &mut clients {
        let answer = client.answer();
        assert!(answer.status == 200 && answer.chunks.len() == 7 || answer.status == 429, "{answer:?}");
    }
    assert_eq!(server.complete(OK).status, 200);
}

/// Refusing it wrote a second head into the stream.
#[test]
fn a_stream_is_not_refused_for_what_its_client_sent_ahead() {
    let server = Harness::with(|config| config.max_held_bytes = 60_000);
    let mut client = server.client();
    client.send(post("{\"prompt\":\"slow\",\"max_tokens\":100,\"stream\":true}"));
    assert_eq!(client.head().status, 200);
    let ahead = post(&format!("{{\"prompt\":\"a\",\"other\":\"{}\"}}", "x".repeat(120_000)));
    // In two parts: the second read passes what a connection may hold in any case.
    client.send(&ahead[..5000]);
    assert!(client.chunk().starts_with("data: "));
    client.send(&ahead[5000..]);
    let chunks: Vec<String> =
        std::iter::from_fn(|| Some(client.chunk()).filter(|chunk| !chunk.is_empty())).collect();
    assert_eq!(chunks.len(), 101, "the stream is whole");
    // By then the next request is there or on its way: it may hold too much, but is answered.
    assert!([200, 503].contains(&client.answer().status));
}
