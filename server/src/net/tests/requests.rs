//! Whole answers: routes, keep-alive, framing, refusals.

use super::{Harness, get, post};

const BODY: &str = "{\"prompt\":\"a\",\"n\":2}";
const TOKENS: &str = "[[1,2,3],[1,2,3]]";

#[test]
fn one_connection_many_requests() {
    let server = Harness::new();
    let mut client = server.client();
    for _ in 0..20 {
        client.send(post(BODY));
        let answer = client.answer();
        assert_eq!((answer.status, answer.json()["tokens"].to_string()), (200, TOKENS.into()));
        assert_eq!(answer.headers["connection"], "keep-alive");
        assert_eq!(answer.headers["x-token-routing"], "fake");
        client.send(get("/health"));
        assert_eq!(client.answer().body, "{\"status\":\"ok\"}");
    }
}

#[test]
fn a_request_split_at_every_byte() {
    let server = Harness::new();
    let mut client = server.client();
    let chunked = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         8\r\n{\"prompt\r\n9;x=y\r\n\":\"a\",\"n\"\r\n3\r\n:2}\r\n0\r\nT: u\r\n\r\n";
    for request in [post(BODY), chunked.to_owned()] {
        for at in 1..request.len() {
            client.send(&request[..at]);
            std::thread::yield_now();
            client.send(&request[at..]);
            assert_eq!(client.answer().json()["tokens"].to_string(), TOKENS, "split at {at}");
        }
        for byte in request.as_bytes() {
            client.send([*byte]);
        }
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn chunks_of_any_size() {
    let server = Harness::new();
    let mut client = server.client();
    let body = format!("{{\"prompt\":\"a\",\"n\":2,\"other\":\"{}\"}}", "é".repeat(6000));
    for size in [1, 7, 4096] {
        let mut request =
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.as_bytes().chunks(size) {
            request.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            request.extend_from_slice(chunk);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        for piece in request.chunks(size * 3) {
            client.send(piece);
        }
        assert_eq!(client.answer().json()["tokens"].to_string(), TOKENS, "chunks of {size}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Harness::new();
    let mut client = server.client();
    let slow = post("{\"prompt\":\"slow\",\"max_tokens\":5}");
    let all: String = (0..10).map(|_| slow.clone() + &get("/v1/models") + &post(BODY)).collect();
    client.send(all);
    for _ in 0..10 {
        assert_eq!(client.answer().json()["tokens"].to_string(), "[[1,2,3,4,5]]");
        assert_eq!(client.answer().json()["object"], "list");
        assert_eq!(client.answer().json()["tokens"].to_string(), TOKENS);
    }
}

/// It waited for the client's next byte.
#[test]
fn a_request_behind_a_refused_one_is_answered() {
    let server = Harness::new();
    let mut client = server.client();
    let refused = post(BODY).replace("/v1/completions", "/nothing");
    client.send(get("/nothing") + &refused + &get("/health") + &refused + &refused + &get("/version"));
    for status in [404, 404, 200, 404, 404, 200] {
        assert_eq!(client.answer().status, status);
    }
}

#[test]
fn routes_and_methods() {
    let server = Harness::new();
    let mut client = server.client();
    let mut ask = |request: String| {
        client.send(request);
        client.answer()
    };
    assert_eq!(ask(get("/readyz/?x=1")).json()["status"], "ready");
    assert_eq!(ask(get("/v1/models/Org%2FSmall")).json()["max_model_len"], 512);
    assert_eq!(ask(get("/v1/models/Org/Small")).json()["id"], "Org/Small");
    assert_eq!(ask(get("/v1/models/other")).code(), "model_not_found");
    let missing = ask(get("/nothing"));
    assert_eq!(
        (missing.status, missing.json()["error"]["type"].as_str()),
        (404, Some("invalid_request_error"))
    );
    let wrong = ask(get("/v1/completions"));
    assert_eq!((wrong.status, wrong.headers["allow"].as_str()), (405, "POST, OPTIONS"));
    let options = ask("OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n\r\n".into());
    assert_eq!((options.status, options.headers.contains_key("access-control-allow-origin")), (204, false));
    // A refused body is read, so that the connection goes on.
    assert_eq!(ask(post(BODY).replace("/v1/completions", "/v1/embeddings")).status, 404);
    client.send("HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert!(head.status == 200 && head.headers["content-length"].parse::<usize>().unwrap() > 100);
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn request_ids() {
    let server = Harness::new();
    let mut client = server.client();
    client.send("GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n\r\n");
    assert_eq!(client.answer().headers["x-request-id"], "mine");
    client.send(get("/health"));
    let first = client.answer().headers["x-request-id"].clone();
    client.send(get("/nothing"));
    assert!(first.starts_with("req-") && client.answer().headers["x-request-id"] != first);
}

#[test]
fn http10_closes_after_the_answer() {
    let server = Harness::new();
    let mut client = server.client();
    client.send("GET /health HTTP/1.0\r\n\r\n");
    let text = client.rest();
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && text.contains("Connection: close"), "{text}");
    let mut client = server.client();
    let body = "{\"prompt\":\"a\",\"stream\":true}";
    client.send(format!("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let text = client.rest();
    assert!(!text.contains("chunked") && text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
}

#[test]
fn expect_continue() {
    let server = Harness::with(|config| config.limits.body = 1000);
    let head = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n")
    };
    let mut client = server.client();
    client.send(head("/v1/completions", BODY.len()));
    assert_eq!(client.until(b"\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(BODY);
    assert_eq!(client.answer().status, 200);
    for (path, length, status) in
        [("/v1/completions", 1001, 413), ("/nothing", 10, 404), ("/health", 10, 405)]
    {
        let mut client = server.client();
        client.send(head(path, length));
        let answer = client.answer();
        assert_eq!((answer.status, answer.headers["connection"].as_str()), (status, "close"));
        assert_eq!(client.rest(), "");
    }
}

#[test]
fn refusals_have_their_status() {
    let server = Harness::new();
    for (body, status, code) in [
        ("{\"prompt\":\"refuse-full\",\"stream\":true}", 429, "queue_full"),
        ("{\"prompt\":\"refuse-context\",\"stream\":true}", 400, "context_length_exceeded"),
        ("{\"prompt\":\"refuse-context\",\"n\":3}", 400, "context_length_exceeded"),
        ("{\"prompt\":\"fail\",\"stream\":true}", 500, "engine_error"),
        ("{\"prompt\":\"fail-late\"}", 500, "engine_error"),
        ("{\"prompt\":\"panic\"}", 500, ""),
        ("{\"prompt\":", 400, "invalid_json"),
        ("", 400, "invalid_json"),
    ] {
        let answer = server.complete(body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
        assert_eq!(answer.headers.contains_key("retry-after"), status == 429, "{body}");
        assert_eq!(server.complete(BODY).status, 200, "after {body}");
    }
}

#[test]
fn more_choices_than_the_engine_queue_holds() {
    let server = Harness::new();
    let answer = server.complete("{\"prompt\":\"a\",\"n\":50,\"max_tokens\":1}");
    assert_eq!(answer.json()["tokens"].as_array().unwrap().len(), 50);
}

#[test]
fn a_full_tokenizer_queue_refuses() {
    let server = Harness::with(|config| config.tokenizer_queue = 1);
    let mut clients: Vec<_> = (0..6).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(post("{\"prompt\":\"nap\"}"));
    }
    let mut health = server.client();
    health.send(get("/health"));
    assert_eq!(health.answer().status, 200, "health does not wait for tokenizers");
    let statuses: Vec<u16> = clients.iter_mut().map(|client| client.answer().status).collect();
    assert!(statuses.contains(&429) && statuses.contains(&200), "{statuses:?}");
    assert_eq!(server.complete(BODY).status, 200);
}

#[test]
fn health_notices_a_stalled_step() {
    let server = Harness::with(|config| config.timeouts.stall = std::time::Duration::from_millis(50));
    let mut client = server.client();
    let mut status = || {
        client.send(get("/health"));
        client.answer().status
    };
    server.engine.set_in_flight(7);
    assert_eq!(status(), 200);
    std::thread::sleep(std::time::Duration::from_millis(80));
    assert_eq!(status(), 503);
    server.engine.set_in_flight(8);
    assert_eq!(status(), 200);
    // A step that feeds a long piece of a prompt may take longer.
    server.engine.set_times_in_flight(100_000);
    std::thread::sleep(std::time::Duration::from_millis(80));
    assert_eq!(status(), 200);
}
