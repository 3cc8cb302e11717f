//! The routers of the main job: one model, a fixed share, and entropy in both directions.

use super::{
    PURPOSE_ROUTE, Payload, ReceiveRow, RouteRow, Router, SignalSet, StepView, Threshold, Verdict, Visit,
    draw,
};
use crate::ids::{ModelId, ModelSet};

/// `single`: one model writes everything.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    model: ModelId,
}

impl Single {
    /// A router that stays at `model`.
    pub fn new(model: ModelId) -> Self {
        Self { model }
    }
}

impl Router for Single {
    fn name(&self) -> &str {
        "single"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.model
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.model)
    }

    fn route(&self, _step: &StepView<'_>, to: &mut [ModelId]) {
        to.fill(self.model);
    }
}

/// `fixed`: at a seeded share of the positions the entry model's candidate is dropped and the peer writes that
/// one token; then control returns. The draw at a position depends on (seed, choice, position) alone, so the
/// share does not depend on what the models say. A request's own threshold replaces the share.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    entry: ModelId,
    peer: ModelId,
    fraction: f64,
}

impl Fixed {
    /// A router that lets `peer` write `fraction` (0 to 1) of the positions.
    pub fn new(entry: ModelId, peer: ModelId, fraction: f64) -> Self {
        Self { entry, peer, fraction }
    }

    fn asks_peer(&self, row: &RouteRow) -> bool {
        let fraction = match row.threshold {
            None => self.fraction,
            Some(Threshold::Always) => return true,
            Some(Threshold::Never) => return false,
            Some(Threshold::Value(v)) => f64::from(v),
        };
        draw(row.seed, row.choice, row.position, PURPOSE_ROUTE, self.entry) < fraction
    }
}

impl Router for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let peer_writes_next =
                if step.model == self.entry { self.asks_peer(row) } else { !row.visit.is_last() };
            *to = if peer_writes_next { self.peer } else { self.entry };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == self.entry { Verdict::Drop } else { Verdict::Keep }
    }

    fn receive(&self, row: &ReceiveRow, _from: ModelId, _payload: &Payload, visit: &mut Visit) {
        if row.model == self.peer {
            visit.limit = 1;
        }
    }
}

/// `r-stitch`: the request is where the entropy says, in both directions.
///
/// At the entry model a normalised entropy above the threshold drops the candidate and hands over; at the peer an
/// entropy at or below it keeps the candidate and returns. Dropping on the way back too would show the entry model
/// the same prefix again and livelock under greedy decoding. An entropy that is not a number counts as uncertain.
#[derive(Clone, Copy, Debug)]
pub struct RStitch {
    entry: ModelId,
    peer: ModelId,
    threshold: Threshold,
}

impl RStitch {
    /// The threshold used when none is configured.
    pub const DEFAULT_THRESHOLD: f32 = 0.03;

    /// A router between `entry` and `peer`; `Always` lets the peer write everything, `Never` the entry.
    pub fn new(entry: ModelId, peer: ModelId, threshold: Threshold) -> Self {
        Self { entry, peer, threshold }
    }

    fn is_certain(&self, row: &RouteRow) -> bool {
        match row.threshold.unwrap_or(self.threshold) {
            Threshold::Always => false,
            Threshold::Never => true,
            Threshold::Value(threshold) => row.signals.entropy_norm <= threshold,
        }
    }
}

impl Router for RStitch {
    fn name(&self) -> &str {
        "r-stitch"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::ENTROPY
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::of(self.entry).union(ModelSet::of(self.peer))
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            *to = if self.is_certain(row) { self.entry } else { self.peer };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        if row.model == self.entry { Verdict::Drop } else { Verdict::Keep }
    }
}
