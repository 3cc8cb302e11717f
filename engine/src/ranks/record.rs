//! What travels between the lead rank and the others: launch records one way, finished parts the other.

use std::sync::Arc;

use tokenrouter_scheduler::{ModelId, RowResult};

use crate::step::Step;

/// Which captured graph runs a step: its token bucket, or `None` for a step that runs uncaptured. A pure function of the
/// step, so that every rank would choose alike; the lead chooses once and the record carries it.
pub(crate) type GraphKey = Box<dyn Fn(&Step) -> Option<u32> + Send>;

/// One step for every rank that holds a part of its model.
#[derive(Debug)]
pub(crate) struct LaunchRecord {
    /// Number among all launches of the process, ascending on every rank.
    pub(crate) seq: u64,
    /// The token bucket of the graph, `None` to run uncaptured.
    pub(crate) graph: Option<u32>,
    /// Over everything that decides what is computed; a rank refuses a record that does not match.
    pub(crate) checksum: u64,
    /// The input. `results` and `failure` are filled by the lead when all parts are done.
    pub(crate) step: Box<Step>,
}

impl LaunchRecord {
    /// The model that runs.
    pub(crate) fn model(&self) -> ModelId {
        self.step.model
    }
}

/// A rank's part of a step has ended.
#[derive(Debug)]
pub(crate) struct RankDone {
    /// The record it belongs to.
    pub(crate) record: Arc<LaunchRecord>,
    /// One result per row from the rank that samples, nothing from the others.
    pub(crate) results: Vec<RowResult>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}
