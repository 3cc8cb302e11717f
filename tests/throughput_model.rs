//! The throughput model against exact values from independent solvers (tests/golden/dtmc).

mod support;

use serde_json::Value;
use support::dtmc::{count, golden, list, matrix, number, numbers};
use tokenrouter_scheduler::planner::*;

/// Golden rates have 12 digits; the solvers behind them agree to 4e-13.
const RELATIVE: f64 = 1e-9;
const STATES: usize = 500_000;

fn counts(value: &Value) -> Vec<u32> {
    list(value).iter().map(|v| count(v) as u32).collect()
}

/// R2R commits, where a file leaves them out.
fn r2r_commit() -> Vec<Vec<f64>> {
    vec![vec![1.0, 0.0], vec![1.0, 0.0]]
}

fn system(case: &Value, requests: u32) -> System {
    let commit = case.get("C").map_or_else(r2r_commit, matrix);
    System::new(SystemSpec {
        routing: matrix(&case["P"]),
        commit,
        steps: StepQuanta::Constant(counts(&case["d"])),
        quantum_ms: number(&case["delta_ms"]),
        requests,
        entry: case.get("entry").map_or(0, count),
    })
    .expect("a golden system")
}

fn close(what: &str, found: f64, expected: f64) {
    let error = (found - expected).abs();
    assert!(error <= RELATIVE * expected.abs() + 1e-12, "{what}: {found} instead of {expected}");
}

fn all_close(what: &str, found: &[f64], expected: &Value) {
    let expected = numbers(expected);
    assert_eq!(found.len(), expected.len(), "{what}");
    found.iter().zip(expected).for_each(|(f, e)| close(what, *f, e));
}

fn rate(system: &System, rule: &LaunchRule, slowdown: f64) -> f64 {
    evaluate(system, rule, slowdown, STATES).expect("a golden rule").tokens_per_s
}

/// Checks every row and the best of every table of the named case.
fn check_case(case: &Value) -> usize {
    let name = case["name"].as_str().expect("a name");
    let mut rows = 0;
    for table in list(&case["tables"]) {
        let requests = count(&table["N"]) as u32;
        let system = system(case, requests);
        assert_eq!(count_feasible(system.models(), requests), table["feasible"].as_u64(), "{name}");
        let vectors: Vec<Vec<u32>> = list(&table["rows"]).iter().map(|row| counts(&row["B"])).collect();
        let limits = Limits { states: STATES, ..Limits::default() };
        let found = if table["complete"] == true {
            search_all(&system, 1.0, limits)
        } else {
            compare(&system, vectors.clone(), 1.0, limits)
        }
        .expect("a golden table");
        assert_eq!(found.rows.len(), vectors.len(), "{name} N={requests}");
        for row in list(&table["rows"]) {
            let wanted = counts(&row["B"]);
            let at = found.rows.iter().find(|r| r.thresholds == wanted).expect("the vector is feasible");
            check_row(&format!("{name} N={requests} B={wanted:?}"), &at.performance, row);
            rows += 1;
        }
        assert_eq!(found.best().thresholds, counts(&table["argmax"]), "{name} N={requests}");
        let ties: Vec<Vec<u32>> = found.ties.iter().map(|&i| found.rows[i].thresholds.clone()).collect();
        assert_eq!(ties, list(&table["ties"]).iter().map(counts).collect::<Vec<_>>(), "{name} N={requests}");
        close(name, found.best().performance.tokens_per_s, number(&table["T_max"]));
    }
    rows
}

fn check_row(what: &str, found: &Performance, row: &Value) {
    close(what, found.tokens_per_s, number(&row["T_tok_s"]));
    close(what, found.tokens_per_epoch, number(&row["Eg"]));
    close(what, found.epoch_ms, number(&row["Etau_ms"]));
    all_close(what, &found.steps_per_s, &row["steps_per_s"]);
    all_close(what, &found.utilisation, &row["utilisation"]);
    all_close(what, &found.launches_per_s, &row["launches_per_s"]);
    // The golden waiting time is the small difference of two large sums, so its 12 digits are not all good.
    let wait = number(&row["wait_ms_per_token"]);
    assert!((found.wait_ms_per_token - wait).abs() <= 1e-8 * wait.max(1.0), "{what}: {found:?}, not {wait}");
    assert_eq!(found.states, count(&row["states"]), "{what}");
    if let Some(recurrent) = row["recurrent"].as_u64() {
        assert_eq!(found.recurrent as u64, recurrent, "{what}");
    }
}

#[test]
fn every_row_of_the_papers_chain_is_reproduced() {
    let file = golden("dtmc.json");
    let rows: usize = list(&file["cases"]).iter().map(check_case).sum();
    assert_eq!(rows, 542);
}

#[test]
fn tiny_chains_match_state_by_state() {
    let file = golden("dtmc.json");
    assert_eq!(list(&file["tiny"]).len(), 6);
    for tiny in list(&file["tiny"]) {
        let name = tiny["name"].as_str().expect("a name");
        let system = system(tiny, count(&tiny["N"]) as u32);
        let rule = LaunchRule::Threshold(counts(&tiny["B"]));
        let solution = Solution::new(Chain::new(&system, &rule, 1000).expect(name)).expect(name);
        let chain = solution.chain();
        let states: Vec<Vec<u32>> = list(&tiny["states"]).iter().map(counts).collect();
        assert_eq!(chain.states(), states.len(), "{name}");
        // Ours of theirs: the order of discovery is free.
        let ours: Vec<usize> = states
            .iter()
            .map(|s| (0..chain.states()).find(|&i| chain.state(i) == s.as_slice()).expect("a known state"))
            .collect();
        for (theirs, &at) in ours.iter().enumerate() {
            assert_eq!(u64::from(chain.holding(at)), tiny["tau"][theirs].as_u64().expect("tau"), "{name}");
            close(name, solution.tokens(at), number(&tiny["g"][theirs]));
            close(name, solution.stationary()[at], number(&tiny["pi"][theirs]));
        }
        let mut edges = 0;
        for edge in list(&tiny["transitions"]) {
            let (from, to) = (ours[count(&edge[0])], ours[count(&edge[1])]);
            let found = chain.successors(from).find(|&(s, _)| s == to).expect("a known transition");
            close(name, found.1, number(&edge[2]));
            edges += 1;
        }
        assert_eq!(chain.transitions(), edges, "{name}");
        close(name, solution.performance(1.0).expect(name).tokens_per_s, number(&tiny["T_tok_s"]));
    }
}

#[test]
fn hold_and_lookahead_match_and_respect_the_optimum() {
    let file = golden("dtmc_ext.json");
    let mut rows = 0;
    for case in list(&file["hold"]) {
        let system = system(case, count(&case["N"]) as u32);
        let upper = number(&case["smdp_upper"]) * (1.0 + RELATIVE);
        let what = format!("{} N={}", case["name"], case["N"]);
        for row in list(&case["rows"]) {
            let thresholds = vec![1, count(&row["B1"]) as u32];
            let plain = LaunchRule::Threshold(thresholds.clone());
            let hold = LaunchRule::Hold { thresholds, beside: 1 };
            for (rule, rate_key, key) in [
                (plain, "T_threshold", "T_threshold_at_s"),
                (hold, "T_threshold_hold", "T_threshold_hold_at_s"),
            ] {
                let chain = Chain::new(&system, &rule, STATES).expect("a chain");
                let solution = Solution::new(chain).expect("a solution");
                let rate = |s: f64| solution.performance(s).expect("a rate").tokens_per_s;
                close(&what, rate(1.0), number(&row[rate_key]));
                assert!(rate(1.0) <= upper, "{what}: above the proven optimum");
                let rates: Vec<f64> = numbers(&case["s"]).into_iter().map(rate).collect();
                all_close(&what, &rates, &row[key]);
                rows += 1;
            }
        }
        for (alpha, key) in [(1.0, "T_lookahead"), (1.15, "T_lookahead_alpha115")] {
            let found = rate(&system, &LaunchRule::Lookahead { alpha }, 1.0);
            close(&format!("{what} {key}"), found, number(&case[key]));
            assert!(found <= upper, "{what}: above the proven optimum");
        }
    }
    assert_eq!(rows, 2 * 67);
}

#[test]
fn the_two_parameter_family_matches_under_every_slowdown() {
    let file = golden("dtmc_ext.json");
    let mut rows = 0;
    for case in list(&file["contention"]) {
        // The file leaves C out here; R-Stitch commits as in its other tables.
        let mut case = case.clone();
        if case["name"] == "rstitch" {
            case["C"] = serde_json::json!([[1, 0], [1, 1]]);
        }
        let system = system(&case, count(&case["N"]) as u32);
        for row in list(&case["rows"]) {
            assert_eq!(row["hold"], true);
            let thresholds = vec![1, count(&row["B"]) as u32];
            let rule = LaunchRule::Hold { thresholds, beside: count(&row["H"]) as u32 };
            let solution = Solution::new(Chain::new(&system, &rule, STATES).expect("a chain")).expect("pi");
            let rates: Vec<f64> = numbers(&case["s"])
                .into_iter()
                .map(|s| solution.performance(s).expect("a rate").tokens_per_s)
                .collect();
            all_close(&format!("{} {row}", case["name"]), &rates, &row["T_at_s"]);
            rows += 1;
        }
    }
    assert_eq!(rows, 192);
}

#[test]
fn exclusive_alternation_matches() {
    let file = golden("dtmc_ext.json");
    assert_eq!(list(&file["model_sync"]).len(), 18);
    for case in list(&file["model_sync"]) {
        let p = number(&case["p"]);
        let requests = count(&case["N"]) as u32;
        assert_eq!(numbers(&case["L"]), [6.0, 27.9]);
        let system = System::new(SystemSpec {
            routing: vec![vec![1.0 - p, p], vec![1.0, 0.0]],
            commit: r2r_commit(),
            steps: StepQuanta::Constant(vec![20, 93]),
            quantum_ms: 0.3,
            requests,
            entry: 0,
        })
        .expect("a system");
        let rates: Vec<f64> =
            (1..=requests).map(|at_least| rate(&system, &LaunchRule::Exclusive { at_least }, 1.0)).collect();
        all_close(&format!("p={p} N={requests}"), &rates, &case["T_by_K"]);
        let apart = evaluate(&system, &LaunchRule::Exclusive { at_least: 1 }, 2.0, STATES).expect("a rate");
        assert_eq!(apart.overlap, 0.0);
    }
}

#[test]
fn step_times_that_grow_with_the_batch_match() {
    let file = golden("dtmc_ext.json");
    assert_eq!(list(&file["batch_latency"]).len(), 6);
    for case in list(&file["batch_latency"]) {
        // Index 0 of the table is unused.
        let table = list(&case["d_by_batch"]).iter().map(|t| counts(t)[1..].to_vec()).collect();
        let system = System::new(SystemSpec {
            routing: matrix(&case["P"]),
            commit: matrix(&case["C"]),
            steps: StepQuanta::ByBatch(table),
            quantum_ms: number(&case["delta_ms"]),
            requests: count(&case["N"]) as u32,
            entry: 0,
        })
        .expect("a system");
        for row in list(&case["rows"]) {
            let rule = LaunchRule::Threshold(vec![1, count(&row["B1"]) as u32]);
            let found = evaluate(&system, &rule, 1.0, STATES).expect("a rate");
            close(&format!("{} {row}", case["name"]), found.tokens_per_s, number(&row["T"]));
            assert_eq!(found.states, count(&row["states"]), "{} {row}", case["name"]);
        }
    }
}

#[test]
fn the_closed_form_matches() {
    let file = golden("dtmc_ext.json");
    for case in list(&file["formula"]) {
        let steps = numbers(&case["L"]);
        for (requests, b) in case["B_by_N"].as_object().expect("a map") {
            let found = closed_form(number(&case["p"]), steps[0], steps[1], requests.parse().expect("N"));
            assert_eq!(found as usize, count(b), "{case} N={requests}");
        }
    }
}
