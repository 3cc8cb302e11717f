//! A plan as a plot: T over the peer's threshold for two models, else the best vectors side by side.

use std::fmt::Write as _;

use tokenrouter_scheduler::planner::Evaluated;

use super::Plan;
use super::report::vector;
use crate::chart::{COLOURS, Scale, frame, page, text, tidy};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Curves beyond this many would hide one another.
const MOST_CURVES: usize = 6;
const MOST_DOTS: usize = 20;

/// The picture as an SVG document.
pub(super) fn plot(plan: &Plan) -> String {
    let mut out = page(WIDTH, HEIGHT);
    let steps: Vec<String> =
        plan.grid.steps.iter().map(|&d| tidy(f64::from(d) * plan.grid.quantum_ms).to_string()).collect();
    let title = format!("Delayed batching, N = {}, step times {} ms", plan.requests, steps.join(" / "));
    text(&mut out, LEFT, 28.0, "start", "#111", &title);
    if plan.latency_ms.len() == 2 {
        curves(plan, &mut out)
    } else {
        dots(plan, &mut out)
    }
    out.push_str("</svg>\n");
    out
}

fn rate(row: &Evaluated) -> f64 {
    row.performance.tokens_per_s
}

fn curves(plan: &Plan, out: &mut String) {
    let families = families(plan);
    let shown: Vec<&Evaluated> =
        plan.table.rows.iter().filter(|row| families.contains(&row.thresholds[0])).collect();
    let x = Scale { low: 0.5, high: f64::from(plan.requests) + 0.5, start: LEFT, end: WIDTH - RIGHT };
    let y = vertical(shown.iter().map(|row| rate(row)));
    frame(out, (LEFT, WIDTH - RIGHT), &y, "throughput T(B), tokens/s");
    // Whole numbers, at most about sixteen of them.
    for b in (1..=plan.requests).step_by((plan.requests as usize).div_ceil(16)) {
        text(out, x.at(f64::from(b)), HEIGHT - BOTTOM + 20.0, "middle", "#333", &b.to_string());
    }
    text(
        out,
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 16.0,
        "middle",
        "#111",
        "threshold of model 1, B1 (requests)",
    );
    for (family, b0) in families.into_iter().enumerate() {
        let points: Vec<(f64, f64)> = shown
            .iter()
            .filter(|row| row.thresholds[0] == b0)
            .map(|row| (x.at(f64::from(row.thresholds[1])), y.at(rate(row))))
            .collect();
        let colour = COLOURS[family % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in &points {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let y = TOP + 20.0 * (family as f64 + 0.5);
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>",
            WIDTH - RIGHT + 22.0,
            y - 4.0
        );
        text(out, WIDTH - RIGHT + 34.0, y, "start", colour, &format!("B0 = {b0}"));
    }
    let best = plan.table.best();
    let (cx, cy) = (x.at(f64::from(best.thresholds[1])), y.at(rate(best)));
    let _ = writeln!(
        out,
        "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"7\" fill=\"none\" stroke=\"#111\" stroke-width=\"2\"/>"
    );
    let label = format!("best B = {}: {:.2}", vector(&best.thresholds), rate(best));
    text(out, cx, cy - 13.0, "middle", "#111", &label);
}

/// The values of B0 that get a curve: those with the highest peaks, in order.
fn families(plan: &Plan) -> Vec<u32> {
    let mut ranked: Vec<&Evaluated> = plan.table.rows.iter().collect();
    ranked.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let mut chosen: Vec<u32> = Vec::new();
    for row in ranked {
        if chosen.len() < MOST_CURVES && !chosen.contains(&row.thresholds[0]) {
            chosen.push(row.thresholds[0]);
        }
    }
    chosen.sort_unstable();
    chosen
}

fn dots(plan: &Plan, out: &mut String) {
    let mut rows: Vec<&Evaluated> = plan.table.rows.iter().collect();
    rows.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    rows.truncate(MOST_DOTS);
    let y = vertical(rows.iter().map(|row| rate(row)));
    frame(out, (LEFT, WIDTH - RIGHT), &y, "throughput T(B), tokens/s");
    let slot = (WIDTH - LEFT - RIGHT) / rows.len().max(1) as f64;
    for (i, row) in rows.iter().enumerate() {
        let x = LEFT + slot * (i as f64 + 0.5);
        let top = y.at(rate(row));
        let best = rate(row) >= rate(plan.table.best()) * (1.0 - 1e-10);
        let colour = if best { COLOURS[1] } else { COLOURS[0] };
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n\
             <circle cx=\"{x:.1}\" cy=\"{top:.1}\" r=\"5\" fill=\"{colour}\"/>",
            HEIGHT - BOTTOM
        );
        let label = vector(&row.thresholds);
        let base = HEIGHT - BOTTOM + 14.0;
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{base}\" font-size=\"11\" text-anchor=\"end\" fill=\"#333\" \
             transform=\"rotate(-40 {x:.1} {base})\">{label}</text>"
        );
    }
    let what = format!("thresholds B of the best {} vectors", rows.len());
    text(out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, "middle", "#111", &what);
}

/// A vertical scale with some air around the values.
fn vertical(values: impl Iterator<Item = f64>) -> Scale {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let air = ((high - low) * 0.12).max(high * 0.005);
    Scale { low: (low - air).max(0.0), high: high + air, start: HEIGHT - BOTTOM, end: TOP }
}
