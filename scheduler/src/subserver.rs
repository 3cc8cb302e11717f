//! A subserver: one model's queue and its batch in flight.

use crate::config::ModelLimits;
use crate::event::{Batch, Row};
use crate::ids::{MAX_MODELS, ModelId, Nanos};
use crate::queue::Queue;

#[derive(Debug)]
pub(crate) struct Subserver {
    pub(crate) model: ModelId,
    pub(crate) limits: ModelLimits,
    pub(crate) queue: Queue,
    batch: Batch,
    in_flight: bool,
    /// Its device works at a step that was given up when the model was lost.
    pub(crate) abandoned: bool,
    /// Per row of the batch: the row that writes what it reads, or [`crate::pages::NO_ROW`].
    pub(crate) reads: Vec<u32>,
    /// Per model: running requests of the batch in flight that sample and may go there.
    pub(crate) goes_to: [u32; MAX_MODELS],
    /// Requests of the batch in flight that are still running.
    pub(crate) running: usize,
    /// Admitted requests that have visited this model and are owned by another.
    pub(crate) pending: usize,
    /// Batches launched.
    pub(crate) launches: u64,
    /// Since when it is idle with a ready request, and no model that excludes it runs.
    pub(crate) stalled_since: Option<Nanos>,
}

impl Subserver {
    pub(crate) fn new(model: ModelId, limits: ModelLimits, max_running: usize) -> Self {
        let most_rows = limits.max_batch_rows.min(limits.max_step_tokens).min(max_running);
        let delays = Vec::with_capacity(most_rows);
        let batch = Batch { model, rows: Vec::with_capacity(most_rows), delays, ..Batch::default() };
        Self {
            model,
            limits,
            queue: Queue::default(),
            batch,
            in_flight: false,
            abandoned: false,
            reads: Vec::with_capacity(most_rows),
            goes_to: [0; MAX_MODELS],
            running: 0,
            pending: 0,
            launches: 0,
            stalled_since: None,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight
    }

    /// Number of its last launch; 0 before the first.
    pub(crate) fn last_launch(&self) -> u64 {
        self.batch.seq
    }

    /// Rows that one batch can hold.
    pub(crate) fn most_rows(&self) -> usize {
        self.limits.max_batch_rows.min(self.limits.max_step_tokens)
    }

    pub(crate) fn batch(&self) -> Option<&Batch> {
        self.in_flight.then_some(&self.batch)
    }

    /// Lends the empty batch out to be filled; [`Subserver::close`] puts it in flight.
    pub(crate) fn open(&mut self) -> Batch {
        assert!(!self.in_flight, "{} has a batch in flight", self.model);
        (self.batch.fed_tokens, self.batch.prompt_tokens) = (0, 0);
        self.reads.clear();
        self.batch.delays.clear();
        self.goes_to = [0; MAX_MODELS];
        std::mem::take(&mut self.batch)
    }

    /// Puts a batch in flight, unless it is empty.
    pub(crate) fn close(&mut self, batch: Batch, seq: u64, now: Nanos) {
        self.batch = batch;
        if self.batch.rows.is_empty() {
            return;
        }
        self.batch.seq = seq;
        self.batch.model = self.model;
        self.batch.launched_at = now;
        self.running = self.batch.rows.len();
        self.launches += 1;
        self.in_flight = true;
    }

    /// Ends the batch in flight and lends its rows out; [`Subserver::give_back`] returns the buffer.
    pub(crate) fn land(&mut self) -> Vec<Row> {
        assert!(self.in_flight, "{} has no batch in flight", self.model);
        self.in_flight = false;
        std::mem::take(&mut self.batch.rows)
    }

    /// As [`Subserver::land`], although the device still works at the batch.
    pub(crate) fn abandon(&mut self) -> Vec<Row> {
        self.abandoned = true;
        self.land()
    }

    pub(crate) fn give_back(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.batch.rows = rows;
    }

    /// A launch was tried, and no row could run for want of pages: only an event or the guard time tries again.
    pub(crate) fn rest(&mut self, now: Nanos) {
        if self.stalled_since.is_some() {
            self.stalled_since = Some(now);
        }
    }

    /// Keeps `stalled_since` true to the queue, the batch, and whether a model that excludes this one runs.
    pub(crate) fn note_stall(&mut self, now: Nanos, blocked: bool) {
        if self.in_flight || self.queue.is_empty() || blocked {
            self.stalled_since = None;
        } else {
            self.stalled_since.get_or_insert(now);
        }
    }
}
