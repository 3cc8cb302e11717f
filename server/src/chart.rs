//! Pieces of a plot in SVG.

use std::fmt::Write as _;

/// Colours that differ on white paper.
pub(crate) const COLOURS: [&str; 12] = [
    "#1f4e9e", "#c4511b", "#2a7f4f", "#7a3f9d", "#8a6d1a", "#4a4a4a", "#0f7f8f", "#b03060", "#6a9fe0",
    "#e0a060", "#7cc08a", "#c090d8",
];

/// Where a value lies on the page.
pub(crate) struct Scale {
    /// The value at `start`.
    pub(crate) low: f64,
    /// The value at `end`.
    pub(crate) high: f64,
    /// A coordinate.
    pub(crate) start: f64,
    /// A coordinate.
    pub(crate) end: f64,
}

impl Scale {
    /// The coordinate of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
    }

    /// Round values inside the scale, about `count` of them.
    pub(crate) fn ticks(&self, count: f64) -> Vec<f64> {
        let step = round_step((self.high - self.low) / count);
        let first = (self.low / step).ceil();
        let last = (self.high / step).floor();
        (0..=(last - first).max(0.0) as usize).map(|i| tidy((first + i as f64) * step)).collect()
    }
}

/// The next of 1, 2, 5 times a power of ten.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(rough)
}

/// Without the last digits that a product of two floats leaves.
pub(crate) fn tidy(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

/// The first lines of a document with a white page.
pub(crate) fn page(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}

/// A line of text; `anchor` is `start`, `middle` or `end`.
pub(crate) fn text(out: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{content}</text>"
    );
}

/// A line of text from below to above.
pub(crate) fn upright(out: &mut String, x: f64, y: f64, content: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#111\" \
         transform=\"rotate(-90 {x} {y})\">{content}</text>"
    );
}

/// The colour of the series of this number.
pub(crate) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A point of a sweep is a dot, one that stands alone a square.
pub(crate) fn mark(out: &mut String, (x, y): (f64, f64), index: usize, alone: bool) {
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
pub(crate) fn scale(values: impl Iterator<Item = f64>, (start, end): (f64, f64)) -> Scale {
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    let low = low.min(high);
    // Of values that are all nothing, the scale is still one.
    let least = if high > 0.0 { high * 0.01 } else { 0.5 };
    let air = ((high - low) * 0.08).max(least);
    Scale { low: (low - air).max(0.0), high: high + air, start, end }
}

/// The frame of a panel from `left` to `right`, with the vertical axis, its grid lines and what it stands for.
pub(crate) fn frame(out: &mut String, (left, right): (f64, f64), y: &Scale, measured: &str) {
    let (base, top) = (y.start, y.end);
    for tick in y.ticks(6.0) {
        let at = y.at(tick);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        );
        text(out, left - 8.0, at + 4.0, "end", "#333", &tick.to_string());
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{left},{top} {left},{base} {right},{base}\" fill=\"none\" stroke=\"#333\"/>"
    );
    upright(out, left - 50.0, f64::midpoint(top, base), measured);
}

/// The frame with both axes, and what they stand for.
pub(crate) fn axes(out: &mut String, x: &Scale, y: &Scale, (what, measured): (&str, &str)) {
    let (left, right, base, top) = (x.start, x.end, y.start, y.end);
    for tick in x.ticks(6.0) {
        let at = x.at(tick);
        let _ =
            writeln!(out, "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{base}\" stroke=\"#eee\"/>");
        text(out, at, base + 20.0, "middle", "#333", &tick.to_string());
    }
    frame(out, (left, right), y, measured);
    text(out, f64::midpoint(left, right), base + 44.0, "middle", "#111", what);
}

#[cfg(test)]
mod tests {
    use super::Scale;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale { low: 0.58, high: 0.91, start: 0.0, end: 1.0 };
        assert_eq!(scale.ticks(6.0), [0.6, 0.7, 0.8, 0.9]);
        assert!((scale.at(0.745) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_scale_of_small_values_is_not_made_of_air() {
        let of = |values: [f64; 2]| super::scale(values.into_iter(), (0.0, 1.0));
        assert!(of([0.0, 0.06]).high < 0.07);
        assert!(of([0.0, 0.0]).high > 0.0);
    }
}
