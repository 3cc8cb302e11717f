//! What gateways and pickers in front of the server rely on (Envoy, vllm-router, the Kubernetes inference picker):
//! health stays 200 while draining and readiness does not, models are listed only when they can be asked, faults of a
//! request are 4xx, running counts who is away at a peer, and metrics may be read twenty times a second.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::{connect, get, post, read_head, read_response, request};
use support::metrics::Scrape;
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered};

fn server(more: &str) -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", more))
}

fn long_stream() -> Value {
    json!({"prompt": rendered(&problems(1)[0].prompt), "max_tokens": 1500, "ignore_eos": true, "temperature": 1,
        "seed": 1, "stream": true})
}

/// A stream of which the first event has come.
fn begin(server: &ServerProcess) -> impl BufRead + use<> {
    let mut socket = connect(server.http);
    let body = long_stream().to_string();
    socket.write_all(&request("POST", "/v1/completions", body.as_bytes())).expect("the server reads");
    let mut reader = BufReader::new(socket);
    assert_eq!(read_head(&mut reader).0, 200);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("an event") > 0);
    }
    reader
}

/// Balancers are late: the listener stays open for the delay, alive, not ready, and taking nothing new.
#[test]
fn while_draining_it_is_healthy_and_not_ready() {
    let mut server = server("drain_delay_s = 3");
    let mut running = begin(&server);
    // A connection from before the order serves probes on as well.
    let mut kept = BufReader::new(connect(server.http));
    let probe = |kept: &mut BufReader<std::net::TcpStream>, path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        kept.get_mut().write_all(head.as_bytes()).expect("the server reads");
        read_response(kept).status
    };
    assert_eq!((probe(&mut kept, "/health"), probe(&mut kept, "/ready")), (200, 200));
    server.signal("TERM");
    let until = Instant::now() + Duration::from_secs(60);
    while get(server.http, "/ready").status != 503 {
        assert!(Instant::now() < until, "never draining");
    }
    assert_eq!(get(server.http, "/health").status, 200);
    assert_eq!(get(server.http, "/metrics").status, 200);
    let refused = post(server.http, "/v1/completions", &json!({"prompt": "Ann", "max_tokens": 1}));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("draining")));
    assert!(refused.header("retry-after").is_some(), "{:?}", refused.headers);
    let mut rest = String::new();
    running.read_to_string(&mut rest).expect("the answer goes on");
    assert!(rest.contains("data: [DONE]") && rest.contains("\"finish_reason\":\"length\""), "finished");
    let status = server.wait(Duration::from_secs(60)).expect("the server ends");
    assert!(status.success(), "{status}");
}

/// Whoever asks while the models load is told so, or not let in; nobody sees an empty list.
#[test]
fn models_are_503_until_they_can_be_asked_and_never_an_empty_list() {
    // A port that is free now: the test asks before the server has said where it is.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port");
    let config = demo_config("name = \"r-stitch\"\nthreshold = 0.03", "").replacen(
        "http = \"127.0.0.1:0\"",
        &format!("http = \"{port}\""),
        1,
    );
    let started = std::thread::spawn(move || ServerProcess::start(&config));
    let mut early = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < until, "never ready; before: {early:?}");
        let Ok(mut socket) = std::net::TcpStream::connect(port) else { continue };
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        socket.write_all(&request("GET", "/v1/models", b"")).expect("the server reads");
        let answer = read_response(&mut BufReader::new(socket));
        if answer.status == 200 {
            let list = answer.json();
            let names = list["data"].as_array().expect("a list").iter().map(|m| m["id"].clone());
            assert_eq!(names.collect::<Vec<_>>(), ["demo", "small", "large"]);
            break;
        }
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.header("retry-after").is_some() && answer.json()["error"]["message"].is_string());
        early.push(get(port, "/ready").status);
    }
    println!("{} answers before it was ready", early.len());
    let server = started.join().expect("it starts");
    assert_eq!(get(server.http, "/ready").status, 200, "who is listed can be asked");
    server.stop();
}

/// Twenty scrapes a second while it is busy: pages are whole, and the counters of requests add up in each: running
/// counts those who are away at a peer, and the use of the cache is a share.
#[test]
fn metrics_twenty_times_a_second_while_busy() {
    let server = server("");
    let streams: Vec<_> = (0..12).map(|_| begin(&server)).collect();
    let mut most = 0.0f64;
    let mut pending = 0.0f64;
    for _ in 0..40 {
        let asked = Instant::now();
        let page = Scrape::new(server.http);
        let running = page.get("vllm:num_requests_running");
        let of = |what: &str| page.family(&format!("tokenrouter:{what}")).iter().map(|(_, n)| n).sum::<f64>();
        pending = pending.max(of("pending_requests"));
        assert!(running <= 12.0 && page.get("vllm:kv_cache_usage_perc") <= 1.0);
        most = most.max(running);
        std::thread::sleep(Duration::from_millis(50).saturating_sub(asked.elapsed()));
    }
    assert_eq!(most, 12.0, "all are counted, wherever they are");
    assert!(pending > 0.0, "some were away at a peer");
    drop(streams);
    server.stop();
}

/// A 5xx is asked again of the next replica: what a request causes itself is never one.
#[test]
fn faults_of_a_request_are_4xx() {
    let server = server("max_body_bytes = 100000");
    let bodies = [
        "",
        "{",
        "[]",
        "{\"prompt\": 5}",
        "{\"prompt\": \"\"}",
        "{\"prompt\": \"a\", \"model\": \"nobody\"}",
        "{\"prompt\": \"a\", \"max_tokens\": 100000}",
        "{\"prompt\": [455]}",
        "{\"prompt\": [[]]}",
        "{\"messages\": []}",
        "{\"messages\": [{\"role\": \"king\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
        "{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_object\"}}",
        "{\"prompt\": \"a\", \"token_routing\": {\"threshold\": \"often\"}}",
        "{\"prompt\": \"a\", \"token_routing\": {\"threshold\": 7, \"max_llm_fraction\": 2}}",
        "{\"prompt\": \"a\", \"n\": 4000000000}",
    ];
    for body in bodies.iter().copied().chain([" ".repeat(100_001).as_str()]) {
        for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/nothing"] {
            let answer = support::http::send(server.http, &request("POST", path, body.as_bytes()));
            let shown = &body[..body.len().min(80)];
            // What no prompt may be can still be tokenized.
            if path == "/tokenize" && answer.status == 200 {
                continue;
            }
            assert!((400..500).contains(&answer.status), "{path} {shown}: {} {}", answer.status, answer.body);
            assert!(answer.json()["error"]["message"].is_string(), "{path} {shown}: {}", answer.body);
        }
    }
    server.stop();
}
