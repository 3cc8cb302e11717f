//! `tokenrouter simulate` through the binary: the scenarios that are shipped, and files that are wrong.

mod support;

use serde_json::Value;
use support::process::{run, scratch_dir};

fn simulate(file: &str, extra: &[&str]) -> (bool, String, String) {
    run(&[&["simulate", file], extra].concat())
}

/// The runs of a scenario, one per policy.
fn runs(file: &str, extra: &[&str]) -> Vec<Value> {
    let (ok, out, err) = simulate(file, &[&["--json"], extra].concat());
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    value["runs"].as_array().expect("runs").clone()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

const POLICIES: [&str; 8] =
    ["--policy", "step-sync", "--policy", "eager", "--policy", "threshold=5", "--policy", "threshold+hold=5"];

/// Scheduling study, section 4.
#[test]
fn the_papers_setting_orders_the_policies_and_has_their_rates() {
    let runs = runs("scenarios/paper.toml", &POLICIES);
    let rates: Vec<f64> = runs.iter().map(|r| number(r, "/tokens_per_s")).collect();
    assert!(rates.is_sorted(), "{rates:?}");
    for (found, known) in rates.iter().zip([228.5, 369.2, 399.0, 403.7]) {
        assert!((found / known - 1.0).abs() < 0.015, "{rates:?}");
    }
    for run in &runs {
        assert_eq!(number(run, "/guard_launches"), 0.0, "{run}");
        assert!(number(run, "/models/1/utilisation") <= 1.0, "{run}");
    }
    assert!((number(&runs[2], "/inter_token_ms/p99") / 73.9 - 1.0).abs() < 0.03, "{}", runs[2]);
}

#[test]
fn on_a_shared_device_one_model_at_a_time_is_best() {
    let policies = ["--policy", "eager", "--policy", "threshold=7", "--policy", "exclusive=6"];
    let runs = runs("scenarios/shared-device.toml", &policies);
    let rates: Vec<f64> = runs.iter().map(|r| number(r, "/tokens_per_s")).collect();
    assert!(rates.is_sorted(), "{rates:?}");
    for (found, known) in rates.iter().zip([298.9, 375.7, 425.8]) {
        assert!((found / known - 1.0).abs() < 0.015, "{rates:?}");
    }
}

#[test]
fn auto_finds_that_out_by_itself() {
    let runs = runs("scenarios/shared-device.toml", &["--policy", "lookahead", "--policy", "auto"]);
    let [lookahead, auto] = [0, 1].map(|run| number(&runs[run], "/tokens_per_s"));
    assert!((auto / 425.8 - 1.0).abs() < 0.02 && auto > 1.1 * lookahead, "{auto} after {lookahead}");
}

#[test]
fn conversations_find_what_they_said_in_the_cache() {
    let agent = &runs("scenarios/agent.toml", &[])[0];
    let (prompts, cached) = (number(agent, "/prompt_tokens"), number(agent, "/models/0/cached_tokens"));
    assert!(cached > 0.5 * prompts, "{cached} of {prompts}");
    let text = std::fs::read_to_string(support::root().join("scenarios/agent.toml")).expect("shipped");
    let text = text.replace("[budget]", "[budget]\nprefix_cache = false");
    let off = &runs(&written("agent", &text), &[])[0];
    assert_eq!(number(off, "/models/0/cached_tokens"), 0.0);
    assert!(number(off, "/first_token_ms/p50") > 1.5 * number(agent, "/first_token_ms/p50"), "{off} {agent}");
}

#[test]
fn faults_hurt_those_they_hit() {
    let run = &runs("scenarios/faults.toml", &[])[0];
    assert!(number(run, "/inter_token_ms/max") >= 2_000.0, "the stall: {run}");
    for key in ["/stopped", "/vanished", "/failed", "/models/2/failed", "/completed"] {
        assert!(number(run, key) > 0.0, "{key}: {run}");
    }
    // The route that only knows the small model goes on after the large one died, but for its rare faulty rows.
    let (alone, all) = (number(run, "/routes/1/failed"), number(run, "/failed"));
    assert!(alone < 0.1 * all && number(run, "/routes/1/completed") > 50.0, "{run}");
}

/// Nobody fails, and the median does not move.
#[test]
fn a_stalled_model_shows_in_the_tail_only() {
    let text = std::fs::read_to_string(support::root().join("scenarios/paper.toml")).expect("shipped");
    let text = text.replace("tokens = 60_000", "seconds = 30");
    let calm = &runs(&written("calm", &text), &[])[0];
    let windows = "latency_ms = 27.9\nstalls_s = [[5, 6], [10, 11], [15, 16]]";
    let stalled = &runs(&written("stall", &text.replace("latency_ms = 27.9", windows)), &[])[0];
    assert_eq!(number(stalled, "/failed"), 0.0);
    let tail = |run| (number(run, "/inter_token_ms/p50"), number(run, "/inter_token_ms/p99_9"));
    let ((p50, calm_tail), (stalled_p50, stalled_tail)) = (tail(calm), tail(stalled));
    assert!((stalled_p50 / p50 - 1.0).abs() < 0.01, "{stalled_p50} {p50}");
    assert!(calm_tail < 100.0 && stalled_tail > 900.0, "{stalled_tail} {calm_tail}");
}

/// A model that dies fails the requests that come to it, and no others.
#[test]
fn a_dead_model_fails_its_requests_and_only_those() {
    let text = "[[model]]\nname = \"small\"\nlatency_ms = 5\n[[model]]\nname = \"large\"\nlatency_ms = 20\n\
                dies_at_s = 10\n[[router]]\nname = \"single\"\nmodel = \"small\"\n[[router]]\nname = \"single\"\n\
                model = \"large\"\n[workload]\narrivals = \"closed\"\nclients = 6\nprompt = 10\nanswer = 20\n\
                [run]\nseconds = 30\n";
    let run = &runs(&written("dead", text), &[])[0];
    assert_eq!(number(run, "/routes/0/failed"), 0.0, "{run}");
    assert!(number(run, "/routes/0/completed") > 100.0 && number(run, "/routes/1/completed") > 10.0, "{run}");
    assert_eq!(number(run, "/routes/1/failed"), number(run, "/failed"), "{run}");
    assert_eq!(number(run, "/models/1/failed"), number(run, "/failed"), "{run}");
    assert!(number(run, "/failed") > 0.0, "{run}");
}

#[test]
fn a_seed_replays_to_the_byte_and_another_differs() {
    let json = |seed: &str| simulate("scenarios/faults.toml", &["--json", "--seed", seed]).1;
    let first = json("7");
    assert_eq!(first, json("7"));
    assert!(first.contains("\"seed\":7") && first != json("8"));
}

#[test]
fn a_trace_is_replayed_with_its_destinations() {
    let dir = scratch_dir("trace");
    let line = |at: f64| {
        let to: Vec<u8> = (0..40).map(|i| u8::from(i % 4 == 3)).collect();
        format!(
            "{{\"at_s\":{at},\"prompt\":100,\"answer\":30,\"session\":1,\"shared\":48,\"destinations\":{to:?}}}\n"
        )
    };
    std::fs::write(dir.join("day.jsonl"), line(0.0) + &line(0.1) + "\n" + &line(9.0)).expect("written");
    let text = "[[model]]\nname = \"a\"\nlatency_ms = 5\n[[model]]\nname = \"b\"\nlatency_ms = 20\n[router]\n\
                name = \"replay\"\ncommit = [[1,0],[1,1]]\n[workload]\narrivals = \"trace\"\ntrace = \"day.jsonl\"\n\
                [run]\nwarm_up = 0\n";
    std::fs::write(dir.join("day.toml"), text).expect("written");
    let file = dir.join("day.toml").display().to_string();
    let run = &runs(&file, &[])[0];
    assert_eq!((number(run, "/completed"), number(run, "/tokens")), (3.0, 90.0), "{run}");
    // Every fourth step of a request hands over; the large model writes one token and returns.
    assert!(number(run, "/models/1/committed") > 15.0 && number(run, "/models/0/discarded") > 15.0, "{run}");
    assert!(number(run, "/models/0/cached_tokens") > 100.0, "{run}");
    std::fs::write(dir.join("day.jsonl"), line(0.0) + "{\"at_s\":1,\"promt\":3}\n").expect("written");
    let (ok, _, err) = simulate(&file, &[]);
    assert!(!ok && err.contains("day.jsonl: line 2:") && err.contains("promt"), "{err}");
}

#[test]
fn people_get_a_row_per_policy() {
    let (ok, out, err) = simulate("scenarios/paper.toml", &POLICIES);
    assert!(ok, "{err}");
    for policy in ["step-sync", "eager", "threshold=5", "threshold+hold=5"] {
        assert_eq!(out.lines().filter(|l| l.starts_with(&format!("{policy} "))).count(), 1, "{out}");
    }
    assert!(out.starts_with("small + large: 8 clients in a closed loop, seed 1\n"), "{out}");
    let (ok, out, err) = simulate("scenarios/agent.toml", &[]);
    assert!(ok && out.contains("prompt tokens found in a cache") && out.contains("\nsmall "), "{out}{err}");
}

/// A file of these words in a folder of its own.
fn written(name: &str, text: &str) -> String {
    let file = scratch_dir("simulate").join(format!("{name}.toml"));
    std::fs::write(&file, text).expect("a scenario file");
    file.display().to_string()
}

#[test]
fn bad_files_are_refused_by_key() {
    let text = std::fs::read_to_string(support::root().join("scenarios/paper.toml")).expect("shipped");
    let cases = [
        ("[workload]", "[workloda]", "did you mean \"workload\""),
        ("clients = 8", "client = 8", "did you mean \"clients\""),
        ("clients = 8", "clients = 0", "workload.clients is 0"),
        ("clients = 8", "clients = \"eight\"", "clients"),
        ("clients = 8", "rate_per_s = 1.0", "needs the key \"clients\""),
        ("clients = 8", "clients = 8\nburst = 2", "does not read the key \"burst\""),
        ("\"closed\"", "\"close\"", "did you mean \"closed\""),
        ("answer = 90_000", "answer = [5, 2]", "workload.answer"),
        ("answer = 90_000", "answer = { men = 2 }", "workload.answer"),
        ("answer = 90_000", "", "workload.answer is missing"),
        ("latency_ms = 27.9", "latency_ms = -1", "latency_ms"),
        ("latency_ms = 27.9", "latency_ms = { bas = 1 }", "did you mean \"base\""),
        ("latency_ms = 27.9", "latency_ms = { table = [[8, 1], [4, 2]] }", "in order of fed tokens"),
        ("latency_ms = 27.9", "latency_ms = 27.9\njitter = 3", "jitter is 3"),
        ("latency_ms = 27.9", "latency_ms = 27.9\nslowdown = 0.5", "slowdown is 0.5"),
        ("latency_ms = 27.9", "latency_ms = 27.9\nstalls_s = [[3, 2]]", "stalls_s"),
        ("latency_ms = 27.9", "latency_ms = 27.9\nmax_batch = 0", "max_batch is 0"),
        ("name = \"large\"", "name = \"small\"", "names must differ"),
        ("[[0.65, 0.35], [1, 0]]", "[[0.65, 0.34], [1, 0]]", "sums to 0.99"),
        ("[[0.65, 0.35], [1, 0]]", "[[0.65, 0.35]]", "2 rows of 2"),
        ("[[1, 0], [1, 0]]", "[[0, 0], [1, 0]]", "where the request stays"),
        ("name = \"matrix\"", "name = \"matricks\"", "matrix"),
        ("commit =", "comit =", "did you mean \"commit\""),
        ("tokens = 800_000", "tokens = 800_000\npages = 9", "give one"),
        ("tokens = 800_000", "tokens = 8", "0 pages"),
        ("threshold = 5", "threshold = 0", "at least 1"),
        ("tokens = 60_000", "", "needs tokens or seconds"),
        ("[run]", "[faults]\nvanish = 1.5\n[run]", "faults.vanish is 1.5"),
        ("[run]", "[[change]]\nat_s = 1\n[run]", "needs one of"),
        ("[run]", "[[change]]\nat_s = -1\nclients = 2\n[run]", "change.at_s is -1"),
    ];
    for (from, to, expected) in cases {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "the case changes the file: {from}");
        let (ok, out, err) = simulate(&written("bad", &changed), &[]);
        assert!(!ok && err.contains(expected) && err.contains("bad.toml"), "{to}: {out}{err}");
    }
    // Absurd and possible: a run or words, and no panic.
    for (from, to) in [
        (
            "latency_ms = 27.9",
            "latency_ms = { base = 100000, per_row = 1e5, per_token = 1e5 }\nslowdown = 1000",
        ),
        ("[run]", "[[change]]\nat_s = 0\nmodel = \"small\"\nlatency_factor = 1000\n[run]"),
        ("answer = 90_000", "answer = 16_777_216\nshared_prefix = 16_777_216"),
        ("answer = 90_000", "answer = 1\nmax_tokens = 4294967295\nthink_s = 1e8"),
        ("[run]", "[[change]]\nat_s = 1\nclients = 0\n[run]"),
        ("tokens = 800_000", "tokens = 16"),
        ("prompt = 4", "prompt = { mean = 1e7 }"),
    ] {
        let changed = text.replacen(from, to, 1).replace("tokens = 60_000", "tokens = 200\nseconds = 1e8");
        assert!(changed.contains(to), "the case changes the file: {from}");
        let (_, out, err) =
            simulate(&written("absurd", &changed.replace("warm_up = 1_000", "warm_up = 0")), &[]);
        assert!(!err.contains("panicked"), "{to}: {out}{err}");
    }
    let (ok, _, err) = simulate("scenarios/none.toml", &[]);
    assert!(!ok && err.contains("scenarios/none.toml"), "{err}");
    let (ok, _, err) = simulate("scenarios/paper.toml", &["--policy", "eagr"]);
    assert!(!ok && err.contains("--policy eagr") && err.contains("did you mean \"eager\""), "{err}");
}
