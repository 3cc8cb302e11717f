use super::head::{Framing, Method};
use super::parse::{HttpRequest, Progress, RequestParser};
use super::{HttpFault, HttpLimits};

const LIMITS: HttpLimits = HttpLimits { request_line: 128, head: 1024, body: 100 };

/// Feeds pieces and collects whole requests until a fault.
fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<HttpRequest>, Option<HttpFault>) {
    let mut parser = RequestParser::new(LIMITS);
    let mut requests = Vec::new();
    for piece in pieces {
        parser.push(piece);
        loop {
            match parser.poll() {
                Ok(Progress::More) => break,
                Ok(Progress::Head) => assert!(parser.head().is_some()),
                Ok(Progress::Request(request)) => requests.push(request),
                Err(fault) => return (requests, Some(fault)),
            }
        }
    }
    (requests, None)
}

/// The outcome for the whole input, after checking that every split gives the same one (of very long inputs,
/// every n-th split).
fn parse(input: &[u8]) -> (Vec<HttpRequest>, Option<HttpFault>) {
    let whole = feed([input]);
    for at in (0..=input.len()).step_by(input.len() / 600 + 1) {
        assert_eq!(feed([&input[..at], &input[at..]]), whole, "split at {at}");
    }
    for size in [1, 2, 7] {
        assert_eq!(feed(input.chunks(size)), whole, "pieces of {size}");
    }
    whole
}

fn fault(input: &str) -> u16 {
    parse(input.as_bytes()).1.unwrap_or_else(|| panic!("no fault: {input:?}")).status
}

fn bodies(input: &str) -> Vec<String> {
    let (requests, fault) = parse(input.as_bytes());
    assert_eq!(fault, None, "{input:?}");
    requests.into_iter().map(|request| String::from_utf8(request.body).unwrap()).collect()
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{headers}\r\n{body}")
}

#[test]
fn a_plain_request() {
    let (requests, fault) = parse(
        b"\r\n\r\nGET /health?x=1 HTTP/1.1\r\nHost: a\r\nX-Request-ID: abc-1\r\nConnection: Close\r\n\r\n",
    );
    assert_eq!(fault, None);
    let head = &requests[0].head;
    assert_eq!((head.method, head.path.as_str(), head.http11), (Method::Get, "/health", true));
    assert_eq!((head.keep_alive, head.framing, head.has_body()), (false, Framing::Length(0), false));
    assert_eq!(head.request_id.as_deref(), Some("abc-1"));
}

#[test]
fn pipelined_bodies() {
    let input =
        post("Content-Length: 5\r\n", "hello") + &post("content-length: 5\r\nContent-Length: 5\r\n", "world");
    assert_eq!(bodies(&(input + &post("", ""))), ["hello", "world", ""]);
}

#[test]
fn chunked_bodies() {
    let chunked = "Transfer-Encoding: Chunked\r\n";
    let body = "5\r\nhello\r\n00A;name=\"v\"\r\n0123456789\r\n1\r\n\n\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n";
    let input = post(chunked, body) + &post(chunked, "0\r\n\r\n") + &post("Content-Length: 1\r\n", "x");
    assert_eq!(bodies(&input), ["hello0123456789\n", "", "x"]);
    for bad in [
        "\r\n",
        "g\r\n",
        "-1\r\n",
        " 1\r\na\r\n",
        "1\na\r\n",
        "1\r\nab\r\n",
        "1\r\na\n0\r\n\r\n",
        "0\r\n\n",
        "0x1\r\na",
        "00000000000000001\r\na",
        "0\r\nA: b\n\r\n",
    ] {
        assert_eq!(fault(&post(chunked, bad)), 400, "{bad:?}");
    }
    assert_eq!(fault(&post(chunked, &format!("1;{}\r\n", "e".repeat(2000)))), 400);
    assert_eq!(fault(&post(chunked, &format!("0\r\nT: {}\r\n", "e".repeat(17_000)))), 400);
    assert_eq!(fault(&post(chunked, "65\r\n")), 413);
    assert_eq!(fault(&post(chunked, "ffffffffffffffff\r\n")), 413);
    let full = format!("64\r\n{}\r\n1\r\n", "x".repeat(100));
    assert_eq!(fault(&post(chunked, &full)), 413);
}

#[test]
fn content_length_is_strict() {
    for bad in ["+5", "-5", "5 5", "5,5", "0x5", "", "5a", "99999999999999999999999"] {
        assert_eq!(fault(&post(&format!("Content-Length: {bad}\r\n"), "hello")), 400, "{bad:?}");
    }
    assert_eq!(fault(&post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello")), 400);
    assert_eq!(fault(&post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "hello")), 400);
    assert_eq!(fault(&post("Content-Length: 101\r\n", "hello")), 413);
    assert_eq!(fault(&post("Content-Length: 18446744073709551615\r\n", "hello")), 413);
}

#[test]
fn unsupported_framing_and_expectations() {
    assert_eq!(fault(&post("Transfer-Encoding: gzip\r\n", "")), 501);
    assert_eq!(fault(&post("Transfer-Encoding: gzip, chunked\r\n", "")), 501);
    assert_eq!(fault(&post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "")), 501);
    assert_eq!(fault("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
    assert_eq!(fault(&post("Expect: something\r\n", "")), 417);
    assert_eq!(fault(&post("Content-Encoding: gzip\r\n", "")), 415);
    assert_eq!(fault(&post("Content-Type: multipart/form-data; boundary=x\r\n", "")), 415);
    assert_eq!(fault("GET / HTTP/2.0\r\n\r\n"), 505);
    let (requests, _) = parse(post("Expect: 100-Continue\r\nContent-Length: 1\r\n", "x").as_bytes());
    assert!(requests[0].head.expect_continue);
}

#[test]
fn head_limits() {
    assert_eq!(fault(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "p".repeat(200))), 414);
    assert_eq!(fault(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "p".repeat(1100))), 431);
    assert_eq!(fault(&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(100))), 431);
    let exact = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "p".repeat(128 - 16));
    assert_eq!(parse(exact.as_bytes()).1, None);
    let over = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "p".repeat(128 - 15));
    assert_eq!(fault(&over), 414);
}

#[test]
fn malformed_heads() {
    for bad in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "GET\r\n\r\n",
        "{\"prompt\":1}\n",
        "\u{16}\u{3}\u{1}",
        "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(fault(bad), 400, "{bad:?}");
    }
}

#[test]
fn http10_and_keep_alive() {
    let keep = |input: &str| parse(input.as_bytes()).0[0].head.keep_alive;
    assert!(!keep("GET / HTTP/1.0\r\n\r\n"));
    assert!(keep("GET / HTTP/1.0\r\nConnection: foo, Keep-Alive\r\n\r\n"));
    assert!(keep("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(!keep("GET / HTTP/1.1\nHost: a\nConnection: keep-alive, close\n\n"));
    let absolute = parse(b"GET http://host:1/v1/models?a HTTP/1.1\r\nHost: host:1\r\n\r\n");
    assert_eq!(absolute.0[0].head.path, "/v1/models");
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 7u32;
    for _ in 0..2000 {
        let mut input = post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n").into_bytes();
        for _ in 0..3 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = state as usize % input.len();
            input[at] = (state >> 24) as u8;
        }
        assert_eq!(feed([input.as_slice()]), feed(input.chunks(3)));
    }
}
