use std::time::{Duration, Instant};

use super::config::NetConfig;
use super::conn::{HttpConn, Next};
use super::http::head::{Head, Method};
use super::http::write::{Headers, Response};

const SECOND: Duration = Duration::from_secs(1);

fn conn(now: Instant) -> HttpConn {
    HttpConn::new(&NetConfig::default(), now, "c7".into())
}

fn open(_: &Head) -> Option<Response> {
    None
}

fn gate(head: &Head) -> Option<Response> {
    (head.path != "/ok").then(|| Response::error(404, None, "no such path"))
}

fn take(conn: &mut HttpConn, now: Instant) -> String {
    let text = String::from_utf8_lossy(conn.out().pending()).into_owned();
    let length = conn.out().len();
    conn.out().advance(now, length);
    conn.on_flushed(now);
    text
}

fn ok() -> Response {
    Response::json(200, b"{}".to_vec())
}

const GET: &[u8] = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn pipelined_requests_are_answered_one_by_one() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.on_bytes(now, &[GET, GET, &GET[..9]].concat());
    for _ in 0..2 {
        assert_eq!(conn.next_request(now, open).unwrap().head.method, Method::Get);
        assert!(conn.next_request(now, open).is_none());
        conn.respond(now, &ok());
        assert!(conn.next_request(now, open).is_none(), "the former answer is not out");
        assert!(take(&mut conn, now).contains("keep-alive"));
    }
    assert!(conn.next_request(now, open).is_none());
    conn.on_bytes(now, &GET[9..]);
    assert!(conn.next_request(now, open).is_some());
    assert_eq!(conn.request_id(), "c7-2");
    conn.on_end();
    assert!(conn.is_busy() && conn.has_ended(), "the end of input during an answer cancels it");
}

#[test]
fn a_client_cannot_send_far_ahead() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.on_bytes(now, GET);
    assert!(conn.next_request(now, open).is_some());
    assert!(conn.wants_read());
    conn.on_bytes(now, &[b'x'; 64 << 10]);
    assert!(!conn.wants_read());
}

#[test]
fn deadlines() {
    let start = Instant::now();
    let times = NetConfig::default().timeouts;
    let mut silent = conn(start);
    assert_eq!(silent.deadline(), Some(start + times.header));
    assert!(!silent.on_deadline(start + SECOND));
    assert!(silent.on_deadline(start + times.header), "no byte: closed without an answer");

    let mut half = conn(start);
    half.on_bytes(start + SECOND, b"\r\nGET /");
    assert!(half.next_request(start + SECOND, open).is_none());
    half.on_bytes(start + 5 * SECOND, b"o");
    assert!(half.next_request(start + 5 * SECOND, open).is_none());
    assert_eq!(half.deadline(), Some(start + SECOND + times.header), "single bytes do not help");
    assert!(!half.on_deadline(start + SECOND + times.header));
    assert!(take(&mut half, start).starts_with("HTTP/1.1 408 "));
    assert_eq!(half.next_step(), Next::ShutdownWrite);
    half.half_closed(start);
    assert_eq!(half.deadline(), Some(start + times.linger));

    let mut body = conn(start);
    body.on_bytes(start, b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    assert!(body.next_request(start, open).is_none());
    body.on_bytes(start + 20 * SECOND, b"b");
    assert_eq!(body.deadline(), Some(start + 20 * SECOND + times.body_idle));
    assert!(!body.on_deadline(start + 50 * SECOND));
    assert!(take(&mut body, start).starts_with("HTTP/1.1 408 "));

    let mut idle = conn(start);
    idle.on_bytes(start, GET);
    assert!(idle.next_request(start, open).is_some());
    assert_eq!(idle.deadline(), None, "an answer may take long");
    idle.respond(start, &ok());
    assert_eq!(idle.deadline(), Some(start + times.write));
    take(&mut idle, start + SECOND);
    assert_eq!(idle.deadline(), Some(start + SECOND + times.keep_alive));
    assert!(idle.on_deadline(start + SECOND + times.keep_alive));
}

#[test]
fn a_stuck_client_is_cut() {
    let start = Instant::now();
    let times = NetConfig::default().timeouts;
    let mut conn = conn(start);
    conn.on_bytes(start, GET);
    assert!(conn.next_request(start, open).is_some());
    conn.stream(start, &Headers::new(), b"data: 1\n\n", false);
    assert!(!conn.on_deadline(start + times.ping), "bytes wait: no ping on top");
    assert!(conn.on_deadline(start + times.write));
}

#[test]
fn streams_are_chunked_and_pinged() {
    let start = Instant::now();
    let times = NetConfig::default().timeouts;
    let mut conn = conn(start);
    conn.on_bytes(start, GET);
    assert!(conn.next_request(start, open).is_some());
    conn.stream(start, &Headers::new(), b"data: 1\n\n", false);
    let first = take(&mut conn, start);
    assert!(
        first.contains("text/event-stream") && first.ends_with("\r\n\r\n9\r\ndata: 1\n\n\r\n"),
        "{first}"
    );
    assert_eq!(conn.deadline(), Some(start + times.ping));
    assert!(!conn.on_deadline(start + times.ping));
    assert_eq!(take(&mut conn, start), "8\r\n: ping\n\n\r\n");
    conn.stream(start, &Headers::new(), b"data: [DONE]\n\n", true);
    assert!(take(&mut conn, start).ends_with("0\r\n\r\n"));
    conn.on_bytes(start, GET);
    assert!(conn.next_request(start, open).is_some());
}

#[test]
fn http10_streams_end_with_the_connection() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.on_bytes(now, b"GET /ok HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert!(conn.next_request(now, open).is_some());
    conn.stream(now, &Headers::new(), b"data: 1\n\n", true);
    let answer = take(&mut conn, now);
    assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.contains("Connection: close"));
    assert!(answer.ends_with("\r\n\r\ndata: 1\n\n") && !answer.contains("chunked"));
    assert_eq!(conn.next_step(), Next::ShutdownWrite);
}

#[test]
fn expect_continue() {
    let now = Instant::now();
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            .into_bytes()
    };
    let mut good = conn(now);
    good.on_bytes(now, &head("/ok"));
    assert!(good.next_request(now, gate).is_none());
    assert_eq!(take(&mut good, now), "HTTP/1.1 100 Continue\r\n\r\n");
    good.on_bytes(now, b"{}");
    assert_eq!(good.next_request(now, gate).unwrap().body, b"{}");

    let mut eager = conn(now);
    eager.on_bytes(now, &[&head("/ok")[..], b"{}"].concat());
    assert!(eager.next_request(now, gate).is_some());
    assert!(take(&mut eager, now).is_empty());

    let mut bad = conn(now);
    bad.on_bytes(now, &head("/bad"));
    assert!(bad.next_request(now, gate).is_none());
    let answer = take(&mut bad, now);
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("Connection: close"), "{answer}");
    assert_eq!(bad.next_step(), Next::ShutdownWrite);
}

#[test]
fn a_refused_body_is_read_and_the_connection_kept() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.on_bytes(now, b"POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
    assert!(conn.next_request(now, gate).is_none());
    assert!(take(&mut conn, now).is_empty());
    conn.on_bytes(now, &[b"bc", GET].concat());
    assert!(conn.next_request(now, gate).is_none());
    assert!(take(&mut conn, now).starts_with("HTTP/1.1 404 "));
    assert!(conn.next_request(now, gate).is_some());
}

#[test]
fn draining_closes_idle_connections_and_marks_the_last_answer() {
    let now = Instant::now();
    let mut idle = conn(now);
    idle.finish_soon();
    assert_eq!(idle.next_step(), Next::Wait, "a new connection may still ask");
    idle.on_bytes(now, GET);
    assert!(idle.next_request(now, open).is_some());
    idle.respond(now, &ok());
    assert!(take(&mut idle, now).contains("Connection: close"));
    assert_eq!(idle.next_step(), Next::ShutdownWrite);
}
