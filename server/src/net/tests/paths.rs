//! Paths that need no engine.

use super::{Harness, get};

fn post_to(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn small_answers() {
    let server = Harness::new();
    let mut client = server.client();
    let mut ask = |path: &str| {
        client.send(get(path));
        let answer = client.answer();
        (answer.status, answer.body)
    };
    let version = format!("{{\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(ask("/version"), (200, version));
    assert_eq!(ask("/ping"), (200, String::new()));
    for path in ["/props", "/server_info", "/get_server_info?x"] {
        assert_eq!(ask(path), (200, "{\"models\":2}".into()));
    }
    assert_eq!(ask("/load"), (200, "{\"server_load\":0,\"running\":0,\"waiting\":0}".into()));
    let mut client = server.client();
    client.send(format!("HEAD /version HTTP/1.1\r\nHost: a\r\n\r\n{}", get("/ping")));
    let head = client.head();
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "19"));
    assert_eq!(client.answer().body, "");
}

#[test]
fn calls_that_generate_nothing_are_answered_by_the_tokenizer_threads() {
    let server = Harness::new();
    let mut client = server.client();
    for (path, name) in [
        ("/tokenize", "tokenize"),
        ("/detokenize/", "detokenize"),
        ("/apply-template", "render"),
        ("/v1/chat/completions/render", "render"),
    ] {
        client.send(post_to(path, "1234"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.body), (200, format!("{{\"call\":\"{name}\",\"bytes\":4}}")));
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    for (body, status) in [("bad", 400), ("panic", 500)] {
        client.send(post_to("/tokenize", body));
        assert_eq!(client.answer().status, status);
    }
    assert_eq!(server.engine.log(), Vec::<String>::new(), "the engine heard nothing");
}

#[test]
fn requests_are_ended_by_their_id() {
    let server = Harness::new();
    let mut stream = server.client();
    let body = "{\"prompt\":\"hang-late\",\"stream\":true}";
    stream.send(post_to("/v1/completions", body).replace("Host", "x-request-id: job-1\r\nHost"));
    assert_eq!(stream.head().headers["x-request-id"], "job-1");
    stream.chunk();
    let mut client = server.client();
    let mut abort = |body: &str| {
        client.send(post_to("/abort_request", body));
        let answer = client.answer();
        (answer.status, answer.body)
    };
    assert_eq!(abort("{\"rid\":\"job-2\"}"), (200, "{\"aborted\":0}".into()));
    assert_eq!(abort("{\"rid\":7}").0, 400);
    assert_eq!(abort("{\"request_id\":\"job-1\"}"), (200, "{\"aborted\":1}".into()));
    assert!(stream.chunk().contains("\"code\":\"cancelled\""));
    assert_eq!(stream.chunk(), "data: [DONE]\n\n");
    assert_eq!(stream.chunk(), "");
    server.engine.wait_for("cancel", 1);
}

#[test]
fn one_listener_serves_both_kinds_of_addresses() {
    let any = (std::net::Ipv6Addr::UNSPECIFIED, 0).into();
    // Not every machine has IPv6.
    if std::net::TcpListener::bind(("::1", 0)).is_err() {
        return;
    }
    let server = Harness::with(|config| config.http = Some(any));
    for host in ["127.0.0.1", "::1"] {
        let mut client =
            super::Client::new((host.parse::<std::net::IpAddr>().unwrap(), server.http.port()).into());
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200, "{host}");
    }
}
