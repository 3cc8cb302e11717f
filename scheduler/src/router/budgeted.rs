//! `max_llm_fraction` for any router: a wrapper that keeps the models beside the entry within a budget.
//!
//! Written with `route`, `send` and `receive` alone. How many tokens others have written travels in the last bytes of
//! the payload and lies in the last bytes of the visit's scratch; the wrapped router keeps to the bytes before them
//! ([`ROUTER_SCRATCH`], [`ROUTER_PAYLOAD`]), which the conformance kit checks. A step that would break the budget goes
//! to the entry model instead: the entry keeps its own candidate, R-Stitch's peer returns with its own kept, ME stays.

use super::{
    Budget, EntryRow, Gauge, Online, Payload, ReachRow, ReceiveRow, RouteRow, Router, SignalSet, StepView,
    Terms, Threshold, Verdict, Visit,
};
use crate::ids::{ModelId, ModelSet};

/// Bytes of [`Visit::scratch`] that are a router's own; the rest belongs to [`Budgeted`].
pub const ROUTER_SCRATCH: usize = 12;
/// Bytes of [`Payload`] that are a router's own; the rest belongs to [`Budgeted`].
pub const ROUTER_PAYLOAD: usize = 60;

/// A router with a budget. Without one, of its own or of the request, it does what the wrapped router does.
pub struct Budgeted {
    inner: Box<dyn Router>,
    entry: ModelId,
    budget: Option<Budget>,
    online: Online,
}

impl Budgeted {
    /// Wraps `inner`. `budget` holds for every request; a request may tighten it, but not widen it.
    pub fn new(inner: Box<dyn Router>, budget: Option<Budget>) -> Self {
        Self { entry: inner.entry(), inner, budget, online: Online::default() }
    }

    /// With what the route learns while it serves.
    pub fn learning(self, online: Online) -> Self {
        Self { online, ..self }
    }

    /// The budget that binds a request.
    fn binding(&self, own: Option<Budget>) -> Option<Budget> {
        Budget::tighter(own, self.budget).filter(|&budget| budget < Budget::WHOLE)
    }

    /// Tokens by others before the candidate.
    fn others(&self, row: &RouteRow) -> u64 {
        let visit = &row.visit;
        let before = visit.scratch.last_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes));
        u64::from(before) + if row.model == self.entry { 0 } else { u64::from(visit.committed) }
    }

    /// Where the row may go, when the router wants it to go to `to`.
    fn within(&self, budget: Budget, row: &RouteRow, to: ModelId) -> ModelId {
        if to == self.entry {
            return to;
        }
        let kept = to == row.model || self.inner.send(row, to, &mut Payload::default()) == Verdict::Keep;
        let others = self.others(row) + u64::from(kept && row.model != self.entry);
        let committed = row.generated.saturating_add(u32::from(kept));
        if budget.allows(others, committed) { to } else { self.entry }
    }

    /// Whether the budget, not the router, sends the row to the entry.
    fn is_forced(&self, row: &RouteRow, to: ModelId) -> bool {
        if to != self.entry || row.model == self.entry {
            return false;
        }
        let mut wanted = [row.model];
        self.inner.route(&StepView { model: row.model, rows: std::slice::from_ref(row) }, &mut wanted);
        wanted != [to]
    }
}

impl Router for Budgeted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signals(&self) -> SignalSet {
        self.inner.signals()
    }

    fn signals_at(&self, model: ModelId) -> SignalSet {
        self.inner.signals_at(model)
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    /// Another model than the entry only when it may write the first token.
    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        let first = self.inner.entry_for(row)?;
        let binds = self.binding(row.budget).is_some_and(|budget| !budget.allows(0, 0));
        Some(if binds { self.entry } else { first })
    }

    fn reach(&self) -> ModelSet {
        self.inner.reach()
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let open = self.inner.may_visit(row);
        let Some(budget) = self.binding(row.budget) else { return open };
        let all: u64 = row.usage.committed.iter().map(|&n| u64::from(n)).sum();
        let own = row.usage.committed.get(self.entry.index()).copied().unwrap_or(0);
        let entry = ModelSet::of(self.entry);
        let spent = row.model == self.entry && !budget.is_open(all - u64::from(own), row.max_new_tokens);
        if spent { entry } else { open.union(entry) }
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        self.inner.route(step, to);
        for (row, to) in step.rows.iter().zip(to) {
            if let Some(budget) = self.binding(row.budget) {
                *to = self.within(budget, row, *to);
            }
        }
    }

    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        let wanted = self.inner.send(row, to, payload);
        if self.binding(row.budget).is_none() {
            return wanted;
        }
        // The candidate was within the budget, or its model would not have been asked for it.
        let verdict = if self.is_forced(row, to) { Verdict::Keep } else { wanted };
        let written = u64::from(row.model != self.entry && verdict == Verdict::Keep);
        let others = u32::try_from(self.others(row) + written).unwrap_or(u32::MAX);
        payload.0[ROUTER_PAYLOAD..].copy_from_slice(&others.to_le_bytes());
        verdict
    }

    fn receive(&self, row: &ReceiveRow, from: ModelId, payload: &Payload, visit: &mut Visit) {
        self.inner.receive(row, from, payload, visit);
        if self.binding(row.budget).is_some() {
            visit.scratch[ROUTER_SCRATCH..].copy_from_slice(&payload.0[ROUTER_PAYLOAD..]);
        }
    }

    fn accepts(&self, threshold: Threshold) -> bool {
        self.inner.accepts(threshold)
    }

    fn gauge(&self) -> Option<Gauge> {
        self.inner.gauge()
    }

    fn terms(&self) -> Terms {
        let inner = self.inner.terms();
        Terms { budget: Budget::tighter(inner.budget, self.budget), ..inner }
    }

    fn online(&self) -> Online {
        self.online
    }

    fn keeps_budgets(&self) -> bool {
        true
    }
}
