//! Routers: per token, which model writes on.
//!
//! A router is a value behind [`Router`]. After every step the core asks it, row by row in one call, where each
//! request goes ([`Router::route`]). For a row that leaves, [`Router::send`] says whether the sender's candidate
//! is kept or dropped and may write a [`Payload`]; [`Router::receive`] reads it at the peer and sets up the
//! [`Visit`]. All three must be deterministic functions of their arguments and must not allocate; rows of one
//! batch are unrelated requests and may come in any order and any grouping. [`crate::conformance`] checks this.
//!
//! The core does the rest, always in this order: route; if the row leaves, send; if the candidate is not dropped,
//! commit it and check whether it ends the request (then nobody receives anything); else hand over and receive.

mod budgeted;
mod builtin;
mod calibrate;
mod direction;
mod draw;
mod factories;
mod mixture;
mod params;
mod query;
mod registry;
mod scored;
mod suggest;
mod terms;
mod threshold;

pub use budgeted::{Budgeted, ROUTER_PAYLOAD, ROUTER_SCRATCH};
pub use builtin::{Fixed, RStitch, Single};
pub use calibrate::{CalibrateError, calibrate};
pub use direction::{Direction, Gauge, Measure};
pub(crate) use draw::mix;
pub use draw::{PURPOSE_QUERY, PURPOSE_ROUTE, draw};
pub use mixture::{Mixture, WeightsError};
pub use params::{HeadInfo, ParamReader, ParamValue, RouterError, RouterSpec};
pub use query::{Choice, Query};
pub use registry::{Factory, Registry};
pub use scored::{HeadKind, Scored};
pub use suggest::closest;
pub use terms::{Budget, Online, Source, Terms};
pub use threshold::{Threshold, ThresholdError};

use crate::event::{MAX_HEADS, Signals, Usage};
use crate::ids::{ModelId, ModelSet, RequestId};

/// Which [`Signals`] a router reads, as bits; the step computes no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(pub u32);

impl SignalSet {
    /// Nothing beyond the candidate.
    pub const NONE: Self = Self(0);
    /// `entropy` and `entropy_norm`.
    pub const ENTROPY: Self = Self(1);
    /// `top_ids`, `top_logits`, `top_len`.
    pub const TOP_K: Self = Self(2);
    /// `margin`.
    pub const MARGIN: Self = Self(4);

    /// `scores[head]` of a learned head. Past [`MAX_HEADS`] there is none: the set is empty, and so a head that does
    /// not exist is never computed.
    pub const fn score(head: usize) -> Self {
        if head < MAX_HEADS { Self(8 << head) } else { Self::NONE }
    }

    /// Signals in either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// State of one stay of a request at one model; fresh at every handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Tokens committed in this visit so far (the candidate not among them). Kept by the core.
    pub committed: u32,
    /// Tokens after which control shall return, set by [`Router::receive`] and obeyed by [`Router::route`];
    /// `u32::MAX` when there is no limit. The core only carries it.
    pub limit: u32,
    /// The router's own notes. The core only carries them. The last bytes, from [`ROUTER_SCRATCH`] on, are those of
    /// [`Budgeted`] and must stay zero.
    pub scratch: [u8; 16],
}

impl Default for Visit {
    fn default() -> Self {
        Self { committed: 0, limit: u32::MAX, scratch: [0; 16] }
    }
}

impl Visit {
    /// Whether committing one more token uses up the limit.
    pub const fn is_last(&self) -> bool {
        self.committed.saturating_add(1) >= self.limit
    }
}

/// What travels inline with a handoff; zeroed before [`Router::send`]. The last bytes, from [`ROUTER_PAYLOAD`] on, are
/// those of [`Budgeted`] and must stay zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload(pub [u8; 64]);

impl Default for Payload {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// The sender's candidate, when the request moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Commit it; the peer writes the next position.
    Keep,
    /// Discard it; the peer writes this position.
    Drop,
}

/// One row of a finished step, as routers see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRow {
    /// The request.
    pub request: RequestId,
    /// The model that ran the step.
    pub model: ModelId,
    /// Position of the candidate: tokens of prompt and answer before it.
    pub position: u32,
    /// Tokens of the answer before it.
    pub generated: u32,
    /// The sampled token.
    pub candidate: u32,
    /// What the step measured.
    pub signals: Signals,
    /// The request's threshold, fixed when it was submitted, which goes before the router's.
    pub threshold: Option<Threshold>,
    /// The current visit.
    pub visit: Visit,
    /// The request's seed, for [`draw`].
    pub seed: u64,
    /// The request's choice index, for [`draw`].
    pub choice: u32,
    /// The request's budget, fixed when it was submitted; [`Budgeted`] keeps it.
    pub budget: Option<Budget>,
}

/// A request at submit, before its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EntryRow {
    /// Tokens of the prompt: the first position to be written.
    pub position: u32,
    /// The request's threshold.
    pub threshold: Option<Threshold>,
    /// The request's budget.
    pub budget: Option<Budget>,
    /// What came with the request about the whole of it, see [`Query`].
    pub query_score: Option<f32>,
    /// The request's seed.
    pub seed: u64,
    /// The request's choice index.
    pub choice: u32,
}

/// A request arriving at a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceiveRow {
    /// The request.
    pub request: RequestId,
    /// The model it arrives at.
    pub model: ModelId,
    /// The position that model writes next.
    pub position: u32,
    /// Tokens of the answer before it.
    pub generated: u32,
    /// The request's threshold.
    pub threshold: Option<Threshold>,
    /// The request's seed.
    pub seed: u64,
    /// The request's choice index.
    pub choice: u32,
    /// The request's budget.
    pub budget: Option<Budget>,
}

/// A request of which the scheduler asks where it may still go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReachRow<'a> {
    /// The model that owns it.
    pub model: ModelId,
    /// Tokens of the answer so far.
    pub generated: u32,
    /// The request's threshold.
    pub threshold: Option<Threshold>,
    /// The request's budget.
    pub budget: Option<Budget>,
    /// Tokens of the answer at most.
    pub max_new_tokens: u32,
    /// The current visit.
    pub visit: Visit,
    /// What it has used so far, by model.
    pub usage: &'a Usage,
}

/// A finished step: the sampling rows of one route.
#[derive(Clone, Copy, Debug)]
pub struct StepView<'a> {
    /// The model that ran it.
    pub model: ModelId,
    /// The rows.
    pub rows: &'a [RouteRow],
}

/// The per-token choice of model.
pub trait Router: Send {
    /// Name for messages and metrics.
    fn name(&self) -> &str;

    /// The signals `route` and `send` read.
    fn signals(&self) -> SignalSet;

    /// The signals that a step of `model` must compute: [`Router::signals`], unless the router reads less there.
    fn signals_at(&self, model: ModelId) -> SignalSet {
        let _ = model;
        self.signals()
    }

    /// Where requests start, and the model that budgets leave alone: the cheap one.
    fn entry(&self) -> ModelId;

    /// Where this request starts, if not all start at the entry. Asked once, at submit. `None` when the request lacks
    /// what the choice needs: it is then refused.
    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        let _ = row;
        Some(self.entry())
    }

    /// Every model `route` and `entry_for` may name, `entry` included. A request sent elsewhere fails.
    fn reach(&self) -> ModelSet;

    /// The models a request may still be sent to. A threshold that rules a model out, or a budget that is spent,
    /// takes it away; the default is the whole reach. The scheduler counts with it for whom a batch may wait: a set
    /// that is too large costs time, one that is too small costs batching, neither costs a token. Asked at admission
    /// and after every candidate, so it must be cheap.
    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let _ = row;
        self.reach()
    }

    /// Writes the next owner of each row into `to` (same length as the rows; preset to the step's model).
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]);

    /// For a row that leaves: keep or drop its candidate, and what to tell the peer.
    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        let _ = (row, to, payload);
        Verdict::Keep
    }

    /// At the peer: sets up the visit. Not called when the kept candidate ended the request.
    fn receive(&self, row: &ReceiveRow, from: ModelId, payload: &Payload, visit: &mut Visit) {
        let _ = (row, from, payload, visit);
    }

    /// Whether a request may bring this threshold; NaN never comes here.
    fn accepts(&self, threshold: Threshold) -> bool {
        let _ = threshold;
        true
    }

    /// What is compared with the threshold and how, for those who choose one; `None` when that does not say it all.
    fn gauge(&self) -> Option<Gauge> {
        None
    }

    /// What holds for a request that says nothing, and where it came from.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// What the route learns while it serves.
    fn online(&self) -> Online {
        Online::default()
    }

    /// Whether budgets are kept: true for [`Budgeted`] alone. The core wraps every other router into one.
    fn keeps_budgets(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_has_a_bit_of_its_own() {
        let sets = [0, 1, 2, 3].map(|head| SignalSet::score(head).0);
        assert_eq!(sets, [8, 16, 32, 64]);
        let old = SignalSet::ENTROPY.union(SignalSet::TOP_K).union(SignalSet::MARGIN);
        assert!(sets.iter().all(|bit| old.0 & bit == 0));
        assert_eq!(SignalSet::score(MAX_HEADS), SignalSet::NONE);
    }
}
