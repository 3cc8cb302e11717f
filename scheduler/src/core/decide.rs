//! From the state to a decision: what the policy sees, who may still come, when the guard is over.

use super::{Core, Route};
use crate::estimate::Spent;
use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos};
use crate::policy::{ModelView, Plan, PolicyError};
use crate::request::{Request, State};
use crate::router::ReachRow;
use crate::subserver::Subserver;

/// The guard is at least this many steps of every model. A request legitimately waits many steps of the small model
/// for its companions: at p = 0.35 and two requests, 8 rounds of 6 + 27.9 ms are 45 steps, and a wait beyond has a
/// chance of 4e-9; two rounds would fire once in a hundred waits.
const GUARD_ROUNDS: u64 = 8;

impl Route {
    /// The models that a request which stands at `at` may still visit, `at` included: none of `lost`.
    pub(super) fn open_to(&self, request: &Request, at: ModelId, lost: ModelSet) -> ModelSet {
        // The one model of a route is not asked for.
        if self.reach == ModelSet::of(at) {
            return self.reach;
        }
        let row = ReachRow {
            model: at,
            generated: request.generated(),
            threshold: request.threshold,
            budget: request.budget,
            max_new_tokens: request.max_new_tokens,
            visit: request.visit,
            usage: request.account.usage(),
        };
        self.router.may_visit(&row).intersection(self.reach).without(lost).union(ModelSet::of(at))
    }
}

impl Core {
    /// Installs a policy and the numbers it predicts with; the next [`Core::launch`] decides by it. On an error
    /// nothing has changed.
    pub fn set_plan(&mut self, plan: Plan) -> Result<(), PolicyError> {
        let models = self.subservers.len();
        plan.policy.check(models)?;
        plan.inputs.check(models)?;
        self.config.policy = plan.policy;
        self.inputs = plan.inputs;
        self.epoch = true;
        Ok(())
    }

    /// An admitted request stands at `at`: counts it at every model it may still visit.
    pub(super) fn count_visits(&mut self, slot: usize, at: ModelId) {
        let request = self.table.at(slot);
        let open = super::route_of(&self.routes, request.route).open_to(request, at, self.lost);
        self.set_visits(slot, open);
    }

    /// The request is not admitted any more.
    pub(super) fn forget_visits(&mut self, slot: usize) {
        self.set_visits(slot, ModelSet::EMPTY);
    }

    /// Where the request may go has changed. [`Route::open_to`] says it at admission and whenever it was routed.
    pub(super) fn set_visits(&mut self, slot: usize, open: ModelSet) {
        let request = self.table.at_mut(slot);
        let before = std::mem::replace(&mut request.may_visit, open);
        self.routed += usize::from(open.len() > 1);
        self.routed -= usize::from(before.len() > 1);
        for model in before.without(open).iter() {
            self.visitors[model.index()] -= 1;
        }
        for model in open.without(before).iter() {
            self.visitors[model.index()] += 1;
        }
    }

    /// The usual step time of a model: the plan's for one row, or the estimate.
    fn step_time(&self, model: ModelId) -> Option<Nanos> {
        match self.inputs.latency.get(model.index()) {
            Some(table) => Some(table.at(1)),
            None => self.estimates.steps(model).usual(),
        }
    }

    /// The predicted time of a step: the plan's by rows, or the estimate by fed tokens.
    fn step_time_of(&self, model: ModelId, rows: usize, fed: usize) -> Option<Nanos> {
        match self.inputs.latency.get(model.index()) {
            Some(table) => Some(table.at(rows)),
            None => self.estimates.latency(model, fed),
        }
    }

    /// The part of a step alone that was done in the time spent: beside others the plan's slowdown counts, or the
    /// estimate.
    fn work_done(&self, model: ModelId, spent: Spent) -> Nanos {
        match self.inputs.slowdown.get(model.index()) {
            Some(slowdown) => spent.alone + (spent.beside as f64 / slowdown) as Nanos,
            None => self.estimates.steps(model).done(spent),
        }
    }

    /// The time after which an idle model with a ready request launches whatever the policy says: as configured, but
    /// never less than [`GUARD_ROUNDS`]. A short one would turn delayed batching back into eager.
    pub(super) fn guard_time(&self) -> Nanos {
        let longest = |sub: &Subserver| {
            let running = sub.batch().and_then(|b| self.step_time_of(sub.model, b.rows.len(), b.fed_tokens));
            running.max(self.step_time(sub.model)).unwrap_or(0)
        };
        let there = self.subservers.iter().filter(|sub| !self.lost.contains(sub.model));
        let round: Nanos = there.map(longest).sum();
        self.config.guard.max(round.saturating_mul(GUARD_ROUNDS))
    }

    /// What the policy sees of a model now; what will be, if it `predicts`.
    pub(super) fn view(&self, sub: &Subserver, now: Nanos, predicts: bool, view: &mut ModelView) {
        let front = sub.queue.front().map(|slot| self.table.at(slot));
        *view = ModelView {
            ready: sub.queue.len(),
            busy: sub.is_busy(),
            visitors: self.visitors[sub.model.index()],
            cut: front.is_some_and(|r| r.cut),
            full: sub.queue.len() >= sub.most_rows(),
            overdue: sub.stalled_since.is_some_and(|since| self.is_overdue(since, now)),
            last_launch: sub.last_launch(),
            step: self.step_time(sub.model),
            ..ModelView::default()
        };
        if predicts {
            self.predict(sub, now, view);
        }
    }

    /// Whether a model that is idle with a ready request since then has waited for the guard time.
    fn is_overdue(&self, since: Nanos, now: Nanos) -> bool {
        let waited = now.saturating_sub(since);
        waited >= self.config.guard && waited >= self.guard_time()
    }

    /// When the batch in flight (or a batch of the queue) ends, and what it is expected to send where.
    fn predict(&self, sub: &Subserver, now: Nanos, view: &mut ModelView) {
        let mut rows_to = [0u32; MAX_MODELS];
        view.ends_in = if let Some(batch) = sub.batch() {
            rows_to = sub.goes_to;
            let whole = self.step_time_of(sub.model, batch.rows.len(), batch.fed_tokens);
            let spent = self.overlap.spent(sub.model, now);
            whole.map(|t| t.saturating_sub(self.work_done(sub.model, spent)))
        } else {
            let rows = sub.queue.len().min(sub.most_rows());
            let mut fed = 0;
            for slot in sub.queue.iter(&self.table.links).take(rows) {
                let request = self.table.at(slot);
                fed += request.tokens.len() - request.watermarks[sub.model.index()] as usize;
                request.may_visit.iter().for_each(|model| rows_to[model.index()] += 1);
            }
            self.step_time_of(sub.model, rows, fed.min(sub.limits.max_step_tokens))
        };
        for (to, sends) in view.sends.iter_mut().enumerate().take(self.subservers.len()) {
            if rows_to[to] > 0 {
                *sends = self.share(sub.model, ModelId(to as u8)) * f64::from(rows_to[to]);
            }
        }
    }

    /// Per model: the rows of the batch in flight of `from` that may send their request there. A cut row routes
    /// nothing; a request that is over goes nowhere.
    pub(super) fn count_destinations(&self, from: ModelId) -> [u32; MAX_MODELS] {
        let mut rows_to = [0; MAX_MODELS];
        let batch = self.batch(from).map_or(&[][..], |batch| &batch.rows);
        for row in batch.iter().filter(|row| row.samples) {
            let request = self.table.at(row.request.slot());
            if request.state() == State::Running(from) {
                request.may_visit.iter().for_each(|model| rows_to[model.index()] += 1);
            }
        }
        rows_to
    }

    /// P: the plan's, or the estimate.
    fn share(&self, from: ModelId, to: ModelId) -> f64 {
        let row = self.inputs.routing.get(from.index());
        match row.and_then(|row| row.get(to.index())) {
            Some(&p) => p,
            None => self.estimates.share(from, to),
        }
    }
}
