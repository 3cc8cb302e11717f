//! Pieces of a plot in SVG.

use std::fmt::Write as _;

/// Colours that differ on white paper.
pub(crate) const COLOURS: [&str; 8] =
    ["#1f4e9e", "#c4511b", "#2a7f4f", "#7a3f9d", "#8a6d1a", "#4a4a4a", "#0f7f8f", "#b03060"];

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

#[cfg(test)]
mod tests {
    use super::Scale;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale { low: 0.58, high: 0.91, start: 0.0, end: 1.0 };
        assert_eq!(scale.ticks(6.0), [0.6, 0.7, 0.8, 0.9]);
        assert!((scale.at(0.745) - 0.5).abs() < 1e-9);
    }
}
