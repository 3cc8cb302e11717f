//! Routers whose behaviour changes while a simulation runs.

use crate::ids::{ModelId, ModelSet};
use crate::router::{
    EntryRow, Payload, ReachRow, ReceiveRow, RouteRow, Router, SignalSet, StepView, Verdict, Visit,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which of its routers a [`SwitchRouter`] follows now. Clones share it, and so do clones of a spec: runs at the same
/// time need a phase each.
#[derive(Clone, Debug, Default)]
pub struct Phase(Arc<AtomicUsize>);

impl Phase {
    /// Changes it.
    pub(super) fn set(&self, phase: usize) {
        self.0.store(phase, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Several routers, of which one at a time decides: the traffic of a service changes. A router that serves must not do
/// this, since its answers would depend on when they were asked for.
pub struct SwitchRouter {
    routers: Vec<Box<dyn Router>>,
    phase: Phase,
}

impl SwitchRouter {
    /// Follows the first of `routers`, then the one that `phase` names (the last one beyond). All must start at one
    /// model. `None` without a router.
    pub fn new(routers: Vec<Box<dyn Router>>, phase: Phase) -> Option<Self> {
        (!routers.is_empty()).then_some(Self { routers, phase })
    }

    fn now(&self) -> &dyn Router {
        // `new` refuses an empty list.
        &*self.routers[self.phase.get().min(self.routers.len() - 1)]
    }
}

impl Router for SwitchRouter {
    fn name(&self) -> &str {
        "switch"
    }

    fn signals(&self) -> SignalSet {
        self.routers.iter().fold(SignalSet::NONE, |set, r| set.union(r.signals()))
    }

    fn entry(&self) -> ModelId {
        self.routers[0].entry()
    }

    fn reach(&self) -> ModelSet {
        self.routers.iter().fold(ModelSet::EMPTY, |set, r| set.union(r.reach()))
    }

    fn signals_at(&self, model: ModelId) -> SignalSet {
        self.routers.iter().fold(SignalSet::NONE, |set, r| set.union(r.signals_at(model)))
    }

    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        self.now().entry_for(row)
    }

    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        self.now().may_visit(row)
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        self.now().route(step, to);
    }

    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        self.now().send(row, to, payload)
    }

    fn receive(&self, row: &ReceiveRow, from: ModelId, payload: &Payload, visit: &mut Visit) {
        self.now().receive(row, from, payload, visit);
    }
}
