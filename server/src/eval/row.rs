//! One measured point.

use tokenrouter_engine::EngineInfo;
use tokenrouter_scheduler::Threshold;

use super::drive::{Answer, Batch};
use super::quality::Marks;
use super::runs::Run;

/// What a run came to.
pub(super) struct Row {
    /// `small`, `large`, or the router's name.
    pub(super) router: String,
    /// The served name.
    pub(super) route: String,
    /// The threshold, share or weight.
    pub(super) threshold: Option<Threshold>,
    pub(super) answers: usize,
    pub(super) marks: Marks,
    /// Share of the tokens by each model.
    pub(super) shares: Vec<f64>,
    /// Share of the tokens not by the first model.
    pub(super) large_share: f64,
    pub(super) handoffs_per_answer: f64,
    /// Candidates that the router dropped, per answer.
    pub(super) dropped_per_answer: f64,
    pub(super) tokens: u64,
    /// From the first submission to the last end.
    pub(super) seconds: f64,
    /// Processor time of all threads in that time, where it is known.
    pub(super) cpu_seconds: Option<f64>,
    /// Mean over the answers, from submission to end.
    pub(super) seconds_per_answer: f64,
    /// How much of the way from the small model's quality to the large one's it goes; none without both.
    pub(super) gap_recovered: Option<f64>,
}

impl Row {
    pub(super) fn new(
        run: &Run,
        info: &EngineInfo,
        batch: &Batch,
        marks: Marks,
        cpu_seconds: Option<f64>,
    ) -> Self {
        let committed = committed(&batch.answers, info.models.len());
        let tokens: u64 = committed.iter().sum();
        let count = batch.answers.len().max(1) as f64;
        let per_answer =
            |of: fn(&Answer) -> u32| batch.answers.iter().map(|a| f64::from(of(a))).sum::<f64>() / count;
        Row {
            router: run.router.clone(),
            route: info.routes.get(usize::from(run.route.0)).map_or_else(String::new, |r| r.name.clone()),
            threshold: run.shown,
            answers: batch.answers.len(),
            marks,
            shares: committed.iter().map(|n| *n as f64 / tokens.max(1) as f64).collect(),
            large_share: large_share(&batch.answers, info.models.len()),
            handoffs_per_answer: per_answer(|a| a.usage.handoffs),
            dropped_per_answer: per_answer(|a| a.usage.discarded.iter().sum()),
            tokens,
            seconds: batch.seconds,
            cpu_seconds,
            seconds_per_answer: batch.answers.iter().map(|a| a.seconds).sum::<f64>() / count,
            gap_recovered: None,
        }
    }

    /// The mean over the answers: accuracy or agreement, whichever was measured.
    pub(super) fn quality(&self) -> f64 {
        self.marks.mean()
    }

    pub(super) fn tokens_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }
}

fn committed(answers: &[Answer], models: usize) -> Vec<u64> {
    (0..models).map(|m| answers.iter().map(|a| u64::from(a.usage.committed[m])).sum()).collect()
}

/// The share of all tokens that models beside the first wrote.
pub(crate) fn large_share(answers: &[Answer], models: usize) -> f64 {
    let committed = committed(answers, models);
    let others: u64 = committed.iter().skip(1).sum();
    others as f64 / committed.iter().sum::<u64>().max(1) as f64
}

/// Fills in how much of the gap between the models each row recovers.
pub(super) fn fill_gap(rows: &mut [Row]) {
    let alone = |name: &str| rows.iter().find(|r| r.router == name).map(Row::quality);
    let (Some(small), Some(large)) = (alone("small"), alone("large")) else { return };
    if large > small {
        for row in rows {
            row.gap_recovered = Some((row.quality() - small) / (large - small));
        }
    }
}
