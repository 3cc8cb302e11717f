//! What one repeat of a setting came to, and what all of them did.

use std::time::Duration;

use serde_json::Value;
use tokenrouter_scheduler::sim::serving::{Histogram, Summary};

use super::drive::{Cut, Window};
use super::http::Fault;
use super::machine::Used;
use super::scrape::ServerSide;
use super::stats::Spread;

/// One repeat.
#[derive(Debug)]
pub(super) struct Repeat {
    pub(super) window: Window,
    /// What our server counted in that time.
    pub(super) server: Option<ServerSide>,
    pub(super) used: Used,
    /// Share of the machine's processors that others had, as far as that can be known.
    pub(super) foreign: Option<f64>,
    /// Others had more than the user allows.
    pub(super) discarded: bool,
}

impl Repeat {
    /// Tokens per second.
    pub(super) fn tokens_per_s(&self) -> f64 {
        self.window.tokens as f64 / self.window.seconds
    }

    /// Processor seconds of the server: by its process, or by its own count.
    pub(super) fn server_cpu(&self) -> Option<f64> {
        self.used.server.or(self.server.as_ref().and_then(|s| s.cpu_seconds))
    }

    /// Processor milliseconds of the server per token.
    fn cpu_ms_per_token(&self) -> Option<f64> {
        (self.window.tokens > 0).then_some(())?;
        Some(1e3 * self.server_cpu()? / self.window.tokens as f64)
    }

    /// Tokens per second of one answer, from question to end, in the mean of the answers.
    fn user_tokens_per_s(&self) -> Option<f64> {
        let answers = &self.window.answers;
        let speed = |d: &super::drive::Done| f64::from(d.answer.tokens) / d.time.as_secs_f64().max(1e-9);
        (!answers.is_empty()).then(|| answers.iter().map(speed).sum::<f64>() / answers.len() as f64)
    }

    /// Share of right answers; none where none is known to be right or wrong.
    fn right(&self) -> Option<f64> {
        let marks: Vec<bool> = self.window.answers.iter().filter_map(|d| d.right).collect();
        (!marks.is_empty()).then(|| marks.iter().filter(|m| **m).count() as f64 / marks.len() as f64)
    }
}

/// A measure with a name, in the order of the JSON.
type Measure = (&'static str, fn(&Repeat) -> Option<f64>);

/// What is told with a confidence interval.
const MEASURES: [Measure; 21] = [
    ("tokens_per_s", |r| Some(r.tokens_per_s())),
    ("requests_per_s", |r| Some(r.window.answers.len() as f64 / r.window.seconds)),
    ("user_tokens_per_s", Repeat::user_tokens_per_s),
    ("first_token_p50_ms", |r| of(&r.window.first, |s| s.p50)),
    ("first_token_p90_ms", |r| of(&r.window.first, |s| s.p90)),
    ("first_token_p99_ms", |r| of(&r.window.first, |s| s.p99)),
    ("inter_token_mean_ms", |r| of(&r.window.between, |s| s.mean)),
    ("inter_token_p50_ms", |r| of(&r.window.between, |s| s.p50)),
    ("inter_token_p90_ms", |r| of(&r.window.between, |s| s.p90)),
    ("inter_token_p95_ms", |r| of(&r.window.between, |s| s.p95)),
    ("inter_token_p99_ms", |r| of(&r.window.between, |s| s.p99)),
    ("end_to_end_mean_ms", |r| of(&times(r), |s| s.mean)),
    ("end_to_end_p50_ms", |r| of(&times(r), |s| s.p50)),
    ("end_to_end_p99_ms", |r| of(&times(r), |s| s.p99)),
    ("wait_mean_ms", |r| Some(1e3 * r.server.as_ref()?.wait().mean()?)),
    ("large_share", |r| r.server.as_ref()?.large_share()),
    ("cpu_ms_per_token", Repeat::cpu_ms_per_token),
    ("client_cpu_ms_per_token", |r| Some(1e3 * r.used.own? / (r.window.tokens as f64).max(1.0))),
    ("foreign_cpu_share", |r| r.foreign),
    ("handoffs_per_token", |r| Some(r.server.as_ref()?.handoffs() / (r.window.tokens as f64).max(1.0))),
    ("right_share", Repeat::right),
];

fn times(repeat: &Repeat) -> Vec<Duration> {
    repeat.window.answers.iter().map(|d| d.time).collect()
}

fn of(durations: &[Duration], measure: fn(Summary) -> f64) -> Option<f64> {
    (!durations.is_empty()).then(|| measure(summary(durations.iter())) / 1e6)
}

/// Durations in short, by the simulator's histogram.
pub(super) fn summary<'a>(durations: impl Iterator<Item = &'a Duration>) -> Summary {
    let mut histogram = Histogram::default();
    durations.for_each(|d| histogram.add(d.as_nanos().min(u128::from(u64::MAX)) as u64));
    histogram.summary()
}

/// All repeats of a setting.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) repeats: Vec<Repeat>,
}

impl Row {
    /// The repeats that count: those that are neither discarded nor cut; where there are none, all that measured something.
    pub(super) fn kept(&self) -> Vec<&Repeat> {
        let whole = |r: &&Repeat| !r.discarded && r.window.cut.is_none();
        let kept: Vec<&Repeat> = self.repeats.iter().filter(whole).collect();
        let any = |r: &&Repeat| r.window.seconds > 0.0;
        if kept.is_empty() { self.repeats.iter().filter(any).collect() } else { kept }
    }

    /// How many repeats were discarded.
    pub(super) fn discarded(&self) -> usize {
        self.repeats.iter().filter(|r| r.discarded).count()
    }

    /// How many ended before their limit.
    pub(super) fn cut(&self) -> usize {
        self.repeats.iter().filter(|r| r.window.cut.is_some()).count()
    }

    /// Whether the row rests on repeats that should not count.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.repeats.is_empty() && !self.repeats.iter().any(|r| !r.discarded && r.window.cut.is_none())
    }

    /// One measure; none where no repeat has it.
    pub(super) fn spread(&self, name: &str) -> Option<Spread> {
        let (_, measure) = MEASURES.iter().find(|(known, _)| *known == name)?;
        Spread::of(self.kept().into_iter().filter_map(measure))
    }

    /// Every measure that is there.
    pub(super) fn spreads(&self) -> serde_json::Map<String, Value> {
        let found =
            MEASURES.iter().filter_map(|(name, _)| Some(((*name).to_owned(), self.spread(name)?.json())));
        found.collect()
    }

    /// Rows of a step of each model: over all repeats that count.
    pub(super) fn batches(&self) -> Vec<f64> {
        let sides: Vec<&ServerSide> = self.kept().into_iter().filter_map(|r| r.server.as_ref()).collect();
        let models = sides.first().map_or(0, |s| s.models.len());
        let sum = |m: usize, of: fn(&super::scrape::ModelSide) -> f64| -> f64 {
            sides.iter().filter_map(|s| s.models.get(m)).map(of).sum()
        };
        (0..models).map(|m| sum(m, |s| s.rows) / sum(m, |s| s.launches).max(1.0)).collect()
    }

    /// Durations of all repeats that count.
    pub(super) fn pooled(&self, of: fn(&Window) -> &[Duration]) -> Summary {
        summary(self.kept().into_iter().flat_map(|r| of(&r.window)))
    }

    /// Times of whole answers of all repeats that count.
    pub(super) fn answer_times(&self) -> Summary {
        let times: Vec<Duration> = self.kept().into_iter().flat_map(times).collect();
        summary(times.iter())
    }

    /// Faults of all repeats by kind, with how often and the first in words.
    pub(super) fn faults(&self) -> Vec<(String, u64, String)> {
        let mut kinds: Vec<(String, u64, String)> = Vec::new();
        for fault in self.repeats.iter().flat_map(|r| &r.window.faults) {
            let kind = match fault {
                Fault::Connect(_) => "connect".to_owned(),
                Fault::Status(code, _) => format!("status {code}"),
                Fault::Broken(_) => "broken".to_owned(),
                Fault::Silent(_) => "timeout".to_owned(),
                Fault::Stopped => continue,
            };
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((_, count, _)) => *count += 1,
                None => kinds.push((kind, 1, fault.to_string())),
            }
        }
        kinds
    }

    /// Why a repeat ended early, in words.
    pub(super) fn cuts(&self) -> Vec<String> {
        let words = |cut: &Cut| match cut {
            Cut::Interrupted => "interrupted".to_owned(),
            Cut::Failing(why) => format!("every request failed: {why}"),
            Cut::Dead => "the server ended".to_owned(),
        };
        self.repeats.iter().filter_map(|r| r.window.cut.as_ref().map(words)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ask::Answer;
    use crate::bench::drive::Done;

    fn repeat(tokens: u64, discarded: bool, cut: Option<Cut>) -> Repeat {
        let answer = Answer { tokens: 20, ..Answer::default() };
        let done = |right| Done { answer: answer.clone(), time: Duration::from_secs(2), right };
        let window = Window {
            seconds: 2.0,
            tokens,
            answers: vec![done(Some(true)), done(Some(false)), done(None)],
            between: vec![Duration::from_millis(5); 4],
            faults: vec![Fault::Status(429, "full".into()), Fault::Stopped],
            cut,
            ..Window::default()
        };
        let side = ServerSide { cpu_seconds: Some(1.0), ..ServerSide::default() };
        Repeat { window, server: Some(side), used: Used::default(), foreign: None, discarded }
    }

    #[test]
    fn what_was_disturbed_or_cut_does_not_count_while_there_is_better() {
        let mut row =
            Row { repeats: vec![repeat(100, false, None), repeat(10, true, None), repeat(300, false, None)] };
        row.repeats.push(repeat(7, false, Some(Cut::Interrupted)));
        let speed = row.spread("tokens_per_s").expect("two count");
        assert_eq!((speed.repeats, speed.mean, speed.median), (2, 100.0, 100.0));
        assert_eq!((row.discarded(), row.cut(), row.is_doubtful()), (1, 1, false));
        assert_eq!(row.spread("user_tokens_per_s").map(|s| s.mean), Some(10.0));
        assert_eq!(row.spread("right_share").map(|s| s.mean), Some(0.5));
        assert_eq!(row.spread("cpu_ms_per_token").map(|s| s.high), Some(10.0));
        assert_eq!((row.spread("foreign_cpu_share"), row.spread("nonsense")), (None, None));
        assert_eq!(row.faults(), [("status 429".to_owned(), 4, "status 429: full".to_owned())]);
        let all_disturbed = Row { repeats: vec![repeat(10, true, None)] };
        assert!(all_disturbed.is_doubtful() && all_disturbed.spread("tokens_per_s").is_some());
        assert!((row.pooled(|w| &w.between).p50 / 1e6 - 5.0).abs() < 0.03);
    }
}
