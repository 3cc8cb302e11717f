//! What was measured.

use super::histogram::{Histogram, Summary};
use crate::core::Counters;
use crate::ids::{MAX_MODELS, Nanos};
use crate::pilot::PlannerStatus;

/// The measurements after the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Virtual time measured.
    pub elapsed: Nanos,
    /// Virtual time of the whole run.
    pub end: Nanos,
    /// Tokens committed.
    pub tokens: u64,
    /// Requests that came to their own end, a stop string included.
    pub completed: u64,
    /// Requests whose client went away.
    pub vanished: u64,
    /// Of the completed: those that a stop string ended.
    pub stopped: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that were not accepted: the queue was full, or they could never fit.
    pub refused: u64,
    /// From submission to the first token.
    pub first_token: Summary,
    /// From one token of a request to its next, whatever happened in between.
    pub inter_token: Summary,
    /// From submission to the end, of completed requests.
    pub end_to_end: Summary,
    /// From submission to admission.
    pub admission: Summary,
    /// Per model.
    pub models: Vec<ModelReport>,
    /// Per route.
    pub routes: Vec<RouteReport>,
    /// Moves between models.
    pub handoffs: u64,
    /// Requests that lost their pages.
    pub preemptions: u64,
    /// Tokens of prompts, of the requests that ended.
    pub prompt_tokens: u64,
    /// Launches that only the guard made, warm-up included.
    pub guard_launches: u64,
    /// The estimates, and the online planner if there is one, at the end.
    pub planner: PlannerStatus,
}

/// One model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelReport {
    /// Share of the time in which a step was in progress.
    pub utilisation: f64,
    /// Steps.
    pub launches: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Rows of these steps.
    pub rows: u64,
    /// Tokens fed.
    pub fed: u64,
    /// Rows that were cut by the token limit.
    pub cut_rows: u64,
    /// Steps by their rows; entry 0 is for steps of one row.
    pub batches: Vec<u64>,
    /// Time in the queue before a launch.
    pub wait: Summary,
    /// Tokens committed.
    pub committed: u64,
    /// Candidates dropped, of the requests that ended.
    pub discarded: u64,
    /// Tokens of prompts found in the cache, of the requests that ended.
    pub cached: u64,
    /// Requests that failed by a step or a row of this model.
    pub failed: u64,
}

/// One route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteReport {
    /// Requests that came to their own end.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens committed.
    pub tokens: u64,
}

impl Report {
    /// Tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.per_s(self.tokens)
    }

    /// Completed requests per second.
    pub fn requests_per_s(&self) -> f64 {
        self.per_s(self.completed)
    }

    /// Share of the tokens of prompts that a model found in its cache, over all models that a prompt was fed to.
    pub fn cached_share(&self) -> f64 {
        let cached: u64 = self.models.iter().map(|m| m.cached).sum();
        cached as f64 / self.prompt_tokens.max(1) as f64
    }

    fn per_s(&self, count: u64) -> f64 {
        if self.elapsed == 0 { 0.0 } else { count as f64 * 1e9 / self.elapsed as f64 }
    }
}

impl ModelReport {
    /// Mean rows of a step.
    pub fn mean_batch(&self) -> f64 {
        self.rows as f64 / self.launches.max(1) as f64
    }
}

/// The instruments. Everything that is added before [`Meter::begin`] is thrown away there.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) report: Report,
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) end_to_end: Histogram,
    pub(super) admission: Histogram,
    pub(super) waits: [Histogram; MAX_MODELS],
    busy: [Nanos; MAX_MODELS],
    began: Nanos,
    before: Counters,
}

impl Meter {
    /// The warm-up is over.
    pub(super) fn begin(now: Nanos, models: usize, routes: usize, before: Counters) -> Self {
        let mut meter = Self { began: now, before, ..Self::default() };
        meter.report.models = vec![ModelReport::default(); models];
        meter.report.routes = vec![RouteReport::default(); routes];
        meter
    }

    /// A step took place.
    pub(super) fn busy(&mut self, model: usize, from: Nanos, to: Nanos) {
        self.busy[model] += to - from.max(self.began).min(to);
    }

    /// A step of `rows` starts that feeds `fed` tokens and cuts `cut` rows.
    pub(super) fn step(&mut self, model: usize, rows: usize, fed: usize, cut: u64) {
        let report = &mut self.report.models[model];
        report.launches += 1;
        report.rows += rows as u64;
        report.fed += fed as u64;
        report.cut_rows += cut;
        if report.batches.len() < rows {
            report.batches.resize(rows, 0);
        }
        report.batches[rows - 1] += 1;
    }

    /// Reads the instruments.
    pub(super) fn end(mut self, now: Nanos, counters: &Counters) -> Report {
        let report = &mut self.report;
        report.elapsed = now - self.began;
        report.end = now;
        report.first_token = self.first_token.summary();
        report.inter_token = self.inter_token.summary();
        report.end_to_end = self.end_to_end.summary();
        report.admission = self.admission.summary();
        for (i, model) in report.models.iter_mut().enumerate() {
            model.utilisation = self.busy[i] as f64 / report.elapsed.max(1) as f64;
            model.wait = self.waits[i].summary();
        }
        let moves = |c: &Counters| c.handoffs.iter().flatten().sum::<u64>();
        report.handoffs = moves(counters) - moves(&self.before);
        report.preemptions = counters.preemptions - self.before.preemptions;
        report.guard_launches = counters.guard_launches;
        self.report
    }
}
