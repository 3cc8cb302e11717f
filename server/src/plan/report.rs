//! A plan as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use tokenrouter_scheduler::planner::Evaluated;

use super::Plan;
use crate::chart::tidy;

/// More rows than this are cut to the best.
const MOST_ROWS: usize = 40;
const BEST_ROWS: usize = 20;

/// The table, the grid, and the best thresholds.
pub(super) fn text(plan: &Plan) -> String {
    let rows = &plan.table.rows;
    let mut out = header(plan);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if rows.len() > MOST_ROWS {
        let rate = |i: usize| rows[i].performance.tokens_per_s;
        order.sort_by(|&a, &b| rate(b).total_cmp(&rate(a)));
        order.truncate(BEST_ROWS);
    }
    let width = rows.iter().map(|r| vector(&r.thresholds).len()).max().unwrap_or(1).max(1);
    let per_model = 6 * plan.latency_ms.len();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "  {:<width$}  tokens/s   below  {:<per_model$}  {:<per_model$}  wait ms/token   states",
        "B", "busy %", "batch"
    );
    let best = plan.table.best().performance.tokens_per_s;
    for &i in &order {
        let mark = if plan.table.ties.contains(&i) { '*' } else { ' ' };
        let p = &rows[i].performance;
        let _ = writeln!(
            out,
            "{mark} {:<width$}  {:>8.2}  {:>7}  {:<per_model$}  {:<per_model$}  {:>13.3}  {:>7}",
            vector(&rows[i].thresholds),
            p.tokens_per_s,
            below(p.tokens_per_s, best),
            columns(p.utilisation.iter().map(|u| 100.0 * u)),
            columns(mean_batches(&rows[i])),
            p.wait_ms_per_token,
            p.states,
        );
    }
    if order.len() < rows.len() {
        let _ = writeln!(out, "  (the best {BEST_ROWS} of {} rows; --json lists all)", rows.len());
    }
    out.push_str(&footer(plan));
    out
}

fn header(plan: &Plan) -> String {
    let grid = &plan.grid;
    let used: Vec<f64> = grid.steps.iter().map(|&d| f64::from(d) * grid.quantum_ms).collect();
    let names: Vec<String> = used.iter().map(|l| format!("{}", tidy(*l))).collect();
    let mut out = format!(
        "{} requests, step times {} ms on a grid of {} ms",
        plan.requests,
        names.join(", "),
        tidy(grid.quantum_ms)
    );
    if grid.error > 1e-9 {
        let _ = write!(out, " (rounded by at most {:.2} %)", 100.0 * grid.error);
    }
    if plan.slowdown != 1.0 {
        let _ = write!(out, ", {} times slower while two or more models run", plan.slowdown);
    }
    out.push('\n');
    out
}

fn footer(plan: &Plan) -> String {
    let best = plan.table.best();
    let mut out =
        format!("best B = {}: {:.2} tokens/s", vector(&best.thresholds), best.performance.tokens_per_s);
    let eager = plan.table.rows.iter().find(|r| r.thresholds.iter().all(|&b| b == 1));
    if let Some(eager) = eager {
        let gain = 100.0 * (best.performance.tokens_per_s / eager.performance.tokens_per_s - 1.0);
        let _ = write!(out, ", {gain:+.2} % over eager batching");
    }
    if plan.table.ties.len() > 1 {
        let _ = write!(out, " (the first of {} that are equal)", plan.table.ties.len());
    }
    out.push('\n');
    if !plan.complete() {
        let all = plan.feasible.map_or("very many".to_owned(), |count| count.to_string());
        let _ = writeln!(
            out,
            "{} of {all} feasible vectors evaluated, by a climb from the closed form; --all tries every one",
            plan.table.rows.len()
        );
    }
    out
}

/// The JSON object: `best`, `rows`, and what they belong to.
pub(super) fn json(plan: &Plan) -> String {
    let rows: Vec<Value> = plan.table.rows.iter().map(row).collect();
    let ties: Vec<&Vec<u32>> = plan.table.ties.iter().map(|&i| &plan.table.rows[i].thresholds).collect();
    let value = json!({
        "best": plan.table.best().thresholds,
        "ties": ties,
        "complete": plan.complete(),
        "requests": plan.requests,
        "latency_ms": plan.latency_ms,
        "quantum_ms": plan.grid.quantum_ms,
        "quanta": plan.grid.steps,
        "slowdown": plan.slowdown,
        "rows": rows,
    });
    format!("{value}\n")
}

fn row(row: &Evaluated) -> Value {
    let p = &row.performance;
    json!({
        "B": row.thresholds,
        "tokens_per_s": p.tokens_per_s,
        "tokens_per_epoch": p.tokens_per_epoch,
        "epoch_ms": p.epoch_ms,
        "steps_per_s": p.steps_per_s,
        "utilisation": p.utilisation,
        "launches_per_s": p.launches_per_s,
        "wait_ms_per_token": p.wait_ms_per_token,
        "overlap": p.overlap,
        "states": p.states,
    })
}

/// Writes to standard output; a reader that has gone away is no error.
pub(super) fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {e}")),
        _ => Ok(()),
    }
}

/// A threshold vector as people write it: `1,5`.
pub(super) fn vector(thresholds: &[u32]) -> String {
    thresholds.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// How far a rate is below the best, in percent.
fn below(rate: f64, best: f64) -> String {
    format!("{:.2}%", 100.0 * (1.0 - rate / best).max(0.0))
}

fn mean_batches(row: &Evaluated) -> impl Iterator<Item = f64> {
    let p = &row.performance;
    p.steps_per_s.iter().zip(&p.launches_per_s).map(|(s, l)| if *l > 0.0 { s / l } else { 0.0 })
}

fn columns(values: impl Iterator<Item = f64>) -> String {
    values.map(|v| format!("{v:>5.1} ")).collect::<String>().trim_end().to_owned()
}
