//! A step has landed: absorb its rows, route them, walk each candidate, move the requests on.

use super::{Core, route_of};
use crate::config::CompleteError;
use crate::event::{FailKind, FinishReason, Row, RowResult};
use crate::ids::{ModelId, ModelSet, Nanos, RouteId};
use crate::request::{Request, State};
use crate::router::{RouteRow, StepView};
use crate::walk::{Guide, Outcome, settle};

/// Buffers of a completion, kept so that a steady state allocates nothing.
pub(super) struct Scratch {
    /// Rows that sampled: their route and index in the batch, grouped by route.
    sampled: Vec<(RouteId, u32)>,
    /// What the routers see, in the order of `sampled`.
    rows: Vec<RouteRow>,
    /// Where each of them goes.
    to: Vec<ModelId>,
    /// Per row: whether what it wrote or read cannot be trusted.
    bad: Vec<bool>,
    /// Slots of the rows that the step's token limit cut, or that must run again.
    cut: Vec<usize>,
}

impl Scratch {
    pub(super) fn new(rows: usize) -> Self {
        Self {
            sampled: Vec::with_capacity(rows),
            rows: Vec::with_capacity(rows),
            to: Vec::with_capacity(rows),
            cut: Vec::with_capacity(rows),
            bad: Vec::with_capacity(rows),
        }
    }
}

impl Core {
    /// Delivers the results of a model's batch, one per row in order. On an error nothing has changed.
    pub fn complete(
        &mut self,
        now: Nanos,
        model: ModelId,
        results: &[RowResult],
    ) -> Result<(), CompleteError> {
        let batch = self.batch(model).ok_or(CompleteError::NoBatch(model))?;
        let (expected, fed, took) =
            (batch.rows.len(), batch.fed_tokens, now.saturating_sub(batch.launched_at));
        if expected != results.len() {
            return Err(CompleteError::RowCount { model, results: results.len(), rows: expected });
        }
        self.estimates.add_step(model, fed, took);
        self.epoch = true;
        let rows = self.subservers[model.index()].land();
        self.absorb(model, &rows, results);
        self.route(model, &rows, results);
        self.walk(model);
        self.return_cut(model);
        self.subservers[model.index()].give_back(rows);
        self.note_stalls(now);
        #[cfg(test)]
        self.plant_lost_wake_up();
        Ok(())
    }

    /// The whole step failed: its rows fail with `why`, nothing else does. Without a batch in flight it does
    /// nothing.
    pub fn complete_failed(&mut self, now: Nanos, model: ModelId, why: &str) {
        if self.batch(model).is_none() {
            return;
        }
        self.epoch = true;
        let rows = self.subservers[model.index()].land();
        for row in &rows {
            self.unclaim(model, row);
            if !self.release_if_over(row) {
                let kind = FailKind::Step { model, why: why.to_owned() };
                self.finish(row.request.slot(), FinishReason::Failed(kind), false);
            }
        }
        self.subservers[model.index()].give_back(rows);
        self.note_stalls(now);
    }

    /// Books what every row has fed, fails faulty rows, and sorts the others into sampled and cut. A row that read
    /// what a faulty row wrote in this step has done nothing and runs again.
    fn absorb(&mut self, model: ModelId, rows: &[Row], results: &[RowResult]) {
        self.scratch.sampled.clear();
        self.scratch.cut.clear();
        self.scratch.bad.clear();
        for (index, (row, result)) in rows.iter().zip(results).enumerate() {
            self.unclaim(model, row);
            let reads = self.subservers[model.index()].reads[index] as usize;
            let misled = self.scratch.bad.get(reads).is_some_and(|&bad| bad);
            self.scratch.bad.push(misled || result.fault.is_some());
            if !self.scratch.bad[index] {
                self.computed(model, row);
            }
            if self.release_if_over(row) {
                continue;
            }
            let slot = row.request.slot();
            if misled {
                self.scratch.cut.push(slot);
                continue;
            }
            let request = self.table.at_mut(slot);
            book(request, model, row);
            if let Some(fault) = result.fault {
                let kind = FailKind::Row { model, fault };
                self.finish(slot, FinishReason::Failed(kind), false);
            } else if row.samples {
                self.scratch.sampled.push((request.route, index as u32));
            } else {
                self.scratch.cut.push(slot);
            }
        }
        for row in rows {
            if self.table.get(row.request).is_some() {
                self.publish(row.request.slot());
            }
        }
    }

    /// Rows that were cut are ready again at once. When all ready requests fit into one batch they keep their place
    /// at the front and are the first to get what is left of the token limit. Else they go to the back: however long
    /// the prompts, a ready request is passed over by at most as many batches as the others fill.
    fn return_cut(&mut self, model: ModelId) {
        let sub = &mut self.subservers[model.index()];
        let crowded = sub.queue.len() + self.scratch.cut.len() > sub.limits.max_batch_rows;
        // In reverse to the front and forwards to the back, so that they keep their order.
        let count = self.scratch.cut.len();
        for i in 0..count {
            let slot = self.scratch.cut[if crowded { i } else { count - 1 - i }];
            self.leave_batch(model);
            let request = self.table.at_mut(slot);
            request.enter(State::Ready(model));
            request.cut = true;
            let (queue, links) = (&mut self.subservers[model.index()].queue, &mut self.table.links);
            if crowded { queue.push_back(links, slot) } else { queue.push_front(links, slot) }
        }
        self.scratch.cut.clear();
    }

    /// A request that ended while its row was in flight lets go of its slot and pages now. True for such a row.
    fn release_if_over(&mut self, row: &Row) -> bool {
        let slot = row.request.slot();
        let request = self.table.at(slot);
        if request.state() != State::Finished {
            return false;
        }
        self.pages.release_deferred(&request.pages);
        self.table.remove(slot);
        true
    }

    /// Asks each route's router once for all its rows.
    fn route(&mut self, model: ModelId, rows: &[Row], results: &[RowResult]) {
        let Scratch { sampled, rows: views, to, .. } = &mut self.scratch;
        if self.routes.len() > 1 {
            sampled.sort_unstable();
        }
        views.clear();
        for &(_, index) in sampled.iter() {
            let (row, result) = (&rows[index as usize], &results[index as usize]);
            let request = self.table.at(row.request.slot());
            views.push(RouteRow {
                request: row.request,
                model,
                position: request.tokens.len() as u32,
                generated: request.generated(),
                candidate: result.token,
                signals: result.signals,
                threshold: request.threshold,
                visit: request.visit,
                seed: request.seed,
                choice: request.choice,
            });
        }
        to.clear();
        to.resize(views.len(), model);
        let mut start = 0;
        for group in sampled.chunk_by(|a, b| a.0 == b.0) {
            let end = start + group.len();
            let step = StepView { model, rows: &views[start..end] };
            route_of(&self.routes, group[0].0).router.route(&step, &mut to[start..end]);
            start = end;
        }
    }

    /// Walks every sampled candidate and moves its request on.
    fn walk(&mut self, model: ModelId) {
        for i in 0..self.scratch.sampled.len() {
            let (row, to) = (&self.scratch.rows[i], self.scratch.to[i]);
            let slot = row.request.slot();
            let request = self.table.at_mut(slot);
            let route = route_of(&self.routes, request.route);
            let guide = Guide { router: &*route.router, reach: route.reach, eos_ids: &self.config.eos_ids };
            match settle(guide, row, to, request, &mut self.effects) {
                Outcome::Stay => self.make_ready(slot, model, model),
                Outcome::HandOver(to) => self.make_ready(slot, model, to),
                Outcome::Finish(reason) => self.finish(slot, reason, false),
            }
        }
    }

    /// From a landed batch to the back of a queue. This is all a handoff does: a push, and counters.
    fn make_ready(&mut self, slot: usize, from: ModelId, to: ModelId) {
        self.leave_batch(from);
        if self.table.at(slot).may_visit.len() > 1 {
            self.estimates.add_move(from, to);
        }
        self.count_visits(slot, to);
        let request = self.table.at_mut(slot);
        request.enter(State::Ready(to));
        if from != to {
            if request.visited.contains(to) {
                self.subservers[to.index()].pending -= 1;
            }
            request.visited = request.visited.union(ModelSet::of(to));
            self.subservers[from.index()].pending += 1;
            self.handoffs[from.index()][to.index()] += 1;
        }
        self.subservers[to.index()].queue.push_back(&mut self.table.links, slot);
    }

    fn leave_batch(&mut self, model: ModelId) {
        self.subservers[model.index()].running -= 1;
    }
}

/// A row has run: its tokens are in the model's cache.
fn book(request: &mut Request, model: ModelId, row: &Row) {
    let (start, end) = (row.start, row.start + row.len);
    request.account.step(model, row.len, row.samples);
    let high = &mut request.high_water[model.index()];
    let found = start.min(request.prompt_len).saturating_sub(*high);
    *high = (*high).max(end);
    request.watermarks[model.index()] = end;
    request.account.found(model, found);
}
