//! `r2r`, `citer` and `co-llm`: a learned head of the entry model says whether the large model writes one token.
//!
//! At every position the entry model's candidate is dropped and the peer writes that token when the head's score and
//! the threshold compare as the algorithm says (algorithms: R2R 2.4 `>=`, CITER 3.2 `<`, Co-LLM 5.2 `>`); control
//! always returns after one token, which is kept. The three differ in nothing else here. A score that is not a number
//! counts as uncertain.

use super::{
    Direction, Gauge, Measure, Payload, ReachRow, RouteRow, Router, SignalSet, Source, StepView, Terms,
    Threshold, Verdict,
};
use crate::ids::{ModelId, ModelSet};

/// What a learned head judges, and so which router reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// R2R: how likely the tokens of the two models diverge.
    R2r,
    /// CITER: how likely the small model is good enough.
    Citer,
    /// Co-LLM: how likely to defer.
    CoLlm,
    /// [`Query`](super::Query): how likely the whole answer needs the large model, from the mean state of the prompt.
    Query,
}

impl HeadKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::R2r, Self::Citer, Self::CoLlm, Self::Query];
    /// Those that judge every token: the ones of [`Scored`].
    pub const OF_TOKENS: [Self; 3] = [Self::R2r, Self::Citer, Self::CoLlm];

    /// The name in configurations and router files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::R2r => "r2r",
            Self::Citer => "citer",
            Self::CoLlm => "co-llm",
            Self::Query => "query",
        }
    }

    /// Which scores ask for the large model.
    pub const fn direction(self) -> Direction {
        match self {
            Self::R2r | Self::Query => Direction::AtLeast,
            Self::Citer => Direction::Below,
            Self::CoLlm => Direction::Above,
        }
    }
}

/// A score against a threshold, and one token by the peer.
#[derive(Clone, Copy, Debug)]
pub struct Scored {
    kind: HeadKind,
    entry: ModelId,
    peer: ModelId,
    head: u8,
    threshold: Threshold,
    source: Source,
}

impl Scored {
    /// A router of this kind (one of [`HeadKind::OF_TOKENS`]) between `entry`, whose head `head` is read, and `peer`.
    /// `Always` lets the peer write everything, `Never` the entry.
    pub fn new(
        kind: HeadKind,
        [entry, peer]: [ModelId; 2],
        head: u8,
        threshold: (Threshold, Source),
    ) -> Self {
        let (threshold, source) = threshold;
        Self { kind, entry, peer, head, threshold, source }
    }

    fn measure(&self) -> Gauge {
        let (measure, direction) = (Measure::Score(self.head), self.kind.direction());
        Gauge { measure, direction, peer_stays: false, once: false }
    }
}

impl Router for Scored {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signals(&self) -> SignalSet {
        SignalSet::score(usize::from(self.head))
    }

    /// The head is the entry model's.
    fn signals_at(&self, model: ModelId) -> SignalSet {
        if model == self.entry { self.signals() } else { SignalSet::NONE }
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let never = row.threshold.unwrap_or(self.threshold) == Threshold::Never;
        if never && row.model == self.entry { ModelSet::of(self.entry) } else { self.reach() }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        let gauge = self.measure();
        for (row, to) in step.rows.iter().zip(to) {
            let asks = step.model == self.entry
                && gauge.direction.asks(gauge.read(&row.signals), row.threshold.unwrap_or(self.threshold));
            *to = if asks { self.peer } else { self.entry };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == self.entry { Verdict::Drop } else { Verdict::Keep }
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        threshold.is_share()
    }

    fn gauge(&self) -> Option<Gauge> {
        Some(self.measure())
    }

    fn terms(&self) -> Terms {
        Terms { threshold: Some((self.threshold, self.source)), budget: None }
    }
}
