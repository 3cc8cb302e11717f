//! What a policy sees: a few numbers per model, nothing else.

use crate::ids::{MAX_MODELS, Nanos};

/// One model as a policy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelView {
    /// Requests in its queue.
    pub ready: usize,
    /// Whether a batch is in flight.
    pub busy: bool,
    /// Whether a model runs that never runs beside this one.
    pub blocked: bool,
    /// Admitted requests that may still visit it, itself included: the N of the tables.
    pub visitors: usize,
    /// The queue starts with a request whose last row was cut by the token limit: it waits for nobody.
    pub cut: bool,
    /// The queue fills a batch: nobody who might still come would be in it.
    pub full: bool,
    /// Whether it has been idle with a ready request for the guard time.
    pub overdue: bool,
    /// Number of its last launch; 0 before the first.
    pub last_launch: u64,
    /// Its usual step time; none before it is known.
    pub step: Option<Nanos>,
    /// Busy: predicted time until its batch ends, 0 when it is late. Idle: predicted time of a step of its queue.
    /// None when nothing is known.
    pub ends_in: Option<Nanos>,
    /// Requests it is expected to send to each model at that end (P_ij times the rows that may go there).
    pub sends: [f64; MAX_MODELS],
}

impl ModelView {
    /// Whether a launch is possible.
    pub(super) fn launchable(&self) -> bool {
        !self.busy && !self.blocked && self.ready > 0
    }
}
