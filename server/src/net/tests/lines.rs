//! The raw TCP port.

use std::collections::BTreeMap;
use std::net::Shutdown;

use super::{Client, Harness};

/// Events up to the last one of every request, by id.
fn collect(client: &mut Client, requests: usize) -> BTreeMap<String, Vec<String>> {
    let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut ended = 0;
    while ended < requests {
        let line = client.line();
        let event = line["event"].as_str().unwrap();
        ended += usize::from(event == "done" || event == "error");
        let error = line["error"]["type"].as_str().map(|kind| format!(" {kind}")).unwrap_or_default();
        events.entry(line["id"].to_string()).or_default().push(event.to_owned() + &error);
    }
    events
}

const INVALID: &str = "error invalid_request_error";

#[test]
fn requests_run_at_the_same_time() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("{\"id\":1,\"prompt\":\"slow\",\"max_tokens\":20}\n");
    client.send("{\"id\":\"b\",\"prompt\":\"a\"}\r\n\n{\"prompt\":\"a\"}\n");
    let events = collect(&mut client, 3);
    assert_eq!(events["1"].len(), 22);
    assert_eq!(events["\"b\""], ["token", "token", "token", "token", "done"]);
    assert_eq!(events["null"].len(), 5);
}

#[test]
fn bad_lines_hurt_only_themselves() {
    let server = Harness::with(|config| config.limits.body = 100_000);
    let mut client = server.line_client();
    client.send("{\"id\":\"run\",\"prompt\":\"hang-late\"}\n");
    assert_eq!(client.line()["event"], "token");
    client.send("nonsense\n[1]\n{\"id\":{}}\n");
    client.send(b"{\"id\":7,\"prompt\":\"\xff\"}\n");
    client.send(format!("{{\"id\":\"{}\"}}\n", "x".repeat(129)));
    let bad = collect(&mut client, 5);
    assert_eq!(bad["null"], [INVALID; 4]);
    assert_eq!(bad["7"], [INVALID], "not UTF-8, but the id could be read");
    client.send("{\"op\":\"dance\",\"id\":2}\n{\"id\":3,\"prompt\":5}\n");
    let bad = collect(&mut client, 2);
    assert_eq!((&bad["2"][..], &bad["3"][..]), (&[INVALID.to_owned()][..], &[INVALID.to_owned()][..]));
    let long = |id: &str| format!("{{\"id\":{id},\"prompt\":\"a\",\"other\":\"{}\"}}\n", "x".repeat(50_000));
    client.send(long("9"));
    assert_eq!(collect(&mut client, 1)["9"].len(), 5);
    client.send(long("\"run\"") + "{\"id\":\"run\",\"prompt\":\"a\"}\n");
    assert_eq!(collect(&mut client, 2)["null"], [INVALID; 2], "an id in use");
    client.send("{\"op\":\"ping\",\"id\":5}\n");
    assert_eq!(client.line(), serde_json::json!({"id": 5, "event": "pong"}));
    assert_eq!(server.engine.count("cancel"), 0);
    client.send("{\"op\":\"cancel\",\"id\":\"other\"}\n{\"op\":\"cancel\",\"id\":\"run\"}\n");
    assert_eq!(collect(&mut client, 1)["\"run\""], [INVALID]);
    server.engine.wait_for("cancel", 1);
    client.send("x".repeat(100_001));
    assert_eq!(client.line()["error"]["code"], "request_too_large");
    assert_eq!(client.rest(), "");
}

#[test]
fn too_many_requests_on_one_connection() {
    let server = Harness::with(|config| config.max_line_requests = 2);
    let mut client = server.line_client();
    client.send(
        "{\"id\":1,\"prompt\":\"hang\"}\n{\"id\":2,\"prompt\":\"hang\"}\n{\"id\":3,\"prompt\":\"a\"}\n",
    );
    assert_eq!(collect(&mut client, 1)["3"], ["error rate_limit_error"]);
}

#[test]
fn http_on_the_raw_port() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}");
    let text = client.rest();
    assert!(text.contains("not HTTP") && text.lines().count() == 1, "{text}");
}

#[test]
fn a_half_closed_connection_gets_its_answers() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("{\"id\":1,\"prompt\":\"slow\",\"max_tokens\":30}\n{\"id\":2,\"prompt\":\"a\"}");
    client.stream.shutdown(Shutdown::Write).unwrap();
    let events = collect(&mut client, 2);
    assert_eq!((events["1"].len(), events["2"].len()), (32, 5));
    assert_eq!(client.rest(), "");
    assert_eq!(server.engine.count("cancel"), 0);
}

#[test]
fn a_closed_connection_cancels() {
    let server = Harness::new();
    let mut client = server.line_client();
    let line = |id| format!("{{\"id\":{id},\"prompt\":\"slow\",\"max_tokens\":1000000}}\n");
    client.send(line(1) + &line(2));
    client.line();
    server.engine.wait_for("submit", 2);
    drop(client);
    server.engine.wait_for("cancel", 2);
}

/// An error event with the id of a running request would read as its end.
#[test]
fn an_error_never_carries_the_id_of_a_running_request() {
    let server = Harness::with(|config| config.max_line_requests = 1);
    let mut client = server.line_client();
    client.send("{\"id\":1,\"prompt\":\"hang-late\"}\n");
    assert_eq!(client.line()["event"], "token");
    client.send("{\"op\":\"dance\",\"id\":1}\n{\"op\":3,\"id\":1}\n{\"id\":1,\"prompt\":\"a\"}\n");
    client.send("{\"op\":3,\"id\":2}\n");
    let events = collect(&mut client, 4);
    assert_eq!((events["null"].len(), events["2"].len()), (3, 1));
    client.send("{\"op\":\"cancel\",\"id\":1}\n");
    assert_eq!(collect(&mut client, 1)["1"], [INVALID]);
}
