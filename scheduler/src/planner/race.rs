//! A race of candidates: each is simulated a little, the good ones longer, none twice.

use std::cmp::Ordering;

use super::draws::Draws;
use super::meter::Meter;
use super::run::Prepared;
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
    meter: Meter,
}

/// All candidates of one search.
pub(super) struct Race<'a> {
    setting: &'a Prepared,
    draws: &'a Draws,
    limit: Option<Nanos>,
    pub(super) entrants: Vec<Entrant>,
    spent: f64,
}

impl<'a> Race<'a> {
    pub(super) fn new(setting: &'a Prepared, draws: &'a Draws, limit: Option<Nanos>) -> Self {
        Self { setting, draws, limit, entrants: Vec::new(), spent: 0.0 }
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
        let meter = Meter::new(self.setting, &policy, self.limit.is_some());
        let score = Score { tokens_per_s: 0.0, p99: None };
        self.entrants.push(Entrant { policy, score, meter });
        self.extend(self.entrants.len() - 1, rows);
        self.entrants.len() - 1
    }

    /// Simulates a candidate until `rows` rows have been counted.
    pub(super) fn extend(&mut self, index: usize, rows: u64) {
        let before = self.cost(index);
        let Entrant { policy, score, meter } = &mut self.entrants[index];
        meter.count(self.setting, policy, self.draws, rows);
        score.tokens_per_s = meter.total().tokens_per_s();
        score.p99 = self.limit.and_then(|_| meter.p99());
        self.spent += self.cost(index) - before;
    }

    /// What it costs to simulate `rows` rows of a candidate that has run, in epochs.
    pub(super) fn price(&self, index: usize, rows: u64) -> f64 {
        let (_, done) = self.entrants[index].meter.spent();
        self.cost(index) * rows as f64 / done.max(1) as f64
    }

    /// What a candidate has cost, in epochs.
    fn cost(&self, index: usize) -> f64 {
        let (epochs, rows) = self.entrants[index].meter.spent();
        let per_row = if self.limit.is_some() { TAIL_COST } else { ROW_COST };
        epochs as f64 + per_row * rows as f64
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
