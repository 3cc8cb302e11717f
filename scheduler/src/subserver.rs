//! A subserver: one model's queue and its batch in flight.

use crate::config::ModelLimits;
use crate::event::{Batch, Row};
use crate::ids::{ModelId, Nanos};
use crate::queue::Queue;
use crate::request::{State, Table};

#[derive(Debug)]
pub(crate) struct Subserver {
    pub(crate) model: ModelId,
    pub(crate) limits: ModelLimits,
    pub(crate) queue: Queue,
    batch: Batch,
    in_flight: bool,
    /// Requests of the batch in flight that are still running.
    pub(crate) running: usize,
    /// Admitted requests that have visited this model and are owned by another.
    pub(crate) pending: usize,
    /// Batches launched.
    pub(crate) launches: u64,
    /// Since when it is idle with a ready request.
    pub(crate) stalled_since: Option<Nanos>,
}

impl Subserver {
    pub(crate) fn new(model: ModelId, limits: ModelLimits, max_running: usize) -> Self {
        let most_rows = limits.max_batch_rows.min(limits.max_step_tokens).min(max_running);
        let batch = Batch { model, rows: Vec::with_capacity(most_rows), ..Batch::default() };
        Self {
            model,
            limits,
            queue: Queue::default(),
            batch,
            in_flight: false,
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

    /// Forms a batch from the front of the queue and puts it in flight.
    ///
    /// Rows come in queue order, as many as the row limit and the token limit (one token each) allow. What is left
    /// of the token limit goes to the rows in the same order, so a long prompt is cut into chunks while the rows
    /// behind it still advance by a token.
    pub(crate) fn launch(&mut self, table: &mut Table, seq: u64, now: Nanos) {
        assert!(!self.in_flight, "{} has a batch in flight", self.model);
        let rows = self.queue.len().min(self.most_rows());
        let mut spare = self.limits.max_step_tokens - rows;
        self.batch.fed_tokens = 0;
        for _ in 0..rows {
            let Some(slot) = self.queue.pop_front(&mut table.links) else { break };
            let id = table.id(slot);
            let request = table.at_mut(slot);
            request.enter(State::Running(self.model));
            request.cut = false;
            let start = request.watermarks[self.model.index()];
            let unseen = request.tokens.len() - start as usize;
            assert!(unseen > 0, "{} has nothing to feed to {}", id, self.model);
            let len = 1 + (unseen - 1).min(spare);
            spare -= len - 1;
            self.batch.rows.push(Row { request: id, start, len: len as u32, samples: len == unseen });
            self.batch.fed_tokens += len;
        }
        self.batch.seq = seq;
        self.batch.launched_at = now;
        self.running = rows;
        self.launches += 1;
        self.in_flight = true;
    }

    /// Ends the batch in flight and lends its rows out; [`Subserver::give_back`] returns the buffer.
    pub(crate) fn land(&mut self) -> Vec<Row> {
        assert!(self.in_flight, "{} has no batch in flight", self.model);
        self.in_flight = false;
        std::mem::take(&mut self.batch.rows)
    }

    pub(crate) fn give_back(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.batch.rows = rows;
    }

    /// Keeps `stalled_since` true to the queue and the batch.
    pub(crate) fn note_stall(&mut self, now: Nanos) {
        if self.in_flight || self.queue.is_empty() {
            self.stalled_since = None;
        } else {
            self.stalled_since.get_or_insert(now);
        }
    }
}
