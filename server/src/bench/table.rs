//! What was measured, for people.

use std::fmt::Write as _;

use super::outcome::Row;
use super::predict;
use super::presets::Shape;
use super::report::accounts;
use super::run::Bench;
use super::stats::Spread;

/// The columns: a head, and the cell of a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 15] = [
    ("tokens/s", |r| with_interval(r.spread("tokens_per_s"))),
    ("user tok/s", |r| mean(r, "user_tokens_per_s", 1.0, 1)),
    ("first ms p50", |r| mean(r, "first_token_p50_ms", 1.0, 1)),
    ("p99", |r| mean(r, "first_token_p99_ms", 1.0, 1)),
    ("between ms p50", |r| mean(r, "inter_token_p50_ms", 1.0, 2)),
    ("p90", |r| mean(r, "inter_token_p90_ms", 1.0, 2)),
    ("p95", |r| mean(r, "inter_token_p95_ms", 1.0, 2)),
    ("p99", |r| mean(r, "inter_token_p99_ms", 1.0, 2)),
    ("answer s", |r| mean(r, "end_to_end_mean_ms", 1e-3, 2)),
    ("wait ms", |r| mean(r, "wait_mean_ms", 1.0, 3)),
    ("batch", |r| r.batches().iter().map(|b| format!("{b:.1}")).collect::<Vec<_>>().join("/")),
    ("large %", |r| mean(r, "large_share", 100.0, 1)),
    ("CPU ms/tok", |r| mean(r, "cpu_ms_per_token", 1.0, 3)),
    ("others' CPU %", |r| mean(r, "foreign_cpu_share", 100.0, 1)),
    ("right %", |r| mean(r, "right_share", 100.0, 1)),
];

/// Everything that goes to standard output.
pub(super) fn text(bench: &Bench<'_>, shape: Shape) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    bench.notes.iter().for_each(|note| {
        let _ = writeln!(out, "{note}");
    });
    out.push('\n');
    out.push_str(&settings(bench));
    out.push_str(&events(bench));
    out.push_str(&by_load(bench));
    match shape {
        Shape::Thresholds => out.push_str(&predict::text(bench)),
        Shape::Breakdown => out.push_str(&breakdown(bench)),
        _ => {}
    }
    out.push_str(
        "\ntokens/s: the mean of the repeats that count, and half its 95 % confidence interval; user tok/s: of one answer, \
         question to end;\nwait: the admission delay, from a handoff's verdict to its launch; batch: rows of a step by \
         model; others' CPU: of all processors\n",
    );
    out
}

/// A row per setting; columns that nothing has are left out.
fn settings(bench: &Bench<'_>) -> String {
    let measured: Vec<(String, &Row)> = bench
        .settings
        .iter()
        .zip(&bench.rows)
        .filter(|(_, row)| !row.repeats.is_empty())
        .map(|(setting, row)| (bench.label(setting), row))
        .collect();
    let mut lines = vec![vec!["setting".to_owned()]];
    lines.extend(measured.iter().map(|(label, row)| {
        let mark = if row.is_doubtful() { " !" } else { "" };
        vec![format!("{label}{mark}")]
    }));
    for (head, cell) in COLUMNS {
        let cells: Vec<String> = measured.iter().map(|(_, row)| cell(row)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            push(&mut lines, head, cells);
        }
    }
    let repeats = measured.iter().map(|(_, row)| row.kept().len().to_string()).collect();
    push(&mut lines, "repeats", repeats);
    aligned(&lines)
}

fn push(lines: &mut [Vec<String>], head: &str, cells: Vec<String>) {
    lines[0].push(head.to_owned());
    for (line, cell) in lines[1..].iter_mut().zip(cells) {
        line.push(if cell.is_empty() { "-".into() } else { cell });
    }
}

/// Columns of equal width, the first to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for line in lines {
        for (index, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match index {
                0 => write!(out, "{cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

/// Repeats that do not count, requests that failed, arrivals that came late.
fn events(bench: &Bench<'_>) -> String {
    let mut out = String::new();
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let mut parts = Vec::new();
        if row.discarded() > 0 {
            let most = bench.args.max_foreign_cpu;
            parts.push(format!(
                "{} repeats discarded: others had more than {most} % of the processors",
                row.discarded()
            ));
        }
        parts.extend(row.cuts().into_iter().map(|why| format!("a repeat ended early: {why}")));
        for (kind, count, first) in row.faults() {
            parts.push(format!("{count} requests failed ({kind}), the first: {first}"));
        }
        let late: u64 = row.repeats.iter().map(|r| r.window.late).sum();
        if late > 0 {
            parts.push(format!("{late} arrivals were sent late: --most-open requests were open"));
        }
        if row.is_doubtful() {
            parts.push("! no repeat counts: the row shows those that do not".into());
        }
        for part in parts {
            let _ = writeln!(out, "{}: {part}", bench.label(setting));
        }
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// Tokens per second, a row per setting and a column per load, where there are several loads.
fn by_load(bench: &Bench<'_>) -> String {
    let mut loads: Vec<String> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut cells: Vec<(usize, usize, String)> = Vec::new();
    let place = |list: &mut Vec<String>, text: String| {
        list.iter().position(|known| *known == text).unwrap_or_else(|| {
            list.push(text);
            list.len() - 1
        })
    };
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let mut parts = bench.parts(setting);
        let load = place(&mut loads, parts.pop().unwrap_or_default());
        parts.retain(|part| !part.is_empty());
        let name = if parts.is_empty() { "tokens/s".to_owned() } else { parts.join(", ") };
        let name = place(&mut names, name);
        cells.push((name, load, with_interval(row.spread("tokens_per_s"))));
    }
    if loads.len() < 2 || names.len() < 2 {
        return String::new();
    }
    let mut lines = vec![vec![String::new(); loads.len() + 1]; names.len() + 1];
    lines[0][0] = "tokens/s".into();
    loads.iter().enumerate().for_each(|(at, load)| lines[0][at + 1].clone_from(load));
    names.iter().enumerate().for_each(|(at, name)| lines[at + 1][0].clone_from(name));
    cells.into_iter().for_each(|(name, load, cell)| lines[name + 1][load + 1] = cell);
    format!("\n{}", aligned(&lines))
}

/// Where the time of a step of each model went, by the accounts that answers bring.
fn breakdown(bench: &Bench<'_>) -> String {
    let mut lines = vec![Vec::new()];
    lines[0] = ["ms per step", "model", "steps", "in its queue", "in its batches", "elsewhere"]
        .map(str::to_owned)
        .to_vec();
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let Some(accounts) = accounts(row) else { continue };
        for model in &accounts.models {
            let steps = model.steps.max(1.0);
            let cell = |ms: f64| format!("{:.3}", ms / steps);
            lines.push(vec![
                bench.label(setting),
                model.name.clone(),
                format!("{:.0}", model.steps),
                cell(model.queue_ms),
                cell(model.compute_ms),
                String::new(),
            ]);
        }
        let rest = (accounts.answer_ms - accounts.known_ms()).max(0.0);
        let last = accounts.models.first().map_or(1.0, |m| m.steps.max(1.0));
        lines.push(vec![
            bench.label(setting),
            "not admitted".into(),
            String::new(),
            String::new(),
            String::new(),
            format!("{:.3}", accounts.waiting_ms / last),
        ]);
        lines.push(vec![
            bench.label(setting),
            "HTTP, text, client".into(),
            String::new(),
            String::new(),
            String::new(),
            format!("{:.3}", rest / last),
        ]);
    }
    format!("\n{}(elsewhere: per step of the first model)\n", aligned(&lines))
}

fn mean(row: &Row, measure: &str, scale: f64, digits: usize) -> String {
    row.spread(measure).map(|s| format!("{:.digits$}", s.mean * scale)).unwrap_or_default()
}

fn with_interval(spread: Option<Spread>) -> String {
    let Some(spread) = spread else { return String::new() };
    match spread.ci95 {
        Some(half) => format!("{:.1} ±{half:.1}", spread.mean),
        None => format!("{:.1}", spread.mean),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let line = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let lines = [line(&["a", "tokens/s", "x"]), line(&["longer", "±1", ""])];
        assert_eq!(super::aligned(&lines), "a       tokens/s  x\nlonger        ±1\n");
    }
}
