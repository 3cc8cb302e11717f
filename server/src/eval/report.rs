//! The rows as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenrouter_scheduler::Threshold;

use super::quality::Quality;
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
    let agreement = rows.first().is_some_and(|r| r.marks.quality() == Quality::Agreement);
    let measured = if agreement { "agree %  exact %" } else { "right %" };
    let _ = writeln!(
        out,
        "{:<width$}  threshold  {measured}  gap %  large %  handoffs/answer  tokens/s  s/answer  CPU s",
        "router"
    );
    for row in rows {
        let threshold = row.threshold.map_or_else(|| "-".to_owned(), |t| t.to_string());
        let gap = row.gap_recovered.map_or_else(|| "-".to_owned(), |g| format!("{:.0}", 100.0 * g));
        let exact = row.marks.exact().map_or_else(String::new, |e| format!("  {:>7.1}", 100.0 * e));
        let cpu = row.cpu_seconds.map_or_else(|| "-".to_owned(), |s| format!("{s:.1}"));
        let _ = writeln!(
            out,
            "{:<width$}  {threshold:>9}  {:>7.1}{exact}  {gap:>5}  {:>7.1}  {:>15.1}  {:>8.0}  {:>8.3}  {cpu:>5}",
            row.router,
            100.0 * row.quality(),
            100.0 * row.large_share,
            row.handoffs_per_answer,
            row.tokens_per_s(),
            row.seconds_per_answer,
        );
    }
    let widest = 100.0 * rows.iter().map(|r| r.marks.error()).fold(0.0, f64::max);
    let measured = if agreement {
        "agree %: ROUGE-L F1 of the tokens and those of the large model alone, the mean of the answers, standard error \
         up to"
    } else {
        "right %: standard error up to"
    };
    let _ = writeln!(
        out,
        "{measured} {widest:.1}; gap %: of the way from small to large; large %: of the tokens"
    );
    if agreement {
        out.push_str("exact %: of the answers, the same to the token\n");
    }
    out
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
        "accuracy": row.marks.mean_of(Quality::Answer),
        "agreement": row.marks.mean_of(Quality::Agreement),
        "exact": row.marks.exact(),
        "large_share": row.large_share,
        "handoffs_per_answer": row.handoffs_per_answer,
        "tokens_per_s": row.tokens_per_s(),
        "seconds_per_answer": row.seconds_per_answer,
        "gap_recovered": row.gap_recovered,
        "route": row.route,
        "shares": row.shares,
        "dropped_per_answer": row.dropped_per_answer,
        "answers": row.answers,
        "right": (row.marks.quality() == Quality::Answer).then(|| row.marks.full()),
        "tokens": row.tokens,
        "seconds": row.seconds,
        "cpu_seconds": row.cpu_seconds,
    })
}

/// A threshold: a number in its shortest decimal form (0.4, not 0.4000000059604645), or a word.
pub(crate) fn decimal(threshold: Threshold) -> Value {
    match threshold {
        Threshold::Value(value) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        word => word.to_string().into(),
    }
}
