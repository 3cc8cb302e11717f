//! What was measured as panels side by side, in SVG.

use std::fmt::Write as _;

use super::arrivals::Load;
use super::outcome::Row;
use super::predict;
use super::presets::{Preset, Shape};
use super::run::Bench;
use super::sweep::Setting;
use crate::chart::{Scale, axes, colour, frame, mark, page, scale, text};

const HEIGHT: f64 = 470.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 60.0;
/// Width of a panel, and of the room left of it.
const PANEL: f64 = 400.0;
const GAP: f64 = 90.0;
/// Least room of a bar, which has its number on top.
const BAR: f64 = 52.0;
/// Least width of a page.
const TITLE: f64 = 860.0;
/// Room right of the last panel, without names.
const MARGIN: f64 = 30.0;
/// Least room for the names of the series, and what a letter takes (of the names of bars, which are smaller, less).
const NAMES: f64 = 200.0;
const LETTER: f64 = 7.5;
const SMALL_LETTER: f64 = 6.5;

/// One series of points.
struct Series {
    name: String,
    /// With half the confidence interval of y.
    points: Vec<(f64, f64, f64)>,
}

/// One panel.
enum Panel {
    Lines {
        x: &'static str,
        y: &'static str,
        series: Vec<Series>,
    },
    /// A bar per name.
    Bars {
        y: &'static str,
        bars: Vec<(String, f64, f64)>,
    },
}

impl Panel {
    /// Names of its series or bars.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Panel::Lines { series, .. } => Box::new(series.iter().map(|s| s.name.as_str())),
            Panel::Bars { bars, .. } => Box::new(bars.iter().map(|(name, ..)| name.as_str())),
        }
    }

    fn width(&self) -> f64 {
        match self {
            Panel::Lines { .. } => PANEL,
            Panel::Bars { bars, .. } => PANEL.max(BAR * bars.len() as f64),
        }
    }
}

/// The picture as an SVG document.
pub(super) fn plot(bench: &Bench<'_>, preset: Option<&Preset>, shape: Shape) -> String {
    let panels = panels(bench, shape);
    // Names of series stand beside the panels, those of bars below them.
    let longest = |panel: &Panel| panel.names().map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let of = |bars: bool| {
        let chosen = panels.iter().filter(move |panel| matches!(panel, Panel::Bars { .. }) == bars);
        chosen.map(longest).fold(0.0, f64::max)
    };
    let legend = if of(false) > 0.0 { (of(false) * LETTER + 60.0).max(NAMES) } else { MARGIN };
    let width = panels.iter().map(|p| p.width() + GAP).sum::<f64>() + legend;
    // The title must fit too.
    let width = width.max(TITLE);
    let below = (of(true) * SMALL_LETTER - BOTTOM + 30.0).max(0.0);
    let mut out = page(width, HEIGHT + below);
    let title = preset.map_or_else(|| "tokenrouter bench".to_owned(), |p| format!("{}: {}", p.name, p.about));
    text(&mut out, GAP, 28.0, "start", "#111", &title);
    let mut names: Vec<String> = Vec::new();
    let mut left = GAP;
    for panel in &panels {
        match panel {
            Panel::Lines { x, y, series } => lines(&mut out, left, (x, y), series, &mut names),
            Panel::Bars { y, bars } => columns(&mut out, (left, left + panel.width()), y, bars),
        }
        left += panel.width() + GAP;
    }
    let left = left - GAP + 60.0;
    for (index, name) in names.iter().enumerate() {
        let y = TOP + 20.0 * (index as f64 + 0.5);
        mark(&mut out, (left, y - 4.0), index, false);
        text(&mut out, left + 14.0, y, "start", colour(index), name);
    }
    out.push_str("</svg>\n");
    out
}

fn panels(bench: &Bench<'_>, shape: Shape) -> Vec<Panel> {
    let rate = ("tokens_per_s", 1.0);
    let load = |s: &Setting, _: &Row| match s.load {
        Load::Closed(clients) => Some(f64::from(clients)),
        Load::Poisson(rate) => Some(rate),
    };
    let what = match bench.settings.first().map(|s| s.load) {
        Some(Load::Poisson(_)) => "requests per second",
        _ => "clients",
    };
    let speed = |_: &Setting, row: &Row| row.spread("user_tokens_per_s").map(|s| s.mean);
    match shape {
        Shape::Load => vec![
            Panel::Lines { x: what, y: "tokens/s", series: series(bench, &load, rate) },
            Panel::Lines {
                x: what,
                y: "between tokens, p99, ms",
                series: series(bench, &load, ("inter_token_p99_ms", 1.0)),
            },
        ],
        Shape::Tradeoff => vec![
            // The ablation is at one load, that which most settings have.
            Panel::Bars { y: "tokens/s", bars: bars(bench, rate, Some(usual_load(bench))) },
            Panel::Lines { x: "tokens/s of one answer", y: "tokens/s", series: series(bench, &speed, rate) },
        ],
        Shape::Rates => vec![Panel::Bars { y: "tokens/s", bars: bars(bench, rate, None) }],
        Shape::Times | Shape::Breakdown => {
            vec![Panel::Bars { y: "answer time, s", bars: bars(bench, ("end_to_end_mean_ms", 1e-3), None) }]
        }
        Shape::Quality => vec![Panel::Lines {
            x: "tokens/s of one answer",
            y: "right answers, %",
            series: series(bench, &speed, ("right_share", 100.0)),
        }],
        Shape::Thresholds => {
            vec![Panel::Lines { x: "threshold of the large model", y: "tokens/s", series: thresholds(bench) }]
        }
    }
}

/// The load that most settings have.
fn usual_load(bench: &Bench<'_>) -> Load {
    let count = |load: Load| bench.settings.iter().filter(|s| s.load == load).count();
    let most = bench.settings.iter().map(|s| s.load).max_by_key(|load| count(*load));
    most.unwrap_or(Load::Closed(1))
}

/// A series for all settings that differ in the load alone.
fn series(
    bench: &Bench<'_>,
    x: &dyn Fn(&Setting, &Row) -> Option<f64>,
    (measure, factor): (&str, f64),
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let (Some(x), Some(y)) = (x(setting, row), row.spread(measure)) else { continue };
        let mut parts = bench.parts(setting);
        parts.pop();
        parts.retain(|part| !part.is_empty());
        let name = if parts.is_empty() { "measured".to_owned() } else { parts.join(", ") };
        push(&mut all, name, (x, factor * y.mean, factor * y.ci95.unwrap_or(0.0)));
    }
    all
}

/// A series for every number of clients, and what was predicted.
fn thresholds(bench: &Bench<'_>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (setting, row) in bench.settings.iter().zip(&bench.rows) {
        let policy = setting.choice.change.policy.as_deref().unwrap_or("");
        let b = policy.rsplit_once('=').and_then(|(_, b)| b.parse().ok());
        let (Some(b), Some(y)) = (b, row.spread("tokens_per_s")) else { continue };
        push(&mut all, format!("{}, measured", setting.load), (b, y.mean, y.ci95.unwrap_or(0.0)));
        if let Some(predicted) = predict::tokens_per_s(setting, row) {
            push(&mut all, format!("{}, predicted", setting.load), (b, predicted, 0.0));
        }
    }
    all
}

fn push(all: &mut Vec<Series>, name: String, point: (f64, f64, f64)) {
    match all.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => all.push(Series { name, points: vec![point] }),
    }
}

/// A bar for every setting, or for those of one load.
fn bars(bench: &Bench<'_>, (measure, factor): (&str, f64), load: Option<Load>) -> Vec<(String, f64, f64)> {
    let chosen =
        bench.settings.iter().zip(&bench.rows).filter(|(s, _)| load.is_none_or(|load| s.load == load));
    let bar = |(setting, row): (&Setting, &Row)| {
        let y = row.spread(measure)?;
        Some((bench.label(setting), factor * y.mean, factor * y.ci95.unwrap_or(0.0)))
    };
    chosen.filter_map(bar).collect()
}

fn lines(
    out: &mut String,
    left: f64,
    what: (&'static str, &'static str),
    series: &[Series],
    names: &mut Vec<String>,
) {
    let points = || series.iter().flat_map(|s| &s.points);
    if points().next().is_none() {
        return text(out, left, TOP + 20.0, "start", "#111", &format!("{}: nothing was measured", what.1));
    }
    let x = scale(points().map(|p| p.0), (left, left + PANEL));
    let y = scale(points().flat_map(|p| [p.1 - p.2, p.1 + p.2]), (HEIGHT - BOTTOM, TOP));
    axes(out, &x, &y, what);
    for one in series {
        let index = names.iter().position(|name| *name == one.name).unwrap_or_else(|| {
            names.push(one.name.clone());
            names.len() - 1
        });
        let mut points = one.points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1))).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            path.join(" "),
            colour(index)
        );
        for (at, value, half) in points {
            whisker(out, x.at(at), &y, (value - half, value + half), colour(index));
            mark(out, (x.at(at), y.at(value)), index, false);
        }
    }
}

/// The confidence interval, as far as it is in the panel.
fn whisker(out: &mut String, x: f64, y: &Scale, (low, high): (f64, f64), colour: &str) {
    let (low, high) = (y.at(low.max(y.low)), y.at(high.min(y.high)));
    if (low - high).abs() > 1.0 {
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{low:.1}\" x2=\"{x:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>"
        );
    }
}

/// Bars from left to right, their names written upright below them.
fn columns(out: &mut String, (left, right): (f64, f64), what: &str, bars: &[(String, f64, f64)]) {
    if bars.is_empty() {
        return text(out, left, TOP + 20.0, "start", "#111", &format!("{what}: nothing was measured"));
    }
    // A wide interval of few repeats must not make the bars themselves small.
    let most = 2.0 * bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let values = || bars.iter().flat_map(|(_, value, half)| [0.0, (value + half).min(most)]);
    let y = scale(values(), (HEIGHT - BOTTOM, TOP));
    let x = Scale { low: 0.0, high: bars.len() as f64, start: left, end: right };
    frame(out, (left, right), &y, what);
    let slot = (right - left) / bars.len() as f64;
    for (index, (name, value, half)) in bars.iter().enumerate() {
        let at = x.at(index as f64) + 0.15 * slot;
        let (top, base) = (y.at(*value), HEIGHT - BOTTOM);
        let _ = writeln!(
            out,
            "<rect x=\"{at:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.35\"/>",
            0.7 * slot,
            base - top,
            colour(index)
        );
        let middle = at + 0.35 * slot;
        whisker(out, middle, &y, (value - half, value + half), colour(index));
        text(out, middle, top - 6.0, "middle", "#111", &short(*value));
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        let (across, down) = (middle + 4.0, base + 8.0);
        let _ = writeln!(
            out,
            "<text x=\"{across:.1}\" y=\"{down:.1}\" font-size=\"11\" text-anchor=\"end\" fill=\"#111\" \
             transform=\"rotate(-90 {across:.1} {down:.1})\">{name}</text>"
        );
    }
}

/// Three digits that say something, and no more behind the point than they need.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_answer_times_are_not_written_as_nothing() {
        let shown = [0.014, 0.57, 4.2, 36.94, 1911.93].map(short);
        assert_eq!(shown, ["0.014", "0.570", "4.20", "36.9", "1912"]);
    }

    #[test]
    fn names_of_bars_stand_below_them_and_on_the_page() {
        let mut out = String::new();
        columns(
            &mut out,
            (90.0, 490.0),
            "tokens/s",
            &[("a long name".into(), 1.0, 0.0), ("b".into(), 100.0, 0.0)],
        );
        let names: Vec<&str> =
            out.lines().filter(|line| line.contains("rotate(-90") && line.contains("font-size")).collect();
        assert_eq!(names.len(), 2, "{out}");
        let base = HEIGHT - BOTTOM;
        assert!(
            names
                .iter()
                .all(|line| line.contains(&format!("y=\"{:.1}\"", base + 8.0)) && line.contains("\"end\""))
        );
    }
}
