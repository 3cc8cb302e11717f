//! The rows as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenrouter_scheduler::Threshold;

use super::row::Row;

/// What all rows share.
pub(super) struct What {
    pub(super) problems: usize,
    pub(super) concurrency: u32,
}

/// The table.
pub(super) fn text(rows: &[Row], what: &What) -> String {
    let width = rows.iter().map(|r| r.router.len()).max().unwrap_or(0).max(6);
    let mut out = format!("{} problems, {} at a time, greedy\n", what.problems, what.concurrency);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<width$}  threshold  right %  gap %  large %  handoffs/answer  tokens/s  s/answer",
        "router"
    );
    for row in rows {
        let threshold = row.threshold.map_or_else(|| "-".to_owned(), |t| t.to_string());
        let gap = row.gap_recovered.map_or_else(|| "-".to_owned(), |g| format!("{:.0}", 100.0 * g));
        let _ = writeln!(
            out,
            "{:<width$}  {threshold:>9}  {:>7.1}  {gap:>5}  {:>7.1}  {:>15.1}  {:>8.0}  {:>8.3}",
            row.router,
            100.0 * row.accuracy(),
            100.0 * row.large_share,
            row.handoffs_per_answer,
            row.tokens_per_s(),
            row.seconds_per_answer,
        );
    }
    let widest = rows.iter().map(|r| error(r.accuracy(), r.answers)).fold(0.0, f64::max);
    let _ = writeln!(
        out,
        "right %: standard error up to {:.1}; gap %: of the way from small to large; large %: of the tokens",
        100.0 * widest
    );
    out
}

/// The standard error of a share of `count`.
fn error(share: f64, count: usize) -> f64 {
    (share * (1.0 - share) / count.max(1) as f64).sqrt()
}

/// The JSON object: `rows`, and what they share.
pub(super) fn json(rows: &[Row], what: &What) -> String {
    let rows: Vec<Value> = rows.iter().map(row).collect();
    let value = json!({"problems": what.problems, "concurrency": what.concurrency, "rows": rows});
    format!("{value}\n")
}

fn row(row: &Row) -> Value {
    json!({
        "router": row.router,
        "threshold": row.threshold.map(decimal),
        "accuracy": row.accuracy(),
        "large_share": row.large_share,
        "handoffs_per_answer": row.handoffs_per_answer,
        "tokens_per_s": row.tokens_per_s(),
        "seconds_per_answer": row.seconds_per_answer,
        "gap_recovered": row.gap_recovered,
        "route": row.route,
        "shares": row.shares,
        "dropped_per_answer": row.dropped_per_answer,
        "answers": row.answers,
        "right": row.right,
        "tokens": row.tokens,
        "seconds": row.seconds,
    })
}

/// A threshold: a number in its shortest decimal form (0.4, not 0.4000000059604645), or a word.
pub(crate) fn decimal(threshold: Threshold) -> Value {
    match threshold {
        Threshold::Value(value) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        word => word.to_string().into(),
    }
}
