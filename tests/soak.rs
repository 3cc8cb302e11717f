//! Hundreds of connections that open, stream, stall and vanish at random, on both ports, with bad requests among them.
//! Afterwards nothing runs, waits or is pending, every page is free, descriptors and threads are back where they were,
//! memory is flat, and the server answers as before.
//!
//! `TOKENROUTER_SOAK_SECONDS` says for how long; a few seconds otherwise.

mod support;

#[path = "soak/clients.rs"]
mod clients;
#[path = "soak/watch.rs"]
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clients::{Client, Tally};
use serde_json::{Value, json};
use support::http::{get, post};
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered};
use watch::{Sample, Watch};

const CLIENTS: usize = 500;

fn seconds() -> u64 {
    std::env::var("TOKENROUTER_SOAK_SECONDS").ok().map_or(6, |s| s.parse().expect("a number of seconds"))
}

/// Everything that must be zero, or whole, when nobody asks for anything.
fn left_over(server: &ServerProcess) -> Vec<String> {
    let state = get(server.http, "/ready").json();
    let number = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("a number in {state}"));
    let mut found = Vec::new();
    for field in ["running", "waiting"] {
        if number(&state[field]) > 0 {
            found.push(format!("{} {field}", state[field]));
        }
    }
    for (name, model) in state["models"].as_object().expect("models") {
        for field in ["ready", "running", "pending"] {
            if number(&model[field]) > 0 {
                found.push(format!("{name}: {} {field}", model[field]));
            }
        }
    }
    if state["pages_free"] != state["pages_total"] {
        found.push(format!("{} of {} pages free", state["pages_free"], state["pages_total"]));
    }
    found
}

fn answer(server: &ServerProcess) -> Value {
    let prompt = rendered(&problems(1)[0].prompt);
    let body = json!({"prompt": prompt, "max_tokens": 80, "temperature": 0, "return_token_ids": true});
    let answer = post(server.http, "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["token_ids"].clone()
}

#[test]
fn nothing_is_left_of_clients_that_come_and_go_as_they_please() {
    let server = ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", ""));
    let before = answer(&server);
    let watch = Watch::new(server.id());
    let start = watch.sample();
    let stop = AtomicBool::new(false);
    let (tally, samples) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let (stop, server) = (&stop, &server);
                let run = move || Client::new(server.http, server.tcp, index as u64, stop).run();
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread")
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(seconds());
        let mut samples = Vec::new();
        while Instant::now() < until {
            assert_eq!(get(server.http, "/health").status, 200);
            samples.push(watch.sample());
            std::thread::sleep(Duration::from_millis(200));
        }
        stop.store(true, Ordering::Relaxed);
        let tallies = workers.into_iter().map(|w| w.join().expect("a client"));
        (tallies.fold(Tally::default(), Tally::add), samples)
    });
    println!("{tally:?}");
    tally.check();

    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let left = left_over(&server);
        let now = watch.sample();
        // The connection of this very question is one of them.
        let back = now.descriptors <= start.descriptors + 1 && now.threads == start.threads;
        if left.is_empty() && back {
            break;
        }
        assert!(Instant::now() < until, "left: {left:?}, {start:?} at the start and now {now:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answer(&server), before, "the same answer as before");
    check_memory(start, &samples, watch.sample());
    let log = server.stop();
    let panics: Vec<&str> = log.lines().filter(|l| l.contains("panicked")).collect();
    assert!(panics.is_empty(), "{panics:?}");
}

/// Between the second and the last quarter of the time the largest resident size hardly grows, the pools left out.
fn check_memory(start: Sample, samples: &[Sample], end: Sample) {
    let quarter = samples.len() / 4;
    let most = |part: &[Sample]| part.iter().map(|s| s.resident).max().unwrap_or(0);
    let (early, late) = (most(&samples[quarter..2 * quarter]), most(&samples[3 * quarter..]));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "resident MiB: {:.1} at the start, {:.1} in the second quarter, {:.1} in the last, {:.1} at the end, without {:.1} \
         of the pools; at most {} descriptors",
        mib(start.resident),
        mib(early),
        mib(late),
        mib(end.resident),
        mib(end.pools),
        samples.iter().map(|s| s.descriptors).max().unwrap_or(0)
    );
    assert!(late <= early + early / 10 + (2 << 20), "{:.1} MiB and later {:.1}", mib(early), mib(late));
}
