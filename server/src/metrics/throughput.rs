//! The throughput line: every few seconds while there is work, one log line per model.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokenrouter_engine::{EngineState, EngineStatus};

/// What was read of a model last.
#[derive(Clone, Copy, Default)]
struct Last {
    steps: u64,
    committed: u64,
    prompted: u64,
    cached: u64,
}

/// The line of one model.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    model: String,
    running: u64,
    waiting: u64,
    pending: u64,
    tokens_per_s: f64,
    /// Share of the prompts of ended requests that was found in the model's cache; none when none ended.
    hit_rate: Option<f64>,
}

/// Watches an engine.
pub(crate) struct Throughput {
    names: Vec<String>,
    last: Vec<Last>,
}

impl Throughput {
    /// Logs from a thread of its own until the engine is gone; it holds nothing alive.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(crate) fn start(
        status: &Arc<EngineStatus>,
        names: Vec<String>,
        every: Duration,
    ) -> std::io::Result<()> {
        let status: Weak<EngineStatus> = Arc::downgrade(status);
        let mut this = Self::new(names);
        let work = move || {
            let mut before = Instant::now();
            loop {
                std::thread::park_timeout(every);
                let Some(status) = status.upgrade().filter(|s| s.state() != EngineState::Stopped) else {
                    return;
                };
                let spent = before.elapsed();
                // A wait may end early.
                if spent >= every {
                    before = Instant::now();
                    this.log(&status, spent);
                }
            }
        };
        std::thread::Builder::new().name("throughput".into()).spawn(work).map(drop)
    }

    fn new(names: Vec<String>) -> Self {
        let last = vec![Last::default(); names.len()];
        Self { names, last }
    }

    fn log(&mut self, status: &EngineStatus, spent: Duration) {
        let lines = self.lines(status, spent);
        if lines.is_empty() {
            return;
        }
        let (free, total) = (status.pages_free.load(Relaxed), status.pages_total.load(Relaxed));
        let kv = format!("{:.1}%", total.saturating_sub(free) as f64 * 100.0 / total.max(1) as f64);
        let not_admitted = status.waiting.load(Relaxed);
        for Line { model, running, waiting, pending, tokens_per_s, hit_rate } in lines {
            let tokens_per_s = format!("{tokens_per_s:.1}");
            let hit_rate = hit_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0));
            tracing::info!(
                model,
                running,
                waiting,
                pending,
                not_admitted,
                kv,
                tokens_per_s,
                hit_rate,
                "throughput"
            );
        }
    }

    /// One line per model, or none when nothing has happened and nothing is to be done.
    fn lines(&mut self, status: &EngineStatus, spent: Duration) -> Vec<Line> {
        let get = |value: &AtomicU64| value.load(Relaxed);
        let mut busy = get(&status.waiting) + get(&status.running) > 0;
        let mut lines = Vec::with_capacity(self.names.len());
        for ((name, last), model) in self.names.iter().zip(&mut self.last).zip(&status.models) {
            let now = Last {
                steps: get(&model.steps),
                committed: get(&model.committed),
                prompted: get(&model.prompted),
                cached: get(&model.cached),
            };
            busy |= now.steps > last.steps;
            let (prompted, cached) = (now.prompted - last.prompted, now.cached - last.cached);
            lines.push(Line {
                model: name.clone(),
                running: get(&model.running),
                waiting: get(&model.ready),
                pending: get(&model.pending),
                tokens_per_s: (now.committed - last.committed) as f64 / spent.as_secs_f64().max(1e-9),
                hit_rate: (prompted > 0).then(|| cached as f64 / prompted as f64),
            });
            *last = now;
        }
        if busy { lines } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_since_the_last_line_and_an_idle_engine_is_silent() {
        let status = EngineStatus::default();
        let mut watch = Throughput::new(vec!["small".into(), "large".into()]);
        let two = Duration::from_secs(2);
        assert_eq!(watch.lines(&status, two), []);
        let small = &status.models[0];
        for value in [&small.steps, &small.committed, &small.prompted] {
            value.store(10, Relaxed);
        }
        small.cached.store(4, Relaxed);
        small.pending.store(3, Relaxed);
        let lines = watch.lines(&status, two);
        let expected = Line {
            model: "small".into(),
            running: 0,
            waiting: 0,
            pending: 3,
            tokens_per_s: 5.0,
            hit_rate: Some(0.4),
        };
        assert_eq!((lines.len(), &lines[0]), (2, &expected));
        assert_eq!((lines[1].tokens_per_s, lines[1].hit_rate), (0.0, None));
        assert_eq!(watch.lines(&status, two), [], "nothing has happened since");
        status.running.store(1, Relaxed);
        let lines = watch.lines(&status, two);
        assert_eq!((lines[0].tokens_per_s, lines[0].hit_rate), (0.0, None), "a stall shows");
    }
}
