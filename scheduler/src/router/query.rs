//! `query`, query-level routing (RouteLLM, algorithms 7): one model writes the whole answer.
//!
//! The baseline that token-level routing is measured against. Three ways to choose. Two at submit: a seeded share of the
//! requests, or a score that comes with the request; a request for the large model then never touches the small one. The
//! third reads the prompt: the small model runs it, a head scores its mean hidden state ([`HeadKind::Query`]), and either
//! the small model goes on, or its one candidate is dropped and the large model writes everything.

use super::{
    Direction, EntryRow, Gauge, HeadKind, Measure, PURPOSE_QUERY, Payload, ReachRow, RouteRow, Router,
    SignalSet, Source, StepView, Terms, Threshold, Verdict, draw,
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
    /// When a head of the entry model scores the prompt at least this high (or not as a number). `Always` starts at the
    /// large model at once.
    Head {
        /// The head's index.
        head: u8,
        /// The standing threshold.
        threshold: Threshold,
        /// Where it came from.
        source: Source,
    },
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

    /// Whether the large model starts the answer; `None` without the score that says so.
    fn starts_at_peer(&self, row: &EntryRow) -> Option<bool> {
        let standing = match self.choice {
            Choice::Score(threshold) | Choice::Head { threshold, .. } => threshold,
            Choice::Share(share) => Threshold::Value(share),
        };
        let number = match row.threshold.unwrap_or(standing) {
            Threshold::Always => return Some(true),
            Threshold::Never => return Some(false),
            Threshold::Value(number) => number,
        };
        match self.choice {
            Choice::Share(_) => {
                Some(draw(row.seed, row.choice, 0, PURPOSE_QUERY, self.entry) < f64::from(number))
            }
            Choice::Score(_) => {
                row.query_score.map(|score| Direction::AtLeast.asks(score, Threshold::Value(number)))
            }
            Choice::Head { .. } => Some(false),
        }
    }

    /// Whether the head sends the request on: only ever after the step that has read the whole prompt.
    fn moves(&self, row: &RouteRow) -> bool {
        let Choice::Head { head, threshold, .. } = self.choice else { return false };
        let gauge = Self::gauge_of(head);
        row.model == self.entry
            && gauge.compares(row.generated)
            && gauge.direction.asks(gauge.read(&row.signals), row.threshold.unwrap_or(threshold))
    }

    fn gauge_of(head: u8) -> Gauge {
        let direction = HeadKind::Query.direction();
        Gauge { measure: Measure::Score(head), direction, peer_stays: false, once: true }
    }
}

impl Router for Query {
    fn name(&self) -> &str {
        "query"
    }

    fn signals(&self) -> SignalSet {
        match self.choice {
            Choice::Head { head, .. } => SignalSet::score(usize::from(head)),
            _ => SignalSet::NONE,
        }
    }

    /// The head is the entry model's.
    fn signals_at(&self, model: ModelId) -> SignalSet {
        if model == self.entry { self.signals() } else { SignalSet::NONE }
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        Some(if self.starts_at_peer(row)? { self.peer } else { self.entry })
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    /// The other model only before the head has spoken, when neither a word nor a budget has answered for it: a share
    /// below 1 forbids the first token, and there is no later one to move at.
    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let Choice::Head { threshold, .. } = self.choice else { return ModelSet::of(row.model) };
        let waits = row.model == self.entry && row.generated == 0;
        let never = row.threshold.unwrap_or(threshold) == Threshold::Never;
        let barred = row.budget.is_some_and(|budget| !budget.allows(0, 0));
        if waits && !never && !barred { self.reach() } else { ModelSet::of(row.model) }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            *to = if self.moves(row) { self.peer } else { step.model };
        }
    }

    fn send(&self, _row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        Verdict::Drop
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn gauge(&self) -> Option<Gauge> {
        match self.choice {
            Choice::Head { head, .. } => Some(Self::gauge_of(head)),
            _ => None,
        }
    }

    fn terms(&self) -> Terms {
        let threshold = match self.choice {
            Choice::Share(share) => (Threshold::Value(share), Source::Config),
            Choice::Score(threshold) => (threshold, Source::Config),
            Choice::Head { threshold, source, .. } => (threshold, source),
        };
        Terms { threshold: Some(threshold), budget: None }
    }
}
