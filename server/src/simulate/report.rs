//! Measurements as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenrouter_scheduler::sim::serving::{Arrivals, ModelReport, Report, Summary};

use super::build::Scenario;
use super::{Outcome, SimulateArgs};

/// What is simulated, a row per policy, and for a single policy what happened in each model.
pub(super) fn text(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let mut out = header(scenario, outcomes);
    let width = outcomes.iter().map(|o| o.policy.len() + o.label.len()).max().unwrap_or(6).max(6);
    let per_model = 6 * scenario.models.len();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<width$}  tokens/s    req/s  {:<17}  {:<31}  {:<per_model$}  {:<per_model$}",
        "policy", "first token ms", "between tokens ms", "busy %", "batch"
    );
    let _ = writeln!(
        out,
        "{:<width$}  {:>8}  {:>7}  {:>8} {:>8}  {:>7} {:>7} {:>7} {:>7}",
        "", "", "", "p50", "p99", "p50", "p90", "p99", "p99.9"
    );
    for Outcome { policy, label, report, .. } in outcomes {
        let policy = format!("{policy}{label}");
        let (first, between) = (&report.first_token, &report.inter_token);
        let _ = writeln!(
            out,
            "{policy:<width$}  {:>8.1}  {:>7.2}  {:>8} {:>8}  {:>7} {:>7} {:>7} {:>7}  {:<per_model$}  {:<per_model$}",
            report.tokens_per_s(),
            report.requests_per_s(),
            cell(first, first.p50),
            cell(first, first.p99),
            cell(between, between.p50),
            cell(between, between.p90),
            cell(between, between.p99),
            cell(between, between.p999),
            columns(report.models.iter().map(|m| 100.0 * m.utilisation)),
            columns(report.models.iter().map(ModelReport::mean_batch)),
        );
    }
    for Outcome { policy, label, report, .. } in outcomes {
        let name = if outcomes.len() > 1 { format!("{policy}{label}: ") } else { String::new() };
        let _ = writeln!(out, "{name}{}", events(report));
    }
    if let [Outcome { report, .. }] = outcomes {
        out.push_str(&models(scenario, report));
    }
    out.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn header(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let spec = &scenario.spec;
    let mut clients: Vec<usize> = outcomes.iter().filter_map(|o| o.clients).collect();
    clients.dedup();
    let clients: Vec<String> = clients.iter().map(usize::to_string).collect();
    let workload = match &spec.workload.arrivals {
        Arrivals::Closed(_) => format!("{} clients in a closed loop", clients.join(", ")),
        Arrivals::Poisson(rate) => format!("{rate} conversations per second (Poisson)"),
        Arrivals::Bursts(size, every) => format!("bursts of {size} every {} s", *every as f64 / 1e9),
        Arrivals::Trace(trace) => format!("a trace of {} requests", trace.len()),
    };
    format!("{}: {workload}, seed {}\n", scenario.models.join(" + "), spec.seed)
}

/// Everything that is worth a line, but not a column.
fn events(report: &Report) -> String {
    let mut parts = vec![format!(
        "{} tokens and {} requests in {:.1} s",
        report.tokens,
        report.completed,
        report.elapsed as f64 / 1e9
    )];
    parts.push(format!("{} handoffs", report.handoffs));
    let mut note = |count: u64, what: &str| {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    };
    note(report.preemptions, "preempted");
    note(report.stopped, "stopped");
    note(report.vanished, "clients gone");
    note(report.failed, "failed");
    note(report.refused, "refused");
    note(report.guard_launches, "launches by the guard");
    let cached: u64 = report.models.iter().map(|m| m.cached).sum();
    note(cached, "prompt tokens found in a cache");
    if report.admission.p99 > 0.0 {
        parts.push(format!("admitted after {:.1} ms (p99)", ms(report.admission.p99)));
    }
    parts.join(", ")
}

fn models(scenario: &Scenario, report: &Report) -> String {
    let width = scenario.models.iter().map(String::len).max().unwrap_or(5).max(5);
    let mut out = format!(
        "{:<width$}     steps     rows   tokens  dropped   cached      cut   failed  wait ms p50/p99  rows of a step (share)\n",
        "model"
    );
    for (name, model) in scenario.models.iter().zip(&report.models) {
        let _ = writeln!(
            out,
            "{name:<width$}  {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>7.1} {:>7.1}  {}",
            model.launches,
            model.rows,
            model.committed,
            model.discarded,
            model.cached,
            model.cut_rows,
            model.failed_steps,
            ms(model.wait.p50),
            ms(model.wait.p99),
            distribution(model),
        );
    }
    out
}

/// The sizes of batches with a share of at least 2 %, at most eight of them.
fn distribution(model: &ModelReport) -> String {
    let share = |n: u64| 100.0 * n as f64 / model.launches.max(1) as f64;
    let sizes = model.batches.iter().enumerate().filter(|(_, n)| share(**n) >= 2.0).take(8);
    sizes.map(|(i, &n)| format!("{}:{:.0}%", i + 1, share(n))).collect::<Vec<_>>().join(" ")
}

/// The JSON object: what was run, and every measurement.
pub(super) fn json(args: &SimulateArgs, scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let runs: Vec<Value> = outcomes.iter().map(|o| run(scenario, o)).collect();
    let value = json!({
        "scenario": args.file.display().to_string(),
        "seed": scenario.spec.seed,
        "models": scenario.models,
        "runs": runs,
    });
    format!("{value}\n")
}

fn run(scenario: &Scenario, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let models: Vec<Value> = scenario.models.iter().zip(&report.models).map(|(n, m)| model(n, m)).collect();
    let routes: Vec<Value> = report
        .routes
        .iter()
        .map(|r| json!({ "completed": r.completed, "failed": r.failed, "tokens": r.tokens }))
        .collect();
    json!({
        "policy": outcome.policy,
        "handoff": outcome.handoff,
        "clients": outcome.clients,
        "tokens_per_s": report.tokens_per_s(),
        "requests_per_s": report.requests_per_s(),
        "seconds": report.elapsed as f64 / 1e9,
        "tokens": report.tokens,
        "completed": report.completed,
        "stopped": report.stopped,
        "vanished": report.vanished,
        "failed": report.failed,
        "refused": report.refused,
        "first_token_ms": summary(&report.first_token),
        "inter_token_ms": summary(&report.inter_token),
        "end_to_end_ms": summary(&report.end_to_end),
        "admission_ms": summary(&report.admission),
        "handoffs": report.handoffs,
        "preemptions": report.preemptions,
        "prompt_tokens": report.prompt_tokens,
        "guard_launches": report.guard_launches,
        "models": models,
        "routes": routes,
        "planner": planner(report),
    })
}

/// What the planner came to; null without one.
fn planner(report: &Report) -> Value {
    let status = &report.planner;
    if !status.enabled {
        return Value::Null;
    }
    json!({
        "policy": format!("{:?}", status.policy),
        "planned": status.planned,
        "predicted": status.predicted,
        "measured": status.measured,
        "rounds": status.rounds,
        "plans": status.plans,
        "fallbacks": status.fallbacks,
        "error": status.error,
    })
}

fn model(name: &str, model: &ModelReport) -> Value {
    json!({
        "name": name,
        "utilisation": model.utilisation,
        "launches": model.launches,
        "failed_steps": model.failed_steps,
        "rows": model.rows,
        "mean_batch": model.mean_batch(),
        "batches": model.batches,
        "fed_tokens": model.fed,
        "cut_rows": model.cut_rows,
        "wait_ms": summary(&model.wait),
        "committed": model.committed,
        "discarded": model.discarded,
        "cached_tokens": model.cached,
        "failed": model.failed,
    })
}

/// A summary of durations in milliseconds.
pub(crate) fn summary(s: &Summary) -> Value {
    json!({
        "count": s.count,
        "mean": ms(s.mean),
        "p50": ms(s.p50),
        "p90": ms(s.p90),
        "p95": ms(s.p95),
        "p99": ms(s.p99),
        "p99_9": ms(s.p999),
        "max": ms(s.max),
    })
}

/// A percentile in milliseconds; a dash when nothing was measured.
fn cell(summary: &Summary, nanos: f64) -> String {
    if summary.count == 0 { "-".to_owned() } else { format!("{:.1}", ms(nanos)) }
}

fn ms(nanos: f64) -> f64 {
    nanos / 1e6
}

fn columns(values: impl Iterator<Item = f64>) -> String {
    values.map(|v| format!("{v:>5.1} ")).collect::<String>().trim_end().to_owned()
}
