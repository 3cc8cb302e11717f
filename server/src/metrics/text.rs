//! The Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::histogram::Histogram;

/// `Content-Type` of a page.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics. Families are written one after the other, each with its HELP and TYPE.
pub(crate) struct Page {
    out: String,
    /// The label that every sample carries, escaped: `model_name="..."`.
    common: String,
    family: &'static str,
}

impl Page {
    /// An empty page; every sample gets the label `model_name`.
    pub(crate) fn new(model_name: &str) -> Self {
        let mut common = String::new();
        label(&mut common, "model_name", model_name);
        Self { out: String::with_capacity(32 << 10), common, family: "" }
    }

    /// Begins a family of samples that only grow.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "counter", help)
    }

    /// Begins a family of samples that go up and down.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "gauge", help)
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        self.family = name;
        // Writing to a string cannot fail.
        let _ = write!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self
    }

    /// A sample of the family. `value` must print as a decimal number.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.line("", labels, value);
        self
    }

    /// As [`Page::sample`] for a measured value, which may be no number.
    pub(crate) fn float(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.line("", labels, Float(value));
        self
    }

    /// A whole family: one histogram.
    pub(crate) fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram) {
        self.histograms(name, help).one(&[], histogram);
    }

    /// Begins a family of histograms.
    pub(crate) fn histograms(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "histogram", help)
    }

    /// A histogram of the family.
    pub(crate) fn one(&mut self, labels: &[(&str, &str)], histogram: &Histogram) -> &mut Self {
        for (bound, count) in histogram.cumulative() {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let bounded: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line("_bucket", &bounded, count);
        }
        self.line("_sum", labels, Float(histogram.sum()));
        self.line("_count", labels, histogram.count());
        self
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.out, "{}{suffix}{{{}", self.family, self.common);
        for (name, value) in labels {
            self.out.push(',');
            label(&mut self.out, name, value);
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    /// The page.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.out.into_bytes()
    }
}

fn label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A float as the format spells it.
struct Float(f64);

impl Display for Float {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            value => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_samples_and_escapes() {
        let mut page = Page::new("a \"b\"\\\n");
        page.gauge("x:y", "Words.").sample(&[], 3).sample(&[("m", "n\"o")], 4);
        page.counter("z_total", "More.").float(&[], f64::INFINITY).float(&[], 0.25).float(&[], f64::NAN);
        let text = String::from_utf8(page.into_bytes()).unwrap();
        let name = r#"model_name="a \"b\"\\\n""#;
        let lines = [
            "# HELP x:y Words.".to_owned(),
            "# TYPE x:y gauge".into(),
            format!("x:y{{{name}}} 3"),
            format!("x:y{{{name},m=\"n\\\"o\"}} 4"),
            "# HELP z_total More.".into(),
            "# TYPE z_total counter".into(),
            format!("z_total{{{name}}} +Inf"),
            format!("z_total{{{name}}} 0.25"),
            format!("z_total{{{name}}} NaN"),
        ];
        assert_eq!(text, lines.join("\n") + "\n");
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_and_ends_at_infinity() {
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for value in [0.5, 0.75, 7.0] {
            histogram.add(value);
        }
        let mut page = Page::new("m");
        page.histogram("h", "Words.", &histogram);
        page.histograms("i", "More.").one(&[("m", "n")], &Histogram::new(&[]));
        let text = String::from_utf8(page.into_bytes()).unwrap();
        let expected = [
            "# HELP h Words.",
            "# TYPE h histogram",
            "h_bucket{model_name=\"m\",le=\"0.5\"} 1",
            "h_bucket{model_name=\"m\",le=\"1\"} 2",
            "h_bucket{model_name=\"m\",le=\"+Inf\"} 3",
            "h_sum{model_name=\"m\"} 8.25",
            "h_count{model_name=\"m\"} 3",
            "# HELP i More.",
            "# TYPE i histogram",
            "i_bucket{model_name=\"m\",m=\"n\",le=\"+Inf\"} 0",
            "i_sum{model_name=\"m\",m=\"n\"} 0",
            "i_count{model_name=\"m\",m=\"n\"} 0",
        ];
        assert_eq!(text, expected.join("\n") + "\n");
    }
}
