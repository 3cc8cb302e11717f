//! Requests that are not equal: `priority` decides who waits, `cache_salt` who shares a prefix; over HTTP and raw TCP.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::{connect, get, post};
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered};

fn server(section: &str) -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", section))
}

/// A raw TCP client.
struct Lines {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Lines {
    fn new(server: &ServerProcess) -> Self {
        let socket = connect(server.tcp);
        let reader = BufReader::new(socket.try_clone().expect("a second handle"));
        Lines { socket, reader }
    }

    fn send(&mut self, line: &Value) {
        self.socket.write_all(format!("{line}\n").as_bytes()).expect("the server reads");
    }

    /// The next event that `wanted` names.
    fn event(&mut self, wanted: &[&str]) -> Value {
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a line");
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
            if wanted.iter().any(|name| event["event"] == *name) {
                return event;
            }
        }
    }
}

fn waiting(server: &ServerProcess) -> u64 {
    get(server.http, "/ready").json()["waiting"].as_u64().expect("a number")
}

#[test]
fn a_lower_priority_value_overtakes_the_queue() {
    let server = server("max_running = 1");
    let mut client = Lines::new(&server);
    let prompt = rendered(&problems(1)[0].prompt);
    // Whoever runs is not touched: this one keeps the only place until it is cancelled.
    client.send(
        &json!({"id": "first", "prompt": prompt, "max_tokens": 3500, "ignore_eos": true, "priority": 100}),
    );
    client.event(&["token"]);
    let queue = [("a", 5), ("b", 5), ("c", 0), ("d", -1), ("e", i32::MAX), ("f", 0), ("g", -1)];
    for (id, priority) in queue {
        client.send(
            &json!({"id": id, "prompt": prompt, "max_tokens": 2, "stream": false, "priority": priority}),
        );
    }
    let until = Instant::now() + Duration::from_secs(60);
    while waiting(&server) < queue.len() as u64 {
        assert!(Instant::now() < until, "all of them wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.send(&json!({"op": "cancel", "id": "first"}));
    assert_eq!(client.event(&["error", "done"])["id"], "first");
    let order: Vec<String> = (0..queue.len())
        .map(|_| client.event(&["error", "done"])["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(order, ["d", "g", "c", "f", "a", "b", "e"], "lower first, then in order of arrival");
    server.stop();
}

fn cached(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("a number in {answer}"))
}

#[test]
fn requests_with_different_salts_share_no_cached_tokens() {
    let server = server("");
    let prompt = rendered(&problems(1)[0].prompt);
    let ask = |salt: &Value| {
        let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "cache_salt": salt});
        let answer = post(server.http, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        (cached(&answer), answer["choices"][0]["text"].clone())
    };
    let (cold, text) = ask(&Value::Null);
    let (warm, again) = ask(&Value::Null);
    assert!(cold == 0 && warm >= 16, "{cold} and {warm} tokens");
    assert_eq!(again, text);
    for salt in ["tenant a", "tenant b", "tenant"] {
        assert_eq!(ask(&json!(salt)), (0, text.clone()), "{salt}: nothing of the others'");
        assert_eq!(ask(&json!(salt)), (warm, text.clone()), "{salt}: its own");
    }
    let mut client = Lines::new(&server);
    for (salt, found) in [("tenant c", 0), ("tenant a", warm)] {
        client.send(&json!({"id": 1, "prompt": prompt, "max_tokens": 4, "cache_salt": salt}));
        assert_eq!(cached(&client.event(&["error", "done"])), found, "{salt} over raw TCP");
    }
    server.stop();
}
