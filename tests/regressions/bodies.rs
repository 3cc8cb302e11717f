//! L20, L21 and L22: bodies that are empty, huge, malformed, or come in pieces.

use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::http::{Response, connect, get, post, read_head, read_response, request, send};
use crate::support::process::{ServerProcess, demo_config};
use crate::support::{problems, rendered};

fn server(more: &str) -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", more))
}

fn good(server: &ServerProcess) -> Response {
    let answer = post(
        server.http,
        "/v1/completions",
        &json!({"prompt": "Ann has", "max_tokens": 3, "temperature": 0}),
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

/// L20: each case is followed by a good request, which must be answered.
#[test]
fn an_empty_prompt_or_an_empty_list_ended_the_engine() {
    let server = server("");
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let bad = [
        ("prompt", json!({"prompt": ""})),
        ("prompt", json!({"prompt": [""]})),
        ("prompt", json!({"prompt": ["a", ""]})),
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": [[]]})),
        ("prompt", json!({"prompt": [[5], []]})),
        ("prompt", json!({"prompt": null})),
        ("prompt", json!({})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": null})),
        ("messages", json!({"messages": {}})),
        ("messages", json!({"messages": [{}]})),
        ("messages", json!({"messages": [{"role": "user"}]})),
        ("messages", json!({"messages": user(Value::Null)})),
        ("messages", json!({"messages": user(json!(5))})),
        ("messages", json!({"messages": [{"content": "a"}]})),
        ("messages", json!({"messages": [null]})),
    ];
    for (field, body) in bad {
        let path = if field == "prompt" { "/v1/completions" } else { "/v1/chat/completions" };
        let answer = post(server.http, path, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let param = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        assert!(param.starts_with(field), "{body}: {}", answer.body);
        good(&server);
    }
    // What is empty and means something.
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for messages in [
        user(json!("")),
        user(json!([])),
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "user", "content": "b"}]),
    ] {
        let answer =
            post(server.http, "/v1/chat/completions", &json!({"messages": messages, "max_tokens": 2}));
        assert!(matches!(answer.status, 200 | 400), "{messages}: {} {}", answer.status, answer.body);
        good(&server);
    }
    server.stop();
}

/// L21: while bodies of 25 MB arrive and are looked at, a stream goes on, health is answered, and memory stays bounded.
#[test]
fn a_huge_prompt_blocked_everybody() {
    const LARGE: usize = 25 << 20;
    let server = server("max_body_bytes = 40000000");
    good(&server);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("the largest size");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("kilobytes") << 10
    };
    let before = resident();
    let body = json!({"prompt": rendered(&problems(1)[0].prompt), "max_tokens": 500, "ignore_eos": true,
        "temperature": 1, "seed": 1, "stream": true});
    let small = request("POST", "/v1/completions", body.to_string().as_bytes());
    let text = "In January Mia has 19 apples. ".repeat(LARGE / 30);
    let huge = [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 1})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 8})),
        ("/tokenize", json!({"prompt": text})),
        ("/tokenize", json!({"messages": [{"role": "user", "content": text}]})),
    ]
    .map(|(path, body)| request("POST", path, body.to_string().as_bytes()));
    let busy = AtomicBool::new(true);
    let (events, probes) = std::thread::scope(|scope| {
        let events = scope.spawn(|| {
            let mut count = 0;
            while busy.load(Ordering::Relaxed) {
                let mut socket = connect(server.http);
                socket.write_all(&small).expect("the server reads");
                let mut stream = BufReader::new(socket);
                assert_eq!(read_head(&mut stream).0, 200);
                let events = stream.lines().map_while(Result::ok).filter(|line| line.starts_with("data: "));
                // Each is seen when it comes.
                events.take_while(|_| busy.load(Ordering::Relaxed)).for_each(|_| count += 1);
            }
            count
        });
        let probes = scope.spawn(|| {
            let mut count = 0;
            while busy.load(Ordering::Relaxed) {
                assert_eq!(get(server.http, "/health").status, 200);
                assert_eq!(get(server.http, "/metrics").status, 200);
                count += 1;
            }
            count
        });
        for bytes in &huge {
            let answer = send(server.http, bytes);
            assert_eq!(answer.status, 400, "{}", answer.body);
            assert_eq!(answer.json()["error"]["code"], "context_length_exceeded", "{}", answer.body);
        }
        good(&server);
        busy.store(false, Ordering::Relaxed);
        (events.join().expect("the stream"), probes.join().expect("the probes"))
    });
    assert!(events > 2 && probes > 2, "{events} events and {probes} probes beside them");
    let grown = resident() - before;
    // A body, the text in it, what the allocator keeps, and the stream's cache; 152 MiB were seen.
    assert!(grown < 8 * LARGE, "{} MiB more for {} MiB", grown >> 20, LARGE >> 20);
    server.stop();
}

/// L22: a good request gives the same answer however its bytes arrive.
#[test]
fn a_body_in_pieces_was_lost() {
    let server = server("");
    let body = json!({"prompt": "Ann has", "max_tokens": 3, "temperature": 0}).to_string();
    let wanted = good(&server).json()["choices"].clone();
    for size in [1, 7, 4096] {
        let mut bytes = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                          Transfer-Encoding: chunked\r\n\r\n"
            .to_vec();
        for chunk in body.as_bytes().chunks(size) {
            bytes.extend(format!("{:x};name=value\r\n", chunk.len()).into_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\nTrailer: dropped\r\n\r\n");
        assert_eq!(send(server.http, &bytes).json()["choices"], wanted, "chunks of {size}");
    }
    let bytes = request("POST", "/v1/completions", body.as_bytes());
    for cut in 1..bytes.len() {
        let mut socket = connect(server.http);
        socket.set_nodelay(true).expect("a socket");
        for part in [&bytes[..cut], &bytes[cut..]] {
            socket.write_all(part).expect("the server reads");
            // The server reads what is there before the rest comes.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(read_response(&mut BufReader::new(socket)).json()["choices"], wanted, "cut at {cut}");
    }
    server.stop();
}

/// L22: fixed words and a place, and not one of the client's bytes.
#[test]
fn malformed_bodies_crashed_the_error_path() {
    let server = server("");
    let bodies: [&[u8]; 12] = [
        b"{\"prompt\":\"secret",
        b"{\"prompt\":\"secret\"",
        b"{\"prompt\":NaN}",
        b"{\"prompt\":\"secret\"} secret",
        b"{\"prompt\":\"\xb4\xf3\xbc\xd2secret\"}",
        b"\xff\xfe{\x00\"\x00",
        b"[{\"prompt\":\"secret\"}]",
        b"\"secret\"",
        b"{\"prompt\":\"\xed\xa0\x80secret\"}",
        b"{\"prompt\":\"\\ud800secret\"}",
        b"{'prompt':'secret'}",
        b"{\"prompt\":\"secret\nsecret\"}",
    ];
    let deep = [b"{\"prompt\":".as_slice(), &vec![b'['; 100_000]].concat();
    for body in bodies.into_iter().chain([deep.as_slice()]) {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]);
        for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
            let answer = send(server.http, &request("POST", path, body));
            assert_eq!(answer.status, 400, "{path} {shown}: {}", answer.body);
            assert!(answer.json()["error"]["message"].is_string(), "{path} {shown}: {}", answer.body);
            assert!(!answer.body.contains("secret"), "{path} {shown}: {}", answer.body);
        }
    }
    // A byte-order mark is no part of JSON: refused or skipped, but answered.
    let marked = send(
        server.http,
        &request("POST", "/v1/completions", b"\xef\xbb\xbf{\"prompt\":\"a\",\"max_tokens\":1}"),
    );
    assert!(matches!(marked.status, 200 | 400), "{}", marked.body);
    good(&server);
    server.stop();
}
