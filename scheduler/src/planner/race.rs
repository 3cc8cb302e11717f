//! A race of candidates: each is simulated a little, the good ones longer, none twice.

use std::cmp::Ordering;

use super::draws::Draws;
use super::run::{Prepared, Run, Sums};
use crate::ids::Nanos;
use crate::policy::Policy;

/// Cost of a row beside that of an epoch, without and with the times between tokens (measured).
const ROW_COST: f64 = 0.04;
const TAIL_COST: f64 = 0.25;

/// How good a candidate is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    pub(super) tokens_per_s: f64,
    pub(super) p99: Option<Nanos>,
}

/// One candidate.
pub(super) struct Entrant {
    pub(super) policy: Policy,
    pub(super) score: Score,
    run: Run,
    from: Sums,
    start: u64,
}

/// All candidates of one search.
pub(super) struct Race<'a> {
    setting: &'a Prepared,
    draws: &'a Draws,
    limit: Option<Nanos>,
    /// Rows before counting starts, the same for all.
    warm_up: u64,
    pub(super) entrants: Vec<Entrant>,
    spent: f64,
}

impl<'a> Race<'a> {
    pub(super) fn new(setting: &'a Prepared, draws: &'a Draws, limit: Option<Nanos>, warm_up: u64) -> Self {
        Self { setting, draws, limit, warm_up, entrants: Vec::new(), spent: 0.0 }
    }

    /// What has been simulated so far, in epochs.
    pub(super) fn spent(&self) -> f64 {
        self.spent
    }

    /// Simulates a new candidate for `rows` rows; says its index. One that is known is not run again.
    pub(super) fn enter(&mut self, policy: Policy, rows: u64) -> usize {
        if let Some(known) = self.entrants.iter().position(|e| e.policy == policy) {
            return known;
        }
        let mut run = Run::new(self.setting, &policy, self.limit.is_some());
        run.advance(self.setting, &policy, self.draws, self.warm_up);
        run.start_tail();
        let (from, start) = (run.sums(self.setting), run.done());
        self.spent += self.cost(0, 0, &run);
        let score = Score { tokens_per_s: 0.0, p99: None };
        self.entrants.push(Entrant { policy, score, run, from, start });
        self.extend(self.entrants.len() - 1, rows);
        self.entrants.len() - 1
    }

    /// Simulates a candidate until `rows` rows have been counted.
    pub(super) fn extend(&mut self, index: usize, rows: u64) {
        let entrant = &mut self.entrants[index];
        let (done, epochs) = (entrant.run.done(), entrant.run.epochs());
        if done >= entrant.start + rows {
            return;
        }
        entrant.run.advance(self.setting, &entrant.policy, self.draws, entrant.start + rows);
        let to = entrant.run.sums(self.setting);
        let time = to.time - entrant.from.time;
        let tokens = to.tokens - entrant.from.tokens;
        let p99 = self.limit.and_then(|_| entrant.run.p99());
        entrant.score = Score { tokens_per_s: if time > 0.0 { tokens * 1e9 / time } else { 0.0 }, p99 };
        self.spent += self.cost(done, epochs, &self.entrants[index].run);
    }

    /// What it costs to count `rows` rows of a candidate that has run, in epochs.
    pub(super) fn price(&self, index: usize, rows: u64) -> f64 {
        let run = &self.entrants[index].run;
        self.cost(0, 0, run) * rows as f64 / run.done().max(1) as f64
    }

    fn cost(&self, done: u64, epochs: u64, run: &Run) -> f64 {
        let per_row = if self.limit.is_some() { TAIL_COST } else { ROW_COST };
        (run.epochs() - epochs) as f64 + per_row * (run.done() - done) as f64
    }

    /// Orders candidates, the better one greater: one that keeps the limit before one that does not, then by the rate,
    /// or by the smaller tail where both break it.
    pub(super) fn compare(&self, a: usize, b: usize) -> Ordering {
        let (a, b) = (self.entrants[a].score, self.entrants[b].score);
        let keeps = self.keeps(a);
        let by_tail = if keeps { Ordering::Equal } else { b.p99.cmp(&a.p99) };
        let by_rate = a.tokens_per_s.total_cmp(&b.tokens_per_s);
        keeps.cmp(&self.keeps(b)).then(by_tail).then(by_rate)
    }

    /// Whether candidate `a` is better than `b`.
    pub(super) fn better(&self, a: usize, b: usize) -> bool {
        self.compare(a, b) == Ordering::Greater
    }

    /// Whether a candidate keeps the limit. One that commits nothing has no tail to judge, and no rate either.
    pub(super) fn keeps(&self, score: Score) -> bool {
        match (self.limit, score.p99) {
            (None, _) => true,
            (Some(limit), Some(p99)) => p99 <= limit,
            (Some(_), None) => false,
        }
    }
}
