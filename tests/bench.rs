//! `tokenrouter bench`: against our own server, and against small servers without our fields that work, refuse, and die.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::process::{ServerProcess, binary, demo_config, run, scratch_dir};

/// A file of its own in a scratch folder.
fn scratch(name: &str) -> PathBuf {
    scratch_dir("bench").join(name)
}

/// Runs `bench`; repeats are never discarded, since other tests run beside.
fn bench(args: &[&str]) -> (bool, String, String) {
    run(&[&["bench", "--max-foreign-cpu", "100"], args].concat())
}

fn parsed(file: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).expect("the file")).expect("JSON")
}

#[test]
fn our_own_server_is_measured_over_policies_and_handoff_modes() {
    let (file, plot) = (scratch("out.json"), scratch("out.svg"));
    let (ok, out, err) = bench(&[
        "--demo",
        "--clients",
        "2",
        "--policy",
        "eager",
        "--policy",
        "step-sync",
        "--handoff",
        "resume,readmit",
        "--router",
        "demo",
        "--router",
        "large",
        "--repeats",
        "2",
        "--requests",
        "3",
        "--warm-up",
        "1",
        "--answer-tokens",
        "24",
        "--json",
        &file.display().to_string(),
        "--svg",
        &plot.display().to_string(),
    ]);
    assert!(ok, "{out}\n{err}");
    assert!(out.contains("large %") && out.contains("wait ms") && out.contains("CPU ms/tok"), "{out}");
    let report = parsed(&file);
    assert_eq!(report["models"], json!(["small", "large"]));
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    for run in runs {
        assert_eq!((run["repeats"].as_array().map(Vec::len), &run["failed"]), (Some(2), &json!(0)), "{run}");
        assert!(run["completed"].as_u64() >= Some(6) && run["tokens"].as_u64() > Some(0), "{run}");
        assert!(run["first_token_ms"]["count"].as_u64() > Some(0), "{run}");
        // Per model: committed tokens of the window are those that clients saw, up to what was under way at its ends. The
        // server's page is read just outside of them, and on a busy machine it goes on writing meanwhile.
        let models = run["models"].as_array().expect("models");
        let committed: f64 = models.iter().filter_map(|m| m["committed"].as_f64()).sum();
        let tokens = run["tokens"].as_f64().expect("a number");
        let plausible = tokens - 48.0..2.0 * tokens + 48.0;
        assert!(plausible.contains(&committed), "{committed} committed, {tokens} seen");
        let share = run["large_share"].as_f64().expect("a share");
        let alone = run["router"] == "large";
        assert!(if alone { share == 1.0 } else { share < 1.0 }, "{run}");
        assert!(run["spread"]["tokens_per_s"]["ci95"].is_number(), "{run}");
    }
    let modes: Vec<&str> = runs.iter().filter_map(|r| r["handoff"].as_str()).collect();
    assert!(modes.contains(&"resume") && modes.contains(&"readmit"));
    assert!(runs.iter().any(|r| r["policy"] == "step-sync") && runs.iter().any(|r| r["policy"] == "eager"));
    let svg = std::fs::read_to_string(&plot).expect("the plot");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("step-sync"), "{svg}");
}

#[test]
fn a_server_that_runs_is_recognised_and_conversations_grow() {
    let server = ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", ""));
    let file = scratch("out.json");
    let (url, pid) = (format!("http://{}", server.http), server.id().to_string());
    let json = file.display().to_string();
    let common = [
        "--url",
        &url,
        "--pid",
        &pid,
        "--random-ids",
        "--answer-tokens",
        "8",
        "--repeats",
        "1",
        "--json",
        &json,
    ];
    let talks = ["--clients", "2", "--workload", "agentic", "--prompt-tokens", "160", "--turns", "4"];
    let (ok, out, err) = bench(&[&common[..], &talks, &["--requests", "8", "--warm-up", "0"]].concat());
    assert!(ok, "{out}\n{err}");
    let run = &parsed(&file)["runs"][0];
    assert_eq!((&run["failed"], &run["answer_tokens_mean"]), (&json!(0), &json!(8.0)), "{run}");
    // Prompts of 40, 88, 136 tokens: later turns find the earlier ones in the cache.
    let (completed, prompts) = (run["completed"].as_u64().expect("a count"), run["prompt_tokens"].as_u64());
    assert!(prompts > Some(40 * completed) && run["cached_tokens"].as_u64() > Some(0), "{run}");
    assert!(run["spread"]["cpu_ms_per_token"]["mean"].is_number() && run["models"][1]["wait_ms"].is_object());
    let arrivals = ["--rate", "20", "--prompt-tokens", "30", "--requests", "4", "--warm-up", "1"];
    let (ok, out, err) = bench(&[&common[..], &arrivals].concat());
    assert!(ok, "{out}\n{err}");
    let run = &parsed(&file)["runs"][0];
    let prompts = 30 * run["completed"].as_u64().expect("a count");
    assert_eq!((&run["failed"], &run["rate_per_s"]), (&json!(0), &json!(20.0)), "{run}");
    assert_eq!((&run["prompt_tokens"], &run["workload"]), (&json!(prompts), &json!("low-effort")), "{run}");
    server.stop();
}

/// What a small OpenAI-compatible server does with the request of this number.
type Behaviour = fn(usize) -> Act;

enum Act {
    /// Streams so many pieces.
    Answer(usize),
    /// Answers with a status.
    Status(u16),
    /// Streams two pieces and closes the connection.
    BreakOff,
}

/// A server that knows no field but the usual ones, and how many answers it was asked for.
fn fake(behaviour: Behaviour) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let counted = counted.clone();
            std::thread::spawn(move || serve(socket, behaviour, &counted));
        }
    });
    (address, count)
}

/// Answers the requests of one connection; ends with it.
fn serve(socket: TcpStream, behaviour: Behaviour, count: &AtomicUsize) -> Option<()> {
    // Without it a piece waits for the client's acknowledgement of the last one: 40 ms.
    socket.set_nodelay(true).ok()?;
    let mut out = socket.try_clone().ok()?;
    let mut reader = BufReader::new(socket);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).ok()? == 0 {
            return None;
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let path = first.split(' ').nth(1)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match path {
            "/v1/models" => whole(&mut out, 200, r#"{"data":[{"id":"tiny","max_model_len":512}]}"#)?,
            "/v1/completions" => {
                let known = ["model", "prompt", "max_tokens", "stream", "temperature", "seed"];
                let strange = body.as_object()?.keys().find(|key| !known.contains(&key.as_str()));
                if strange.is_some() {
                    whole(&mut out, 400, r#"{"error":{"message":"unknown field"}}"#)?;
                    continue;
                }
                let most = body["max_tokens"].as_u64()? as usize;
                let act = match most {
                    // The small answers by which it is found out what this server knows.
                    4 => Act::Answer(4),
                    _ => behaviour(count.fetch_add(1, Ordering::Relaxed)),
                };
                match act {
                    Act::Answer(pieces) => stream(&mut out, pieces.min(most), true)?,
                    Act::Status(status) => whole(&mut out, status, r#"{"error":{"message":"no luck"}}"#)?,
                    Act::BreakOff => {
                        stream(&mut out, 2, false)?;
                        return None;
                    }
                }
            }
            _ => whole(&mut out, 404, "not here")?,
        }
    }
}

fn whole(out: &mut TcpStream, status: u16, body: &str) -> Option<()> {
    write!(out, "HTTP/1.1 {status} Told\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()
}

fn stream(out: &mut TcpStream, pieces: usize, to_the_end: bool) -> Option<()> {
    out.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
    let mut send = |event: &str| out.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok();
    for index in 0..pieces {
        std::thread::sleep(Duration::from_millis(1));
        let finish = if index + 1 == pieces && to_the_end { "\"length\"" } else { "null" };
        send(&format!("data: {{\"choices\":[{{\"text\":\" w\",\"finish_reason\":{finish}}}]}}\r\n\r\n"))?;
    }
    if to_the_end {
        send("data: [DONE]\n\n").and_then(|()| out.write_all(b"0\r\n\r\n").ok())
    } else {
        Some(())
    }
}

#[test]
fn a_server_without_our_fields_is_measured_without_them() {
    let (address, _) = fake(|_| Act::Answer(12));
    let file = scratch("out.json");
    let (ok, out, err) = bench(&[
        "--url",
        &format!("http://{address}/v1"),
        "--clients",
        "1,3",
        "--requests",
        "6",
        "--warm-up",
        "3",
        "--repeats",
        "2",
        "--answer-tokens",
        "12",
        "--json",
        &file.display().to_string(),
    ]);
    assert!(ok, "{out}\n{err}");
    for lack in
        ["no /metrics of ours", "--pid", "no return_token_ids", "no usage in streams", "no ignore_eos"]
    {
        assert!(out.contains(lack), "{lack}: {out}");
    }
    assert!(!out.contains("large %") && !out.contains("CPU ms/tok"), "absent, not invented: {out}");
    let runs = parsed(&file)["runs"].clone();
    for run in runs.as_array().expect("runs") {
        assert_eq!((&run["failed"], &run["models"]), (&json!(0), &Value::Null), "{run}");
        assert_eq!(run["answer_tokens_mean"], json!(12.0), "{run}");
        assert!(run["inter_token_ms"]["p50"].as_f64() > Some(0.5), "a millisecond between pieces: {run}");
    }
}

#[test]
fn a_server_that_dies_is_told_with_counts_and_no_panic() {
    let (address, _) = fake(|number| match number {
        0..4 => Act::Answer(9),
        4 => Act::Status(503),
        5 => Act::BreakOff,
        _ => Act::Status(500),
    });
    let file = scratch("out.json");
    let url = format!("http://{address}");
    let limits = ["--seconds", "60", "--warm-up", "0", "--repeats", "1", "--answer-tokens", "9"];
    let json = ["--json", &file.display().to_string()];
    let (ok, out, err) = bench(&[&["--url", &url, "--clients", "2"][..], &limits, &json].concat());
    // Four answers came, so it is no failure of the whole; what went wrong is told.
    assert!(ok && !err.contains("panicked"), "{out}\n{err}");
    assert!(out.contains("every request failed") && out.contains("status 500: "), "{out}");
    let run = &parsed(&file)["runs"][0];
    assert_eq!((&run["completed"], &run["cut"], &run["doubtful"]), (&json!(4), &json!(1), &json!(true)));
    let faults = run["faults"].as_array().expect("a list");
    let count = |kind: &str| faults.iter().find(|f| f["kind"] == kind).and_then(|f| f["count"].as_u64());
    assert_eq!((count("status 503"), count("broken")), (Some(1), Some(1)), "{run}");
    assert!(count("status 500") >= Some(8), "{run}");
    let (ok, out, err) = bench(&[&["--url", "http://127.0.0.1:9"][..], &limits].concat());
    assert!(!ok && err.contains("no connection") && out.is_empty(), "{out}\n{err}");
}

#[test]
fn an_interrupt_prints_what_was_measured_so_far() {
    let (address, asked) = fake(|_| Act::Answer(5));
    let url = format!("http://{address}");
    let mut child = binary()
        .args(["bench", "--url", &url, "--clients", "2,1", "--seconds", "300", "--warm-up", "0"])
        .args(["--answer-tokens", "5", "--max-foreign-cpu", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    // The first question comes after signals are caught.
    for _ in 0..6000 {
        if asked.load(Ordering::Relaxed) > 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = std::process::Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
    let mut out = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("UTF-8");
    assert!(child.wait().expect("it ends").success(), "{out}");
    assert!(out.contains("interrupted: this is what was measured so far") && out.contains("N=2 !"), "{out}");
}

#[test]
fn bad_input_names_the_flag() {
    for (args, why) in [
        (&["--demo", "--preset", "figure2"][..], "--preset is \"figure2\""),
        (&["--demo", "--policy", "eagr"], "--policy eagr: there is no policy"),
        (&["--demo", "--router", "r-stich"], "did you mean \"r-stitch\""),
        (&["--demo", "--clients", "2", "--policy", "threshold=4"], "no setting is left"),
        (&["--demo", "--json", "/nowhere/out.json"], "--json /nowhere/out.json"),
        (&["--config", "nowhere.toml"], "nowhere.toml"),
        (&["--url", "https://localhost"], "TLS"),
        (&["--demo", "--prompts", "nowhere.jsonl", "--requests", "1"], "nowhere.jsonl"),
        (&[], "--url"),
    ] {
        let (ok, out, err) = bench(args);
        assert!(!ok && err.contains(why), "{args:?}: {out}\n{err}");
    }
    let (ok, out, _) = run(&["bench", "--preset", "list"]);
    assert!(ok && out.contains("table6") && out.contains("need an NVIDIA GPU"), "{out}");
}
