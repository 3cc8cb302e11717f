//! What came over HTTP, by route template, method and class of status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::histogram::Histogram;

/// Upper bounds of answer times, in seconds.
const SECONDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Classes of status. A 3xx never is.
pub(crate) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// The handlers, each with its method. What is not here is counted under the last one.
pub(crate) const HANDLERS: &[(&str, &str)] = &[
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/chat/completions/render", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/abort_request", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{id}", "GET"),
    ("/v1/scheduling", "GET"),
    ("/v1/status", "GET"),
    ("/health", "GET"),
    ("/ready", "GET"),
    ("/metrics", "GET"),
    ("/version", "GET"),
    ("/ping", "GET"),
    ("/props", "GET"),
    ("/load", "GET"),
    ("/status", "GET"),
    ("/", "GET"),
    ("none", "other"),
];

/// The counts, which every connection shares with the page. One thread uses them: the lock is never waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<HttpCounts>>);

impl Tally {
    /// See [`HttpCounts::add`].
    pub(crate) fn add(&self, handler: &str, method: &str, status: u16, spent: Duration) {
        self.counts().add(handler, method, status, spent);
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, HttpCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts.
#[derive(Debug)]
pub(crate) struct HttpCounts {
    /// By [`HANDLERS`]: answers by [`CLASSES`], and their times.
    counts: Vec<([u64; CLASSES.len()], Histogram)>,
}

impl Default for HttpCounts {
    fn default() -> Self {
        Self { counts: HANDLERS.iter().map(|_| ([0; CLASSES.len()], Histogram::new(SECONDS))).collect() }
    }
}

impl HttpCounts {
    /// A request was answered with this status after so long (a stream: at its end). `handler` is the template of its path
    /// as in [`HANDLERS`], whatever the path was written like; `HEAD` counts as `GET`.
    pub(crate) fn add(&mut self, handler: &str, method: &str, status: u16, spent: Duration) {
        let method = if method == "HEAD" { "GET" } else { method };
        let known = HANDLERS.iter().position(|known| *known == (handler, method));
        let Some((classes, times)) = self.counts.get_mut(known.unwrap_or(HANDLERS.len() - 1)) else { return };
        let class = match status {
            500.. => 2,
            400.. => 1,
            _ => 0,
        };
        classes[class] += 1;
        times.add(spent.as_secs_f64());
    }

    /// Per handler and method the counts by class and the times.
    pub(crate) fn iter(
        &self,
    ) -> impl Iterator<Item = ((&'static str, &'static str), &([u64; CLASSES.len()], Histogram))> {
        HANDLERS.iter().copied().zip(&self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_template_method_and_class() {
        let mut http = HttpCounts::default();
        let second = Duration::from_secs(1);
        for (handler, method, status) in [
            ("/health", "GET", 200),
            ("/health", "HEAD", 503),
            ("/v1/completions", "POST", 200),
            ("/v1/completions", "POST", 429),
            ("/v1/completions", "GET", 405),
            ("/secret", "POST", 404),
        ] {
            http.add(handler, method, status, second);
        }
        let of = |name| {
            let found = http.iter().find(|((handler, _), _)| *handler == name).unwrap().1;
            (found.0, found.1.count(), found.1.sum())
        };
        assert_eq!(of("/health"), ([1, 0, 1], 2, 2.0));
        assert_eq!(of("/v1/completions"), ([1, 1, 0], 2, 2.0));
        assert_eq!(of("none"), ([0, 2, 0], 2, 2.0));
        assert_eq!(of("/"), ([0, 0, 0], 0, 0.0));
    }
}
