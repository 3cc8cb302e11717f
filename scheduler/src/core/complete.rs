//! A step has landed: absorb its rows, route them, walk each candidate, move the requests on.

use super::{Core, route_of};
use crate::config::{CompleteError, Handoff};
use crate::event::{FailKind, FinishReason, Row, RowResult};
use crate::ids::{ModelId, ModelSet, Nanos, RouteId};
use crate::request::{Request, State};
use crate::router::{RouteRow, StepView};
use crate::walk::{Guide, Outcome, settle};

/// What a row's step was worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// The row has a fault of its own.
    Faulty,
    /// It read what a row wrote that was not well, whatever its own result says.
    Misled,
}

/// Buffers of a completion, kept so that a steady state allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    /// Rows that sampled, as the routers see them; after [`Core::route`] grouped by route.
    rows: Vec<RouteRow>,
    /// Their routes, and their places before they were grouped.
    routes: Vec<(RouteId, u32)>,
    /// Where each of them goes.
    to: Vec<ModelId>,
    /// Slots of the rows that the step's token limit cut, or that must run again.
    cut: Vec<usize>,
    /// Per row; empty for a step without faults.
    health: Vec<Health>,
    /// Room to group rows in.
    grouped: Vec<RouteRow>,
}

impl Scratch {
    pub(super) fn new(rows: usize) -> Self {
        Self {
            rows: Vec::with_capacity(rows),
            routes: Vec::with_capacity(rows),
            to: Vec::with_capacity(rows),
            cut: Vec::with_capacity(rows),
            health: Vec::with_capacity(rows),
            grouped: Vec::with_capacity(rows),
        }
    }
}

impl Core {
    /// Delivers the results of a model's batch, one per row in order. On an error nothing has changed. Those of a batch
    /// that was given up when the model was lost are dropped.
    pub fn complete(
        &mut self,
        now: Nanos,
        model: ModelId,
        results: &[RowResult],
    ) -> Result<(), CompleteError> {
        if self.end_abandoned(model) {
            return Ok(());
        }
        let batch = self.batch(model).ok_or(CompleteError::NoBatch(model))?;
        let (expected, fed, prompt) = (batch.rows.len(), batch.fed_tokens, batch.prompt_tokens);
        if expected != results.len() {
            return Err(CompleteError::RowCount { model, results: results.len(), rows: expected });
        }
        self.now = now;
        let spent = self.overlap.end(model, now);
        self.estimates.add_step(model, expected, fed, prompt, spent);
        for sub in &self.subservers {
            if let Some(batch) = sub.batch().filter(|_| sub.model != model) {
                let spent = self.overlap.spent(sub.model, now);
                self.estimates.note_running(sub.model, batch.fed_tokens, spent);
            }
        }
        self.epoch = true;
        let rows = self.subservers[model.index()].land();
        let mut scratch = std::mem::take(&mut self.scratch);
        self.absorb(model, &rows, results, &mut scratch);
        self.route(model, &mut scratch);
        let committed = self.walk(model, &scratch);
        self.note_landed(now, committed, prompt);
        self.return_cut(model, &scratch.cut);
        self.scratch = scratch;
        self.subservers[model.index()].give_back(rows);
        self.note_stalls(now);
        #[cfg(test)]
        self.plant_lost_wake_up();
        Ok(())
    }

    /// The whole step failed: its rows fail with `why`, nothing else does. Without a batch in flight it does
    /// nothing.
    pub fn complete_failed(&mut self, now: Nanos, model: ModelId, why: &str) {
        if self.end_abandoned(model) || self.batch(model).is_none() {
            return;
        }
        self.now = now;
        self.epoch = true;
        self.overlap.end(model, now);
        let rows = self.subservers[model.index()].land();
        for row in &rows {
            let request = self.table.at(row.request.slot());
            self.pages.landed(&request.pages, model, row.start, row.start + row.len, false);
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
    fn absorb(&mut self, model: ModelId, rows: &[Row], results: &[RowResult], scratch: &mut Scratch) {
        scratch.rows.clear();
        scratch.routes.clear();
        scratch.cut.clear();
        self.diagnose(model, results, &mut scratch.health);
        for (index, (row, result)) in rows.iter().zip(results).enumerate() {
            let health = scratch.health.get(index).copied().unwrap_or(Health::Well);
            let slot = row.request.slot();
            let request = self.table.at_mut(slot);
            let well = health == Health::Well;
            self.pages.landed(&request.pages, model, row.start, row.start + row.len, well);
            #[cfg(test)]
            let request = {
                if well {
                    self.plant_published_ahead(model, row);
                }
                self.table.at_mut(slot)
            };
            if request.state() == State::Finished {
                self.release_if_over(row);
                continue;
            }
            if health == Health::Misled {
                scratch.cut.push(slot);
                continue;
            }
            book(request, model, row);
            if let Some(fault) = result.fault {
                let kind = FailKind::Row { model, fault };
                self.finish(slot, FinishReason::Failed(kind), false);
                continue;
            }
            if row.samples && request.max_new_tokens == 0 {
                self.finish(slot, FinishReason::Length, false);
                continue;
            }
            if row.samples {
                scratch.routes.push((request.route, scratch.rows.len() as u32));
                scratch.rows.push(route_row(request, model, row, result));
            } else {
                scratch.cut.push(slot);
            }
            if request.may_publish() {
                self.publish(slot);
            }
        }
    }

    /// Says how every row is if one of them has a fault.
    fn diagnose(&self, model: ModelId, results: &[RowResult], health: &mut Vec<Health>) {
        health.clear();
        if results.iter().all(|result| result.fault.is_none()) {
            return;
        }
        for (result, &reads) in results.iter().zip(&self.subservers[model.index()].reads) {
            // A row reads only what stands before it.
            let misled = health.get(reads as usize).is_some_and(|&h| h != Health::Well);
            health.push(match result.fault {
                _ if misled => Health::Misled,
                Some(_) => Health::Faulty,
                None => Health::Well,
            });
        }
    }

    /// Rows that were cut are ready again at once. When all ready requests fit into one batch they keep their place
    /// at the front and are the first to get what is left of the token limit. Else they go to the back: however long
    /// the prompts, a ready request is passed over by at most as many batches as the others fill.
    fn return_cut(&mut self, model: ModelId, cut: &[usize]) {
        let sub = &mut self.subservers[model.index()];
        sub.running -= cut.len();
        let crowded = sub.queue.len() + cut.len() > sub.limits.max_batch_rows;
        for i in 0..cut.len() {
            // In reverse to the front and forwards to the back, so that they keep their order.
            let slot = cut[if crowded { i } else { cut.len() - 1 - i }];
            let (request, links) = self.table.at_mut_linked(slot);
            request.enter(self.now, State::Ready(model));
            request.cut = true;
            if crowded { sub.queue.push_back(links, slot) } else { sub.queue.push_front(links, slot) }
        }
    }

    /// A request that ended while its row was in flight lets go of its slot and pages now. True for such a row.
    pub(super) fn release_if_over(&mut self, row: &Row) -> bool {
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
    fn route(&mut self, model: ModelId, scratch: &mut Scratch) {
        let Scratch { rows, routes, to, grouped, .. } = scratch;
        if self.routes.len() > 1 && !routes.is_sorted() {
            routes.sort_unstable();
            grouped.clear();
            grouped.extend(routes.iter().map(|&(_, place)| rows[place as usize]));
            std::mem::swap(rows, grouped);
        }
        to.clear();
        to.resize(rows.len(), model);
        let mut start = 0;
        for group in routes.chunk_by(|a, b| a.0 == b.0) {
            let end = start + group.len();
            let step = StepView { model, rows: &rows[start..end] };
            let route = &mut self.routes[usize::from(group[0].0.0)];
            route.router.route(&step, &mut to[start..end]);
            Self::learn(route, &rows[start..end]);
            start = end;
        }
    }

    /// Walks every sampled candidate and moves its request on. Returns how many were committed.
    fn walk(&mut self, model: ModelId, scratch: &Scratch) -> u64 {
        let (mut moved, mut total) = (0, 0);
        for (row, &to) in scratch.rows.iter().zip(&scratch.to) {
            let slot = row.request.slot();
            let (request, links) = self.table.at_mut_linked(slot);
            let route = route_of(&self.routes, request.route);
            let before = request.tokens.len();
            let guide = Guide {
                router: &*route.router,
                reach: route.reach,
                eos_ids: &self.config.eos_ids,
                entry: route.entry,
                lost: self.lost,
                on_loss: self.on_loss,
            };
            let outcome = settle(guide, row, to, request, &mut self.effects);
            let committed = request.tokens.len() > before;
            total += u64::from(committed);
            if committed && request.generated() == 1 {
                request.account.began(self.now);
            }
            let to = match outcome {
                Outcome::Stay => model,
                Outcome::HandOver(to) => to,
                Outcome::Finish(reason) => {
                    self.finish(slot, reason, false);
                    continue;
                }
            };
            // Its owner is among the models it may visit.
            if request.may_visit != ModelSet::of(model) {
                self.estimates.add_move(model, to, committed);
            }
            moved += 1;
            if to != model {
                self.handoffs[model.index()][to.index()] += 1;
                self.drops[model.index()][to.index()] += u64::from(!committed);
                request.handed_at = Some(self.now);
                if self.config.handoff == Handoff::Readmit {
                    self.wait_again(slot, model, to);
                    continue;
                }
                self.subservers[model.index()].pending += 1;
                self.subservers[to.index()].pending -= usize::from(request.visited.contains(to));
                request.visited.insert(to);
            }
            // From a landed batch to the back of a queue. This is all a handoff does: a push, and counters.
            let open = route.open_to(request, to, self.lost);
            request.enter(self.now, State::Ready(to));
            self.subservers[to.index()].queue.push_back(links, slot);
            if request.may_visit != open {
                self.set_visits(slot, open);
            }
        }
        self.subservers[model.index()].running -= moved;
        total
    }
}

/// A row that has sampled, as its router sees it.
fn route_row(request: &Request, model: ModelId, row: &Row, result: &RowResult) -> RouteRow {
    RouteRow {
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
        budget: request.budget,
    }
}

/// A row has run: its tokens are in the model's cache.
fn book(request: &mut Request, model: ModelId, row: &Row) {
    let (start, end) = (row.start, row.start + row.len);
    let high = &mut request.high_water[model.index()];
    let found = start.min(request.prompt_len).saturating_sub(*high);
    *high = (*high).max(end);
    request.watermarks[model.index()] = end;
    request.account.step(model, row.len, row.samples, found);
}
