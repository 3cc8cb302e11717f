//! `query`, query-level routing (RouteLLM, algorithms 7): one model writes the whole answer, chosen at submit.
//!
//! The baseline that token-level routing is measured against. A request for the large model never touches the small
//! one. Two ways to choose: a seeded share of the requests, or a score that comes with the request.

use super::{
    Direction, EntryRow, PURPOSE_QUERY, ReachRow, Router, SignalSet, Source, StepView, Terms, Threshold, draw,
};
use crate::ids::{ModelId, ModelSet};

/// How the large model is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// For this share of the requests, by a draw at (seed, choice). A request's own number replaces the share.
    Share(f32),
    /// When the request's `query_score` is at least the threshold (or not a number). A request without a score is
    /// refused, unless its threshold is a word.
    Score(Threshold),
}

/// One model per request.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    entry: ModelId,
    peer: ModelId,
    choice: Choice,
}

impl Query {
    /// A choice between `entry`, the small model, and `peer`, the large one.
    pub fn new([entry, peer]: [ModelId; 2], choice: Choice) -> Self {
        Self { entry, peer, choice }
    }

    /// Whether the large model writes the answer; `None` without the score that says so.
    fn asks_peer(&self, row: &EntryRow) -> Option<bool> {
        match (self.choice, row.threshold) {
            (_, Some(Threshold::Always)) => Some(true),
            (_, Some(Threshold::Never)) => Some(false),
            (Choice::Share(share), own) => {
                let share = if let Some(Threshold::Value(own)) = own { own } else { share };
                Some(draw(row.seed, row.choice, 0, PURPOSE_QUERY, self.entry) < f64::from(share))
            }
            (Choice::Score(threshold), own) => match own.unwrap_or(threshold) {
                Threshold::Always => Some(true),
                Threshold::Never => Some(false),
                number => row.query_score.map(|score| Direction::AtLeast.asks(score, number)),
            },
        }
    }
}

impl Router for Query {
    fn name(&self) -> &str {
        "query"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        Some(if self.asks_peer(row)? { self.peer } else { self.entry })
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        ModelSet::of(row.model)
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        to.fill(step.model);
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn terms(&self) -> Terms {
        let threshold = match self.choice {
            Choice::Share(share) => Threshold::Value(share),
            Choice::Score(threshold) => threshold,
        };
        Terms { threshold: Some((threshold, Source::Config)), budget: None }
    }
}
