//! Quality against the share of the large model, and against throughput, side by side.

use std::fmt::Write as _;

use super::quality::Quality;
use super::row::Row;
use crate::chart::{COLOURS, Scale, page, text, upright};

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 470.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Left and right edge of each panel.
const PANELS: [(f64, f64); 2] = [(80.0, 470.0), (560.0, 950.0)];
/// Where the names of the routers stand.
const NAMES: f64 = 980.0;

/// The picture as an SVG document.
pub(super) fn plot(rows: &[Row]) -> String {
    let mut out = page(WIDTH, HEIGHT);
    let answers = rows.first().map_or(0, |r| r.answers);
    text(&mut out, PANELS[0].0, 28.0, "start", "#111", &format!("Routing on {answers} problems, greedy"));
    let y = scale(rows.iter().map(|r| 100.0 * r.quality()), (HEIGHT - BOTTOM, TOP));
    let share = |r: &Row| 100.0 * r.large_share;
    panel(&mut out, rows, &y, PANELS[0], (share, "tokens by the large model, %"));
    panel(&mut out, rows, &y, PANELS[1], (Row::tokens_per_s, "tokens/s"));
    for (index, name) in names(rows).into_iter().enumerate() {
        let y = TOP + 20.0 * (index as f64 + 0.5);
        mark(&mut out, (NAMES, y - 4.0), index, rows.iter().filter(|r| r.router == name).count() == 1);
        text(&mut out, NAMES + 14.0, y, "start", colour(index), name);
    }
    out.push_str("</svg>\n");
    out
}

/// The routers in the order of the rows.
fn names(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.router.as_str()) {
            names.push(&row.router);
        }
    }
    names
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn panel(
    out: &mut String,
    rows: &[Row],
    y: &Scale,
    (left, right): (f64, f64),
    (value, what): (impl Fn(&Row) -> f64, &str),
) {
    let x = scale(rows.iter().map(&value), (left, right));
    let agreement = rows.first().is_some_and(|r| r.marks.quality() == Quality::Agreement);
    let measured = if agreement { "agreement with the large model, %" } else { "right answers, %" };
    axes(out, &x, y, (what, measured));
    for (index, name) in names(rows).into_iter().enumerate() {
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|r| r.router == name)
            .map(|r| (x.at(value(r)), y.at(100.0 * r.quality())))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        if points.len() > 1 {
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                path.join(" "),
                colour(index)
            );
        }
        for point in &points {
            mark(out, *point, index, points.len() == 1);
        }
    }
}

/// A point of a sweep is a dot, one that stands alone a square.
fn mark(out: &mut String, (x, y): (f64, f64), index: usize, alone: bool) {
    let colour = colour(index);
    // Writing to a string cannot fail.
    let _ = if alone {
        let (x, y) = (x - 5.0, y - 5.0);
        writeln!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>")
    } else {
        writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>")
    };
}

/// A scale with some air around the values, also when they are all the same.
fn scale(values: impl Iterator<Item = f64>, (start, end): (f64, f64)) -> Scale {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let low = low.min(high);
    let air = ((high - low) * 0.08).max(high * 0.01).max(0.5);
    Scale { low: (low - air).max(0.0), high: high + air, start, end }
}

fn axes(out: &mut String, x: &Scale, y: &Scale, (what, measured): (&str, &str)) {
    let (left, right, base) = (x.start, x.end, HEIGHT - BOTTOM);
    for tick in y.ticks(6.0) {
        let at = y.at(tick);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        );
        text(out, left - 8.0, at + 4.0, "end", "#333", &tick.to_string());
    }
    for tick in x.ticks(6.0) {
        let at = x.at(tick);
        let _ =
            writeln!(out, "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{base}\" stroke=\"#eee\"/>");
        text(out, at, base + 20.0, "middle", "#333", &tick.to_string());
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{left},{TOP} {left},{base} {right},{base}\" fill=\"none\" stroke=\"#333\"/>"
    );
    text(out, f64::midpoint(left, right), HEIGHT - 16.0, "middle", "#111", what);
    upright(out, left - 50.0, f64::midpoint(TOP, base), measured);
}
