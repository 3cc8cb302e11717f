//! Quality against the share of the large model, and against throughput, side by side.

use std::fmt::Write as _;

use super::quality::Quality;
use super::row::Row;
use crate::chart::{Scale, axes, colour, mark, page, scale, text};

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
