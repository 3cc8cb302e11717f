//! A client that leaves: its pages come back, whatever its request was doing, and others do not notice.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::{connect, get, post, read_head, request};
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered};

fn server() -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", ""))
}

/// A request that goes on until its limit.
fn endless(stream: bool) -> Value {
    let prompt = rendered(&problems(1)[0].prompt);
    json!({"prompt": prompt, "max_tokens": 3500, "ignore_eos": true, "temperature": 1, "seed": 1, "stream": stream})
}

fn kv(server: &ServerProcess) -> (u64, u64, u64) {
    let state = get(server.http, "/ready").json();
    let number = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("a number in {state}"));
    (number(&state["pages_free"]), number(&state["pages_total"]), number(&state["running"]))
}

/// Asks again until it holds; a minute without it is a failure.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_client_killed_in_mid_stream_frees_its_pages() {
    let server = server();
    let mut socket = connect(server.http);
    let body = endless(true).to_string();
    socket.write_all(&request("POST", "/v1/completions", body.as_bytes())).expect("the server reads");
    let mut reader = BufReader::new(socket);
    assert_eq!(read_head(&mut reader).0, 200);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        reader.read_line(&mut line).expect("an event");
    }
    let (free, total, running) = kv(&server);
    assert!(running == 1 && free < total, "{running} running, {free} of {total} pages free");
    drop(reader);
    wait_for("the pages come back", || {
        let (free, total, running) = kv(&server);
        free == total && running == 0
    });
    let log = server.stop();
    assert!(log.contains("cancelled") && !log.contains('\x1b'), "one plain line says so: {log}");
}

#[test]
fn clients_that_leave_before_the_first_byte_are_noticed_too() {
    let server = server();
    for stream in [true, false] {
        let sockets: Vec<_> = (0..12)
            .map(|_| {
                let mut socket = connect(server.http);
                let bytes = request("POST", "/v1/completions", endless(stream).to_string().as_bytes());
                socket.write_all(&bytes).expect("the server reads");
                socket
            })
            .collect();
        wait_for("they run", || kv(&server).2 > 0);
        drop(sockets);
        wait_for("the pages come back", || {
            let (free, total, running) = kv(&server);
            free == total && running == 0
        });
    }
    let answer = post(server.http, "/v1/completions", &json!({"prompt": "Ann", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.stop();
}

/// A neighbour's tokens do not change when others come and go.
#[test]
fn a_neighbour_does_not_notice() {
    let server = server();
    let asked = json!({
        "prompt": rendered(&problems(2)[1].prompt), "max_tokens": 120, "temperature": 0.8, "seed": 42,
        "return_token_ids": true,
    });
    let ids = |v: &Value| v["choices"][0]["token_ids"].clone();
    let alone = ids(&post(server.http, "/v1/completions", &asked).json());
    std::thread::scope(|scope| {
        let noise = scope.spawn(|| {
            for _ in 0..10 {
                let mut socket = connect(server.http);
                let bytes = request("POST", "/v1/completions", endless(true).to_string().as_bytes());
                socket.write_all(&bytes).expect("the server reads");
                let mut reader = BufReader::new(socket);
                let mut line = String::new();
                for _ in 0..20 {
                    reader.read_line(&mut line).expect("a line");
                }
            }
        });
        while !noise.is_finished() {
            assert_eq!(ids(&post(server.http, "/v1/completions", &asked).json()), alone);
        }
    });
    server.stop();
}

#[test]
fn sigterm_drains_and_a_running_answer_is_finished() {
    let mut server = server();
    let mut socket = connect(server.http);
    let body = json!({"prompt": rendered(&problems(1)[0].prompt), "max_tokens": 400, "ignore_eos": true,
        "temperature": 0, "stream": true});
    socket
        .write_all(&request("POST", "/v1/completions", body.to_string().as_bytes()))
        .expect("the server reads");
    let mut reader = BufReader::new(socket);
    assert_eq!(read_head(&mut reader).0, 200);
    server.signal("TERM");
    let rest: Vec<String> = reader.lines().map_while(Result::ok).collect();
    assert!(rest.iter().any(|l| l == "data: [DONE]"), "the answer is finished: {:?}", rest.last());
    assert!(rest.iter().any(|l| l.contains("\"finish_reason\":\"length\"")), "and by its own limit");
    let status = server.wait(Duration::from_secs(20)).expect("the server ends");
    assert!(status.success(), "{status}");
}
