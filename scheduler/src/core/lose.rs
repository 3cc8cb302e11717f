//! A model is lost, and may come back.
//!
//! A lost model takes no step: nobody is sent there, nobody waits for it, and no policy counts on it. Its step in flight
//! is *abandoned*: what it has in hand ends or goes on elsewhere at once, and its results, if they come, are dropped.
//!
//! The pages of an abandoned step are free at once, for the others' sake: a device that hangs for ever would keep them
//! for ever. It may still write there, but only in the cache of its own model, which holds nothing that anybody trusts:
//! all of it is forgotten when the model is lost, and the model takes no step before that one has ended. So nothing is
//! read there that was not written anew.

use super::{Core, route_of};
use crate::config::{PeerLoss, SubmitError};
use crate::event::{FailKind, FinishReason};
use crate::ids::{ModelId, ModelSet, Nanos, RouteId};
use crate::request::{MAX_DISPLACED, State};
use crate::router::Terms;
use crate::walk::{allows_another, arrive_instead};

impl Core {
    /// What becomes of requests that need a lost model; without a word, they fail. To be said before the first request.
    #[must_use]
    pub fn on_peer_loss(mut self, on_loss: PeerLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// The models that are lost.
    pub fn lost(&self) -> ModelSet {
        self.lost
    }

    /// The model takes no steps any more, until [`Core::regain`]. Requests that are there fail, or go on at a model of
    /// their route that is left ([`Core::on_peer_loss`]); the others go on, and may come to need it. While a step of it is
    /// on its device, models that never run beside it ([`Core::exclusive`]) are lost with it. Returns those that were not
    /// lost before.
    pub fn lose(&mut self, now: Nanos, model: ModelId) -> ModelSet {
        let Some(sub) = self.subservers.get(model.index()) else { return ModelSet::EMPTY };
        self.now = now;
        let blocked =
            if sub.is_busy() || sub.abandoned { self.apart[model.index()] } else { ModelSet::EMPTY };
        let taken = ModelSet::of(model).union(blocked).without(self.lost);
        self.lost = self.lost.union(taken);
        for model in taken.iter() {
            self.abandon(now, model);
            self.pages.forget(model);
        }
        if !taken.is_empty() {
            self.leave_lost(taken);
            self.recount_destinations();
            self.epoch = true;
            self.note_stalls(now);
        }
        taken
    }

    /// The model takes steps again, with an empty cache. False, and nothing has changed, when it is not lost, or when a
    /// step that was abandoned is still on its device, or on one where it may not run beside.
    pub fn regain(&mut self, now: Nanos, model: ModelId) -> bool {
        let held = |model: ModelId| self.subservers[model.index()].abandoned;
        if !self.lost.contains(model) || held(model) || self.apart[model.index()].iter().any(held) {
            return false;
        }
        self.now = now;
        self.lost = self.lost.without(ModelSet::of(model));
        for (slot, owner) in self.owned() {
            self.count_visits(slot, owner);
        }
        self.recount_destinations();
        self.epoch = true;
        self.note_stalls(now);
        true
    }

    /// Whether the device of the model still works at a step that was given up.
    pub fn is_abandoned(&self, model: ModelId) -> bool {
        self.subservers.get(model.index()).is_some_and(|sub| sub.abandoned)
    }

    /// The abandoned step of the model, if there is one, has ended.
    pub(super) fn end_abandoned(&mut self, model: ModelId) -> bool {
        let abandoned = self.subservers.get_mut(model.index()).map(|sub| &mut sub.abandoned);
        abandoned.is_some_and(std::mem::take)
    }

    /// Where a request starts whose router wants it to start at `wanted`.
    ///
    /// # Errors
    /// When that model is lost, and no other may write in its place.
    pub(super) fn start_at(
        &self,
        route: RouteId,
        terms: Terms,
        wanted: ModelId,
    ) -> Result<ModelId, SubmitError> {
        if !self.lost.contains(wanted) {
            return Ok(wanted);
        }
        let entry = route_of(&self.routes, route).entry;
        let allowed =
            |model: &ModelId| *model == entry || terms.budget.is_none_or(|budget| budget.allows(0, 0));
        self.remaining(route).filter(allowed).ok_or(SubmitError::ModelLost { model: wanted })
    }

    /// The model that writes in the place of a lost one: the route's entry, or the first of the others.
    fn remaining(&self, route: RouteId) -> Option<ModelId> {
        let route = route_of(&self.routes, route);
        let left = route.reach.without(self.lost);
        let first = if left.contains(route.entry) { Some(route.entry) } else { left.iter().next() };
        first.filter(|_| self.on_loss == PeerLoss::Continue)
    }

    /// Gives up the model's step in flight. The requests of it that have not ended count as running until
    /// [`Core::leave_lost`].
    fn abandon(&mut self, now: Nanos, model: ModelId) {
        if self.batch(model).is_none() {
            return;
        }
        self.overlap.end(model, now);
        let rows = self.subservers[model.index()].abandon();
        for row in &rows {
            let request = self.table.at(row.request.slot());
            self.pages.landed(&request.pages, model, row.start, row.start + row.len, false);
            self.release_if_over(row);
        }
        self.subservers[model.index()].give_back(rows);
    }

    /// Where the batches in flight may send their requests has changed.
    fn recount_destinations(&mut self) {
        for model in ModelSet::first(self.subservers.len()).iter() {
            self.subservers[model.index()].goes_to = self.count_destinations(model);
        }
    }

    /// All admitted requests and their owners, by slot.
    fn owned(&self) -> Vec<(usize, ModelId)> {
        self.table.iter().filter_map(|(slot, r)| Some((slot, r.state().owner()?))).collect()
    }

    /// Every request forgets what the models had computed; those that are at one of them, or wait for it, leave, in
    /// order.
    fn leave_lost(&mut self, taken: ModelSet) {
        let mut leaving = Vec::new();
        let slots: Vec<usize> = self.table.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let request = self.table.at_mut(slot);
            taken.iter().for_each(|model| request.watermarks[model.index()] = 0);
            let next = request.resume.unwrap_or(request.entry);
            let waits = (request.state() == State::Waiting).then_some(next);
            match request.state().owner().or(waits) {
                Some(at) if taken.contains(at) => leaving.push((slot, at)),
                Some(at) if waits.is_none() => self.count_visits(slot, at),
                _ => {}
            }
        }
        // An order without ties: whether a is before b.
        leaving.sort_unstable_by(|&(a, _), &(b, _)| {
            let (a, b) = (self.table.at(a), self.table.at(b));
            b.is_before(a).cmp(&a.is_before(b))
        });
        for (slot, from) in leaving {
            self.displace(slot, from);
        }
    }

    /// The model that has the request, or for which it waits, is lost.
    fn displace(&mut self, slot: usize, from: ModelId) {
        let request = self.table.at_mut(slot);
        request.displaced += 1;
        let request = self.table.at(slot);
        let entry = route_of(&self.routes, request.route).entry;
        // What a model has said about a part of a prompt, no other goes on with.
        let begun = request.is_scoring() && !request.visited.is_empty();
        let within = request.displaced <= MAX_DISPLACED && !begun;
        let allowed = |to: &ModelId| within && (*to == entry || allows_another(request, entry));
        let Some(to) = self.remaining(request.route).filter(allowed) else {
            let kind = FailKind::ModelLost { model: from };
            return self.finish(slot, FinishReason::Failed(kind), false);
        };
        let id = self.table.id(slot);
        let (request, links) = self.table.at_mut_linked(slot);
        request.account.degrade();
        let state = request.state();
        if state == State::Waiting && request.resume.is_none() {
            request.entry = to;
            return;
        }
        let router = &*route_of(&self.routes, request.route).router;
        arrive_instead(router, id, (from, to), entry, request);
        self.handoffs[from.index()][to.index()] += 1;
        if state == State::Waiting {
            request.resume = Some(to);
            return;
        }
        match state {
            State::Ready(_) => self.subservers[from.index()].queue.remove(links, slot),
            _ => {
                self.subservers[from.index()].running -= 1;
                request.handed_at = Some(self.now);
            }
        }
        self.subservers[from.index()].pending += 1;
        self.subservers[to.index()].pending -= usize::from(request.visited.contains(to));
        request.visited.insert(to);
        request.cut = false;
        request.enter(self.now, State::Ready(to));
        self.subservers[to.index()].queue.push_back(links, slot);
        self.count_visits(slot, to);
    }
}
