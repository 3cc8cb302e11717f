//! What goes into the core and comes out of it: batches and their results, effects, usage.

use crate::ids::{MAX_MODELS, ModelId, Nanos, RequestId};
use crate::router::Terms;
use crate::times::{Spent, Times};
use std::fmt;

/// How many of the largest logits a step reports.
pub const TOP: usize = 8;

/// Most learned router heads of one model.
pub const MAX_HEADS: usize = 4;

/// What a step tells routers about one row, computed from the raw logits (before penalties and temperature).
///
/// Fields a route did not ask for (see [`crate::router::SignalSet`]) are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Log-sum-exp of the logits.
    pub lse: f32,
    /// Entropy of the next-token distribution in nats.
    pub entropy: f32,
    /// `entropy` divided by the logarithm of the model's configured vocabulary size: 0 certain, 1 uniform.
    pub entropy_norm: f32,
    /// Probability of the best token minus that of the second.
    pub margin: f32,
    /// The score of each learned router head of the model, in `[0, 1]` as its algorithm defines it.
    pub scores: [f32; MAX_HEADS],
    /// Ids of the largest logits, descending; `top_len` are valid.
    pub top_ids: [u32; TOP],
    /// The largest logits, descending; `top_len` are valid.
    pub top_logits: [f32; TOP],
    /// How many entries of `top_ids` and `top_logits` are valid.
    pub top_len: u32,
}

/// Why one row of a step has no usable result; only that request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFault {
    /// The logits hold NaN or infinity.
    NonFinite,
    /// Anything else, in words.
    Other(&'static str),
}

impl fmt::Display for RowFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonFinite => f.write_str("the logits are not finite"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// The result of one row. For a row that does not sample, only `fault` is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowResult {
    /// The candidate.
    pub token: u32,
    /// What the router may look at.
    pub signals: Signals,
    /// Set when the row failed; the other fields are then ignored.
    pub fault: Option<RowFault>,
}

/// One request in one step: it feeds `tokens[start .. start + len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose row this is.
    pub request: RequestId,
    /// First position fed: what comes before is in the model's cache already.
    pub start: u32,
    /// Tokens fed, at least one.
    pub len: u32,
    /// False when the step's token limit cut the row: it samples nothing and routes nothing.
    pub samples: bool,
}

/// One step of one model, from launch to completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Launch number over all models, starting at 1.
    pub seq: u64,
    /// The model that runs it.
    pub model: ModelId,
    /// The rows, in queue order.
    pub rows: Vec<Row>,
    /// Sum of the rows' lengths.
    pub fed_tokens: usize,
    /// How many of them are tokens of prompts.
    pub prompt_tokens: usize,
    /// The time given to [`crate::Core::launch`].
    pub launched_at: Nanos,
    /// Admission delays: how long ago the router had handed each request over that another model sent and that is in a
    /// batch of this one for the first time since. In row order.
    pub delays: Vec<Nanos>,
}

/// What the core tells the outside, in order.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate for every request that ends")]
pub enum Effect {
    /// A token was committed.
    Token {
        /// The request.
        request: RequestId,
        /// The caller's name for it.
        client: u64,
        /// The token.
        token: u32,
        /// Who wrote it.
        model: ModelId,
    },
    /// The request is over; nothing about it follows. The id is stale once its slot is reused.
    Terminal {
        /// The request.
        request: RequestId,
        /// The caller's name for it.
        client: u64,
        /// Why it ended.
        reason: FinishReason,
        /// Its account.
        usage: Usage,
    },
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A model wrote this end-of-sequence token (committed and counted).
    Eos(u32),
    /// A model wrote this stop id of the request (committed and counted).
    StopId(u32),
    /// `max_new_tokens` were written.
    Length,
    /// [`crate::Core::stop`] was called.
    Stop,
    /// [`crate::Core::cancel`] was called.
    Cancelled,
    /// Something broke.
    Failed(FailKind),
}

impl FinishReason {
    /// Whether a device did not do what it should: then nothing that the request left in a cache is trusted.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(self, Self::Failed(FailKind::Row { .. } | FailKind::Step { .. }))
    }
}

/// What broke a request; `Display` says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailKind {
    /// Its row had no usable result.
    Row {
        /// The model that ran the row.
        model: ModelId,
        /// What was wrong.
        fault: RowFault,
    },
    /// The whole step failed.
    Step {
        /// The model whose step it was.
        model: ModelId,
        /// What the executor said.
        why: String,
    },
    /// The router named a model outside its reach.
    OutOfReach {
        /// The model that had run.
        from: ModelId,
        /// The destination it named.
        to: ModelId,
    },
    /// The router discarded this many candidates in a row without one being kept.
    NoProgress {
        /// Candidates dropped since the last committed token.
        drops: u32,
    },
    /// It needed a model that is lost, see [`crate::Core::lose`].
    ModelLost {
        /// That model.
        model: ModelId,
    },
}

impl fmt::Display for FailKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row { model, fault } => write!(f, "{model}: {fault}"),
            Self::Step { model, why } => write!(f, "a step of {model} failed: {why}"),
            Self::OutOfReach { from, to } => {
                write!(f, "the router sent the request from {from} to {to}, which is outside its reach")
            }
            Self::NoProgress { drops } => {
                write!(f, "the router discarded {drops} candidates in a row without keeping one")
            }
            Self::ModelLost { model } => write!(f, "{model} is lost, and the request needs it"),
        }
    }
}

/// The account of one request. Arrays are per model; discarded work is counted where it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// What it was routed by: with its seed, it replays exactly.
    pub terms: Terms,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Committed tokens, end-of-sequence included; after a stop, those up to the stop.
    pub completion_tokens: u32,
    /// Committed tokens by writer; sums to `completion_tokens`.
    pub committed: [u32; MAX_MODELS],
    /// Candidates the router dropped, by the model that had sampled them.
    pub discarded: [u32; MAX_MODELS],
    /// Rows run.
    pub steps: [u32; MAX_MODELS],
    /// Tokens fed, those of rows that sampled included.
    pub fed: [u32; MAX_MODELS],
    /// Tokens fed only to fill the cache: no candidate was sampled after them.
    pub prefill: [u32; MAX_MODELS],
    /// Moves between models.
    pub handoffs: u32,
    /// Tokens of the prompt that the model found in its cache instead of computing them.
    pub cached: [u32; MAX_MODELS],
    /// How often it lost its pages and was computed again.
    pub preemptions: u32,
    /// When things happened to it.
    pub times: Times,
    /// Where its time went; nothing before its end.
    pub spent: Spent,
    /// A model of its route was lost, and others wrote in its place ([`crate::PeerLoss::Continue`]): the answer is not
    /// the one that the whole route gives.
    pub degraded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_model_and_the_cause() {
        let row = FailKind::Row { model: ModelId(1), fault: RowFault::NonFinite };
        assert_eq!(row.to_string(), "model 1: the logits are not finite");
        let step = FailKind::Step { model: ModelId(0), why: "device lost".into() };
        assert_eq!(step.to_string(), "a step of model 0 failed: device lost");
        let reach = FailKind::OutOfReach { from: ModelId(0), to: ModelId(5) }.to_string();
        assert!(reach.contains("model 0") && reach.contains("model 5"), "{reach}");
        assert_eq!(
            FailKind::ModelLost { model: ModelId(1) }.to_string(),
            "model 1 is lost, and the request needs it"
        );
        assert!(FailKind::NoProgress { drops: 64 }.to_string().contains("64"));
    }
}
