//! The raw TCP port.

use std::collections::BTreeMap;
use std::net::Shutdown;

use super::{Client, Harness};

/// Events up to the `done` of every id, by id.
fn collect(client: &mut Client, ids: usize) -> BTreeMap<String, Vec<String>> {
    let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut done = 0;
    while done < ids {
        let line = client.line();
        let event = line["event"].as_str().unwrap().to_owned();
        done += usize::from(event == "done");
        let status = line["status"].as_u64().map(|status| format!(" {status}")).unwrap_or_default();
        events.entry(line["id"].to_string()).or_default().push(event + &status);
    }
    events
}

#[test]
fn requests_run_at_the_same_time() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("{\"id\":1,\"prompt\":\"slow\",\"max_tokens\":20,\"stream\":true}\n");
    client.send("{\"id\":\"b\",\"prompt\":\"a\",\"stream\":true}\r\n\n{\"prompt\":\"a\"}\n");
    let events = collect(&mut client, 3);
    assert_eq!(events["1"].len(), 22);
    assert_eq!(events["\"b\""], ["chunk", "chunk", "chunk", "chunk", "done"]);
    assert_eq!(events["4"], ["answer", "done"], "without an id, the number of the line");
}

#[test]
fn bad_lines_hurt_only_themselves() {
    let server = Harness::with(|config| config.limits.body = 100_000);
    let mut client = server.line_client();
    client.send("{\"id\":\"run\",\"prompt\":\"hang-late\",\"stream\":true}\n");
    assert_eq!(client.line()["event"], "chunk");
    client.send("nonsense\n[1]\n{\"id\":{}}\n");
    client.send(b"{\"id\":7,\"prompt\":\"\xff\"}\n");
    let bad = collect(&mut client, 4);
    assert_eq!(bad["null"], ["error 400", "done"].repeat(4));
    client.send("{\"id\":\"run\",\"prompt\":\"a\"}\n{\"op\":\"dance\",\"id\":2}\n{\"id\":3,\"prompt\":5}\n");
    let bad = collect(&mut client, 3);
    assert!(["\"run\"", "2", "3"].iter().all(|id| bad[*id] == ["error 400", "done"]), "{bad:?}");
    let long = format!("{{\"id\":9,\"prompt\":\"a\",\"other\":\"{}\"}}\n", "x".repeat(50_000));
    client.send(&long);
    assert_eq!(collect(&mut client, 1)["9"], ["answer", "done"]);
    client.send(long.replace(":9,", ":\"run\","));
    assert_eq!(collect(&mut client, 1)["null"], ["error 400", "done"], "an id in use, seen late");
    client.send("{\"op\":\"ping\",\"id\":5}\n");
    assert_eq!(client.line(), serde_json::json!({"id": 5, "event": "pong"}));
    client.send("{\"op\":\"cancel\",\"id\":\"other\"}\n{\"op\":\"cancel\",\"id\":\"run\"}\n");
    assert_eq!(collect(&mut client, 1)["\"run\""], ["error", "done"]);
    server.engine.wait_for("cancel", 1);
    client.send("x".repeat(100_001));
    assert_eq!(client.line()["status"], 413);
    assert_eq!(client.line()["event"], "done");
    assert_eq!(client.rest(), "");
}

#[test]
fn too_many_requests_on_one_connection() {
    let server = Harness::with(|config| config.max_line_requests = 2);
    let mut client = server.line_client();
    client.send(
        "{\"id\":1,\"prompt\":\"hang\"}\n{\"id\":2,\"prompt\":\"hang\"}\n{\"id\":3,\"prompt\":\"a\"}\n",
    );
    assert_eq!(collect(&mut client, 1)["3"], ["error 429", "done"]);
    drop(client);
    server.engine.wait_for("cancel", 0);
}

#[test]
fn http_on_the_raw_port() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}");
    let text = client.rest();
    assert!(text.contains("not HTTP") && text.lines().count() == 2, "{text}");
}

#[test]
fn a_half_closed_connection_gets_its_answers() {
    let server = Harness::new();
    let mut client = server.line_client();
    client.send(
        "{\"id\":1,\"prompt\":\"slow\",\"max_tokens\":30,\"stream\":true}\n{\"id\":2,\"prompt\":\"a\"}",
    );
    client.stream.shutdown(Shutdown::Write).unwrap();
    let events = collect(&mut client, 2);
    assert_eq!((events["1"].len(), events["2"].len()), (32, 2));
    assert_eq!(client.rest(), "");
    assert_eq!(server.engine.count("cancel"), 0);
}

#[test]
fn a_closed_connection_cancels() {
    let server = Harness::new();
    let mut client = server.line_client();
    let line = |id| format!("{{\"id\":{id},\"prompt\":\"slow\",\"max_tokens\":1000000,\"stream\":true}}\n");
    client.send(line(1) + &line(2));
    client.line();
    server.engine.wait_for("submit", 2);
    drop(client);
    server.engine.wait_for("cancel", 2);
}
