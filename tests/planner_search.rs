//! The planner's forecast and search against exact values of the throughput model (`tests/golden/dtmc`).

mod support;

use serde_json::Value;
use support::dtmc::{count, golden, list, matrix, number, numbers};
use tokenrouter_scheduler::planner::*;
use tokenrouter_scheduler::{CountTable, LatencyTable, ModelId, Policy, Thresholds};

/// Rows per forecast that is compared with an exact value: a standard error of 0.2 % for most rules.
const ROWS: u64 = 200_000;
const TOLERANCE: f64 = 0.015;
const STATES: usize = 100_000;

/// What a request commits, also where a file leaves it out.
fn commit(case: &Value) -> Vec<Vec<f64>> {
    match case.get("C") {
        Some(given) => matrix(given),
        None if case["name"] == "rstitch" => vec![vec![1.0, 0.0], vec![1.0, 1.0]],
        None => vec![vec![1.0, 0.0]; 2],
    }
}

/// The setting of a case whose step times are constant, under a slowdown.
fn setting(case: &Value, slowdown: f64) -> Setting {
    let quantum = number(&case["delta_ms"]) * 1e6;
    let step = |d: &f64| LatencyTable::constant((d * quantum).round() as u64);
    let routing = matrix(&case["P"]);
    Setting {
        commit: commit(case),
        latency: numbers(&case["d"]).iter().map(step).collect(),
        slowdown: vec![slowdown; routing.len()],
        parts: vec![Vec::new(); routing.len()],
        entry: ModelId(case.get("entry").map_or(0, count) as u8),
        max_batch: vec![64; routing.len()],
        routing,
    }
}

/// The paper's pair.
fn pair(p: f64, slowdown: f64) -> Setting {
    let case = serde_json::json!({ "P": [[1.0 - p, p], [1.0, 0.0]], "d": [20, 93], "delta_ms": 0.3 });
    setting(&case, slowdown)
}

fn thresholds(values: &[u32]) -> Policy {
    Policy::Threshold(Thresholds::constants(values))
}

fn hold(b: usize, h: usize) -> Policy {
    let thresholds = Thresholds::constants(&[1, b as u32]);
    Policy::Hold { thresholds, beside: CountTable::constant(h as u32) }
}

fn exclusive(k: usize) -> Policy {
    Policy::Exclusive(Thresholds::constants(&[1, k as u32]))
}

fn rate(setting: &Setting, requests: usize, policy: &Policy, rows: u64) -> f64 {
    let draws = Draws::new(setting, rows, 11).expect("a golden setting");
    forecast(setting, requests, policy, &draws, ForecastSpec { request_steps: rows, p99: false }).tokens_per_s
}

/// Compares forecasts with exact values and keeps the misses.
#[derive(Default)]
struct Agreement {
    cases: usize,
    misses: Vec<String>,
}

impl Agreement {
    fn add(&mut self, what: &str, setting: &Setting, requests: usize, policy: &Policy, exact: f64) {
        let found = rate(setting, requests, policy, ROWS);
        let error = found / exact - 1.0;
        self.cases += 1;
        if error.abs() > TOLERANCE {
            let percent = 100.0 * error;
            self.misses.push(format!(
                "{what} N={requests}: {found:.2}, exact {exact:.2}, {percent:+.2} %, {policy:?}"
            ));
        }
    }

    fn finish(self, least: usize) {
        assert!(
            self.misses.is_empty(),
            "{} of {}:\n{}",
            self.misses.len(),
            self.cases,
            self.misses.join("\n")
        );
        assert!(self.cases >= least, "only {} cases", self.cases);
    }
}

#[test]
fn forecasts_agree_with_the_exact_chain() {
    let file = golden("dtmc_ext.json");
    let mut all = Agreement::default();
    for case in list(&file["hold"]) {
        let (setting, n) = (setting(case, 1.0), count(&case["N"]));
        let what = case["name"].as_str().expect("a name");
        all.add(what, &setting, n, &Policy::default(), number(&case["T_lookahead"]));
        for row in list(&case["rows"]).iter().step_by(2) {
            let b = count(&row["B1"]);
            all.add(what, &setting, n, &hold(b, 1), number(&row["T_threshold_hold"]));
            all.add(what, &setting, n, &thresholds(&[1, b as u32]), number(&row["T_threshold"]));
        }
    }
    for case in list(&file["model_sync"]) {
        let setting = pair(number(&case["p"]), 1.0);
        let n = count(&case["N"]);
        for k in [1, n.div_ceil(2), n] {
            all.add("exclusive", &setting, n, &exclusive(k), number(&case["T_by_K"][k - 1]));
        }
    }
    for case in list(&file["batch_latency"]) {
        let quantum = number(&case["delta_ms"]) * 1e6;
        // Index 0 of the table is unused.
        let table = |d: &Value| numbers(d)[1..].iter().map(|d| (d * quantum).round() as u64).collect();
        let latency = list(&case["d_by_batch"]).iter().map(|d| LatencyTable::by_rows(table(d))).collect();
        let setting = Setting { latency, ..pair(0.35, 1.0) };
        for row in list(&case["rows"]) {
            let policy = thresholds(&[1, count(&row["B1"]) as u32]);
            all.add("by batch", &setting, count(&case["N"]), &policy, number(&row["T"]));
        }
    }
    for case in list(&golden("dtmc.json")["cases"]) {
        let name = case["name"].as_str().expect("a name");
        if !name.starts_with("me3") {
            continue;
        }
        for table in list(&case["tables"]) {
            for row in list(&table["rows"]).iter().step_by(3) {
                let b: Vec<u32> = list(&row["B"]).iter().map(|b| count(b) as u32).collect();
                let policy = thresholds(&b);
                all.add(name, &setting(case, 1.0), count(&table["N"]), &policy, number(&row["T_tok_s"]));
            }
        }
    }
    all.finish(150);
}

#[test]
fn forecasts_agree_with_the_exact_chain_under_slowdown() {
    let mut all = Agreement::default();
    for case in list(&golden("dtmc_ext.json")["contention"]) {
        for (i, s) in numbers(&case["s"]).into_iter().enumerate() {
            let setting = setting(case, s);
            for row in list(&case["rows"]).iter().step_by(5) {
                let policy = hold(count(&row["B"]), count(&row["H"]));
                let what = format!("{} s={s}", case["name"]);
                all.add(&what, &setting, count(&case["N"]), &policy, number(&row["T_at_s"][i]));
            }
        }
    }
    all.finish(150);
}

/// The rate of a planned policy: exact, where a chain knows the rule.
fn exact(case: &Value, setting: &Setting, requests: usize, slowdown: f64, policy: &Policy) -> f64 {
    let both = |t: &Thresholds| (0..2).map(|i| t.at(ModelId(i), requests) as u32).collect::<Vec<_>>();
    let rule = match policy {
        Policy::Eager => LaunchRule::Threshold(vec![1, 1]),
        Policy::Hold { thresholds, beside } => {
            LaunchRule::Hold { thresholds: both(thresholds), beside: beside.at(requests) as u32 }
        }
        Policy::Exclusive(k) => LaunchRule::Exclusive { at_least: both(k)[1] },
        // The chain weighs at the peer alone: the same for 1.
        Policy::Lookahead { alpha: 1.0 } => LaunchRule::Lookahead { alpha: 1.0 },
        _ => return rate(setting, requests, policy, 2 * ROWS),
    };
    let system = System::new(SystemSpec {
        routing: setting.routing.clone(),
        commit: setting.commit.clone(),
        steps: StepQuanta::Constant(list(&case["d"]).iter().map(|d| count(d) as u32).collect()),
        quantum_ms: number(&case["delta_ms"]),
        requests: requests as u32,
        entry: 0,
    })
    .expect("a golden system");
    // Thresholds for which all could wait are legal in the engine.
    match evaluate(&system, &rule, slowdown, STATES) {
        Ok(performance) => performance.tokens_per_s,
        Err(_) => rate(setting, requests, policy, 2 * ROWS),
    }
}

#[test]
fn plans_are_near_the_optimum() {
    let file = golden("dtmc_ext.json");
    let mut lines: Vec<(f64, String)> = Vec::new();
    let mut add = |case: &Value, slowdown: f64, best: f64| {
        let (setting, n) = (setting(case, slowdown), count(&case["N"]));
        let row = search_policy(&setting, n, &SearchSpec::default()).expect("a plan");
        let found = exact(case, &setting, n, slowdown, &row.policy);
        let regret = 1.0 - found / best;
        lines.push((
            regret,
            format!("{} N={n} s={slowdown}: {found:.2} of {best:.2}, {:?}", case["name"], row.policy),
        ));
    };
    // Over all stationary rules.
    for case in list(&file["hold"]) {
        add(case, 1.0, number(&case["smdp_lower"]));
    }
    // Over (B, H) and one model at a time.
    for case in list(&file["contention"]) {
        let n = count(&case["N"]);
        for (i, s) in numbers(&case["s"]).into_iter().enumerate() {
            let shared = list(&case["rows"]).iter().map(|row| number(&row["T_at_s"][i]));
            let setting = setting(case, s);
            let alone = (1..=n).map(|k| exact(case, &setting, n, s, &exclusive(k)));
            add(case, s, shared.chain(alone).fold(0.0, f64::max));
        }
    }
    let mean = lines.iter().map(|(regret, _)| regret).sum::<f64>() / lines.len() as f64;
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (worst, what) = &lines[0];
    println!("{} plans, mean regret {mean:.5}, worst {worst:.5} ({what})", lines.len());
    assert!(*worst <= 0.015, "{worst}: {what}");
    assert!(mean <= 0.005, "{mean}");
    assert!(lines.len() >= 40);
}

#[test]
fn the_shared_device_of_the_paper_gets_its_rate() {
    for (n, least) in [(8, 420.0), (4, 219.0)] {
        let setting = pair(0.276, 1.5);
        let row = search_policy(&setting, n, &SearchSpec::default()).expect("a plan");
        let found = rate(&setting, n, &row.policy, 2 * ROWS);
        assert!(found >= least && row.tokens_per_s >= least, "N={n}: {found}, {row:?}");
    }
}

#[test]
fn a_limit_on_the_tail_is_kept_at_the_best_rate() {
    // Section 6(e) of the study: limit in ms, the best rate within it.
    for (n, limit, best) in [(8, 60, 372.2), (8, 70, 393.9), (8, 74, 403.5), (16, 60, 744.6), (16, 65, 768.3)]
    {
        let spec = SearchSpec { p99_limit: Some(limit * 1_000_000), ..SearchSpec::default() };
        let setting = pair(0.35, 1.0);
        let row = search_policy(&setting, n, &spec).expect("a plan");
        let draws = Draws::new(&setting, 2 * ROWS, 12).expect("draws");
        let spec = ForecastSpec { request_steps: 2 * ROWS, p99: true };
        let found = forecast(&setting, n, &row.policy, &draws, spec);
        assert!(
            found.p99.is_some_and(|p99| p99 <= limit * 1_000_000),
            "N={n}, {limit} ms: {found:?}, {row:?}"
        );
        let loss = 1.0 - found.tokens_per_s / best;
        assert!(loss.abs() < 0.01, "N={n}, {limit} ms: {found:?} of {best}, {row:?}");
    }
    // Nothing keeps this one: the shortest tail there is.
    let spec = SearchSpec { p99_limit: Some(1), ..SearchSpec::default() };
    let row = search_policy(&pair(0.35, 1.0), 8, &spec).expect("a plan");
    assert!(row.p99.is_some_and(|p99| p99 < 61_000_000), "{row:?}");
}
