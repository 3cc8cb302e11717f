use std::time::{Duration, Instant};

use super::config::NetConfig;
use super::conn::Next;
use super::http::write::Response;
use super::line::{LineConn, LineName, Probe, probe};

fn conn(now: Instant) -> LineConn {
    let mut config = NetConfig::default();
    config.limits.body = 40;
    LineConn::new(&config, now)
}

fn take(conn: &mut LineConn, now: Instant) -> String {
    let text = String::from_utf8_lossy(conn.out().pending()).into_owned();
    let length = conn.out().len();
    conn.out().advance(now, length);
    text
}

#[test]
fn lines_are_the_same_for_every_split() {
    let now = Instant::now();
    let input = b"{\"a\":1}\r\n\n  \n{\"b\":2}\n{\"c\":3}";
    for at in 0..=input.len() {
        let mut conn = conn(now);
        let mut lines = Vec::new();
        for piece in [&input[..at], &input[at..]] {
            conn.on_bytes(now, piece);
            lines.extend(std::iter::from_fn(|| conn.next_line(now)));
        }
        conn.on_end();
        lines.extend(std::iter::from_fn(|| conn.next_line(now)));
        let expected = [(1, "{\"a\":1}"), (4, "{\"b\":2}"), (5, "{\"c\":3}")];
        let expected: Vec<_> =
            expected.iter().map(|(line, text)| (*line, text.as_bytes().to_vec())).collect();
        assert_eq!(lines, expected, "split at {at}");
        assert_eq!(conn.next_step(), Next::Close);
    }
}

#[test]
fn other_protocols_and_long_lines_are_refused() {
    let now = Instant::now();
    for (input, word) in [
        (&b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"[..], "not HTTP"),
        (b"\x16\x03\x01", "without TLS"),
        (&[b'x'; 41], "too long"),
    ] {
        let mut conn = conn(now);
        conn.on_bytes(now, input);
        assert_eq!(conn.next_line(now), None);
        let text = take(&mut conn, now);
        assert!(
            text.contains(word) && text.starts_with("{\"id\":null,\"line\":1,\"event\":\"error\""),
            "{text}"
        );
        assert!(text.ends_with("{\"id\":null,\"line\":1,\"event\":\"done\"}\n"), "{text}");
        assert_eq!(conn.next_step(), Next::ShutdownWrite);
    }
}

#[test]
fn events_carry_the_id() {
    let now = Instant::now();
    let mut conn = conn(now);
    assert!(conn.begin(1, LineName { line: 1, id: Some("\"x\"".into()) }));
    assert!(!conn.begin(2, LineName { line: 2, id: Some("\"x\"".into()) }));
    assert!(conn.begin(3, LineName { line: 3, id: None }));
    assert!(!conn.set_id(3, "\"x\"".into()) && conn.set_id(3, "3".into()));
    assert_eq!(conn.find("3"), Some(3));
    conn.stream(now, 1, b"data: {\"id\":1}\n\n: ping\n\n", false);
    conn.stream(now, 1, b"data: {\"error\":{}}\n\ndata: [DONE]\n\n", true);
    conn.respond(now, 3, &Response::json(200, b"{}".to_vec()));
    conn.respond(now, 3, &Response::json(200, b"{}".to_vec()));
    let lines = [
        "{\"id\":\"x\",\"event\":\"chunk\",\"data\":{\"id\":1}}",
        "{\"id\":\"x\",\"event\":\"error\",\"data\":{\"error\":{}}}",
        "{\"id\":\"x\",\"event\":\"done\"}",
        "{\"id\":3,\"event\":\"answer\",\"data\":{}}",
        "{\"id\":3,\"event\":\"done\"}",
    ];
    assert_eq!(take(&mut conn, now).lines().collect::<Vec<_>>(), lines);
    assert_eq!(conn.running().len(), 0);
}

#[test]
fn half_close_waits_for_what_runs() {
    let now = Instant::now();
    let mut conn = conn(now);
    assert!(conn.begin(1, LineName { line: 1, id: None }));
    conn.on_end();
    assert_eq!(conn.next_step(), Next::Wait);
    conn.respond(now, 1, &Response::json(200, b"{}".to_vec()));
    assert_eq!(conn.next_step(), Next::Wait, "the answer is not out");
    take(&mut conn, now);
    assert_eq!(conn.next_step(), Next::Close);
}

#[test]
fn an_unfinished_line_times_out() {
    let now = Instant::now();
    let times = NetConfig::default().timeouts;
    let mut conn = conn(now);
    assert_eq!(conn.deadline(), Some(now + times.line_idle));
    conn.on_bytes(now, b"{\"a\":");
    assert_eq!(conn.next_line(now), None);
    assert_eq!(conn.deadline(), Some(now + times.body_idle));
    assert!(!conn.on_deadline(now + times.body_idle));
    assert!(take(&mut conn, now).contains("\"status\":408"));
    conn.half_closed(now);
    assert!(conn.on_deadline(now + times.linger + Duration::from_millis(1)));
}

#[test]
fn probes() {
    let probe_of = |text: &str| probe(text.as_bytes());
    assert_eq!(
        probe_of("{\"id\": 7, \"messages\": []}"),
        Ok(Probe { id: Some("7".into()), op: None, chat: true })
    );
    assert_eq!(probe_of("{\"op\":\"ping\",\"id\":null}").unwrap().op.as_deref(), Some("ping"));
    for bad in ["[1]", "{", "{\"id\":{}}", "{\"id\":[1]}", "null", "{\"op\":1}", "{} {}"] {
        assert!(probe_of(bad).is_err(), "{bad}");
    }
    assert!(probe(b"{\"id\":\"\xff\"}").is_err());
    assert!(probe_of(&format!("{{\"id\":\"{}\"}}", "x".repeat(129))).is_err());
}
