use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::config::NetConfig;
use super::conn::Next;
use super::frontend::Refusal;
use super::line::{LineConn, Probe, probe};

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
        assert_eq!(lines, [b"{\"a\":1}", b"{\"b\":2}", b"{\"c\":3}"], "split at {at}");
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
        let event: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&event["id"], &event["event"]), (&Value::Null, &json!("error")));
        assert!(event["error"]["message"].as_str().unwrap().contains(word), "{text}");
        assert_eq!(conn.next_step(), Next::ShutdownWrite);
    }
}

#[test]
fn every_request_ends_once() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.begin(1, json!("x"));
    conn.begin(2, Value::Null);
    conn.begin(3, Value::Null);
    assert_eq!((conn.find(&json!("x")), conn.find(&Value::Null)), (Some(1), None));
    assert!(!conn.set_id(3, json!("x")) && conn.set_id(3, json!(3)));
    conn.stream(now, 1, b"one\n", false);
    conn.stream(now, 1, b"two\n", true);
    conn.stream(now, 1, b"late\n", true);
    conn.fail(now, 3, &Refusal::new(429, None, "m"));
    conn.fail(now, 3, &Refusal::new(429, None, "m"));
    let text = take(&mut conn, now);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), &lines[..2]), (3, &["one", "two"][..]));
    assert!(lines[2].starts_with("{\"id\":3,\"event\":\"error\",\"error\":{\"message\":\"m\","), "{text}");
    assert_eq!(conn.running().collect::<Vec<_>>(), [2]);
}

#[test]
fn half_close_waits_for_what_runs() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.begin(1, Value::Null);
    conn.on_end();
    assert_eq!(conn.next_step(), Next::Wait);
    conn.stream(now, 1, b"done\n", true);
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
    assert!(take(&mut conn, now).contains("timeout_error"));
    conn.half_closed(now);
    assert!(conn.on_deadline(now + times.linger + Duration::from_millis(1)));
}

#[test]
fn probes() {
    let probe_of = |text: &str| probe(text.as_bytes());
    let none = Ok(Probe::default());
    assert_eq!(probe_of("{\"id\": 7, \"messages\": []}"), Ok(Probe { id: json!(7), ..Probe::default() }));
    assert_eq!(probe_of("{\"op\":\"ping\",\"id\":null}").unwrap().op.as_deref(), Some("ping"));
    for bad in ["[1]", "{", "{\"id\":{}}", "{\"id\":1.5}", "null", "{} {}"] {
        assert_eq!(probe_of(bad), none, "{bad}");
    }
    assert_eq!(probe(b"{\"id\":\"\xff\"}"), none);
    assert!(probe_of(&format!("{{\"id\":\"{}\"}}", "x".repeat(129))).is_err());
}

/// What the front end would take as the id is the id here too, or a cancel could not find the request.
#[test]
fn an_id_beside_odd_members_is_still_found() {
    let cases = [
        ("{\"id\":1,\"op\":7}", json!(1), Some("7")),
        ("{\"op\":[],\"id\":\"a\"}", json!("a"), Some("[]")),
        ("{\"id\":1,\"id\":2}", json!(2), None),
        ("{\"id\":1,\"op\":\"ping\",\"op\":null}", json!(1), None),
    ];
    for (text, id, op) in cases {
        let wanted = Probe { id, op: op.map(str::to_owned), key: None };
        assert_eq!(probe(text.as_bytes()), Ok(wanted), "{text}");
    }
    let twice = format!("{{\"id\":1,\"id\":\"{}\"}}", "x".repeat(129));
    assert!(probe(twice.as_bytes()).is_err());
}

/// Taking a line must not move the bytes behind it: then this would be terabytes, and the test would not end.
#[test]
fn a_flood_of_empty_lines_costs_linear_time() {
    let now = Instant::now();
    let mut conn = conn(now);
    conn.on_bytes(now, &vec![b'\n'; 8 << 20]);
    assert_eq!((conn.next_line(now), conn.held()), (None, 0));
}
