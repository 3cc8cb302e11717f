//! The state machine: requests, subservers and pages, and every way they change.

mod apart;
mod audit;
mod complete;
mod decide;
mod form;
mod lose;
mod memory;
mod plan;
#[cfg(test)]
pub(crate) mod planted;
pub(crate) mod standing;
mod terms;

use crate::config::{ConfigError, CoreConfig, NewRequest, PeerLoss, SubmitError};
use crate::effects::{DrainEffects, Effects};
use crate::estimate::{Estimates, Overlap};
use crate::event::{Batch, FinishReason, Row};
use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos, PAGE_TOKENS, PageId, RequestId, RouteId};
use crate::ledger::{Ledger, Terminals};
use crate::pages::{PageCounts, Pages, pages_for};
use crate::pilot::Pilot;
use crate::policy::{ModelView, PolicyInputs, decide};
use crate::queue::Queue;
use crate::request::{Request, State, Table};
use crate::router::{Budgeted, Router, SignalSet, Terms};
use crate::subserver::Subserver;
use complete::Scratch;
use terms::Learner;

/// Counts of everything, kept in constant time per event. Arrays are per model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests accepted since the start.
    pub submitted: u64,
    /// Requests waiting for admission.
    pub waiting: usize,
    /// Admitted requests that have not ended.
    pub admitted: usize,
    /// Requests in each model's queue.
    pub ready: [usize; MAX_MODELS],
    /// Requests in each model's batch in flight that have not ended.
    pub running: [usize; MAX_MODELS],
    /// Admitted requests that have visited the model and are owned by another.
    pub pending: [usize; MAX_MODELS],
    /// Joint pages.
    pub pages: PageCounts,
    /// Ended requests.
    pub terminals: Terminals,
    /// Handoffs, `[from][to]`.
    pub handoffs: [[u64; MAX_MODELS]; MAX_MODELS],
    /// Those of them at which the candidate was dropped, so that the other model writes that position.
    pub drops: [[u64; MAX_MODELS]; MAX_MODELS],
    /// Batches launched.
    pub launches: [u64; MAX_MODELS],
    /// Launches that happened only because the guard time had passed.
    pub guard_launches: u64,
    /// Requests that lost their pages to one before them.
    pub preemptions: u64,
}

/// A configured route: a router and what it promised at the start.
struct Route {
    router: Box<dyn Router>,
    entry: ModelId,
    reach: ModelSet,
    learner: Learner,
}

/// The scheduler of one process. See the crate's documentation for the order of calls.
///
/// A request is admitted with the pages of its tokens and takes further ones at launch, when a row needs them; a
/// handoff takes none. When there is none, the last request in order gives its pages up and waits again.
pub struct Core {
    config: CoreConfig,
    routes: Vec<Route>,
    table: Table,
    waiting: Queue,
    subservers: Vec<Subserver>,
    pages: Pages,
    ledger: Ledger,
    effects: Effects,
    scratch: Scratch,
    admitted: usize,
    handoffs: [[u64; MAX_MODELS]; MAX_MODELS],
    drops: [[u64; MAX_MODELS]; MAX_MODELS],
    guard_launches: u64,
    preemptions: u64,
    /// The first in order of the admitted requests that lack a page.
    hungry: Option<RequestId>,
    /// The request that was not admitted last, and the pages that were available then: with no more it is not tried.
    refused: Option<(RequestId, usize)>,
    last_seq: u64,
    /// The time of the call in progress.
    now: Nanos,
    /// Admitted requests that may still visit each model.
    visitors: [usize; MAX_MODELS],
    estimates: Estimates,
    overlap: Overlap,
    inputs: PolicyInputs,
    /// The online planner, if one is configured.
    pilot: Option<Box<Pilot>>,
    /// Per model: those that never run beside it.
    apart: [ModelSet; MAX_MODELS],
    /// Models that take no steps.
    lost: ModelSet,
    /// What becomes of those who need them.
    on_loss: PeerLoss,
    /// Admitted requests that may visit more than one model.
    routed: usize,
    /// Something has changed since the last decision.
    epoch: bool,
    /// What the policy saw at the last decision; kept for its room.
    views: Vec<ModelView>,
    #[cfg(test)]
    pub(crate) planted: Option<planted::Planted>,
}

impl Core {
    /// Builds a core; [`RouteId`] `i` is `routes[i]`.
    pub fn new(config: CoreConfig, routes: Vec<Box<dyn Router>>) -> Result<Self, ConfigError> {
        config.check()?;
        if routes.is_empty() || routes.len() > usize::from(u16::MAX) {
            return Err(ConfigError::Routes(routes.len()));
        }
        let routes = routes
            .into_iter()
            .map(|router| check_route(router, config.models.len()))
            .collect::<Result<Vec<_>, _>>()?;
        let subservers: Vec<Subserver> = config
            .models
            .iter()
            .enumerate()
            .map(|(i, &limits)| Subserver::new(ModelId(i as u8), limits, config.max_running))
            .collect();
        // A request that ended in flight keeps its slot until its batch lands, so rows in flight count too.
        let in_flight: usize = config
            .models
            .iter()
            .map(|m| m.max_batch_rows.min(m.max_step_tokens).min(config.max_running))
            .sum();
        let capacity = config.max_waiting.saturating_add(config.max_running).saturating_add(in_flight);
        let most_rows =
            config.models.iter().map(|m| m.max_batch_rows.min(config.max_running)).max().unwrap_or(0);
        Ok(Self {
            table: Table::new(capacity),
            waiting: Queue::default(),
            subservers,
            pages: Pages::new(config.pages, config.models.len()),
            ledger: Ledger::default(),
            effects: Effects::with_capacity(2 * in_flight),
            scratch: Scratch::new(most_rows),
            admitted: 0,
            handoffs: [[0; MAX_MODELS]; MAX_MODELS],
            drops: [[0; MAX_MODELS]; MAX_MODELS],
            guard_launches: 0,
            preemptions: 0,
            hungry: None,
            refused: None,
            last_seq: 0,
            now: 0,
            visitors: [0; MAX_MODELS],
            estimates: Estimates::new(config.models.len()),
            overlap: Overlap::default(),
            inputs: PolicyInputs::default(),
            pilot: config.planner.map(|planner| Box::new(Pilot::new(planner))),
            apart: [ModelSet::EMPTY; MAX_MODELS],
            lost: ModelSet::EMPTY,
            on_loss: PeerLoss::Fail,
            routed: 0,
            epoch: false,
            views: vec![ModelView::default(); config.models.len()],
            #[cfg(test)]
            planted: None,
            config,
            routes,
        })
    }

    /// Accepts a request, or says why not. It waits until a [`Core::launch`] admits it.
    pub fn submit(&mut self, now: Nanos, new: NewRequest) -> Result<RequestId, SubmitError> {
        self.now = now;
        let (terms, wanted) = self.check(&new)?;
        let entry = self.start_at(new.route, terms, wanted)?;
        if self.waiting.len() >= self.config.max_waiting {
            // Many may arrive in one turn: the ones that fit need not wait for its end.
            self.admit();
            self.note_stalls(now);
        }
        if self.waiting.len() >= self.config.max_waiting {
            return Err(SubmitError::QueueFull { waiting: self.waiting.len() });
        }
        self.spend(&new, terms);
        let mut account = self.ledger.open(now, new.prompt.len() as u32, terms);
        if entry != wanted {
            account.degrade();
        }
        let id = self.table.insert(Request::new(new, entry, account, self.ledger.opened));
        self.enqueue(id.slot());
        Ok(id)
    }

    /// The terms of a request and where it starts, unless it is refused.
    fn check(&self, new: &NewRequest) -> Result<(Terms, ModelId), SubmitError> {
        let &NewRequest { max_new_tokens, min_tokens, route, .. } = new;
        if new.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if max_new_tokens == 0 && !new.score_prompt {
            return Err(SubmitError::NothingToWrite);
        }
        if usize::from(route.0) >= self.routes.len() {
            return Err(SubmitError::UnknownRoute { route, routes: self.routes.len() });
        }
        if min_tokens > max_new_tokens {
            return Err(SubmitError::MinTokens { min_tokens, max_new_tokens });
        }
        let terms = route_of(&self.routes, route).settle_terms(new)?;
        let tokens = new.prompt.len().saturating_add(max_new_tokens as usize);
        let context_len = self.config.context_len;
        if tokens > context_len {
            return Err(SubmitError::ContextExceeded {
                prompt: new.prompt.len(),
                max_new_tokens,
                context_len,
            });
        }
        if pages_for(tokens) > self.pages.total() {
            return Err(SubmitError::CapacityExceeded { tokens, capacity: self.pages.total() * PAGE_TOKENS });
        }
        Ok(terms)
    }

    /// Ends a request, in whatever state it is; its work in flight is ignored when it lands. False (and no effect)
    /// for an id that is stale or already over.
    pub fn cancel(&mut self, now: Nanos, id: RequestId) -> bool {
        self.end(now, id, None)
    }

    /// Ends a request of which only the first `committed_len` tokens of the answer count (all, when there are not
    /// that many). Otherwise as [`Core::cancel`], with the terminal `Stop` and usage cut to those tokens.
    pub fn stop(&mut self, now: Nanos, id: RequestId, committed_len: u32) -> bool {
        self.end(now, id, Some(committed_len))
    }

    fn end(&mut self, now: Nanos, id: RequestId, stop_at: Option<u32>) -> bool {
        let Some(request) = self.table.get(id).filter(|r| r.state() != State::Finished) else { return false };
        self.now = now;
        let named = matches!(request.state(), State::Running(_));
        let reason = match stop_at {
            None => FinishReason::Cancelled,
            Some(committed_len) => {
                self.table.at_mut(id.slot()).count_only(committed_len as usize);
                FinishReason::Stop
            }
        };
        self.finish(id.slot(), reason, named);
        self.note_stalls(now);
        true
    }

    /// Admits what fits, asks the policy, and puts batches in flight. Returns the models that launched; look at
    /// [`Core::batch`] for each. Call it once per turn, after every event of the turn was delivered. Launches are
    /// numbered from the largest model index down.
    pub fn launch(&mut self, now: Nanos) -> ModelSet {
        self.now = now;
        self.feed_hungry();
        self.admit();
        self.note_stalls(now);
        // Between two events nothing can be learned, so nothing is decided; only the guard can run out.
        if !self.epoch && self.wake().is_none_or(|at| at > now) {
            return ModelSet::EMPTY;
        }
        self.epoch = false;
        let mut views = std::mem::take(&mut self.views);
        let policy = self.policy();
        let (predicts, busy) = (policy.predicts(), self.busy());
        for (view, sub) in views.iter_mut().zip(&self.subservers) {
            self.view(sub, now, predicts, view);
            view.blocked = self.is_blocked(sub.model, busy);
        }
        let decision = decide(policy, &views);
        self.views = views;
        let mut launched = self.form_all(self.one_of_each(decision), now);
        if launched.is_empty() && !self.subservers.iter().any(Subserver::is_busy) {
            // Those the policy chose lack pages. The first in order does not: it takes them from the others.
            launched = self.form_all(ModelSet::first(self.subservers.len()), now);
        }
        self.guard_launches += decision.forced.iter().filter(|&m| launched.contains(m)).count() as u64;
        self.note_stalls(now);
        launched
    }

    /// Forms and launches batches; returns the models that have one.
    fn form_all(&mut self, models: ModelSet, now: Nanos) -> ModelSet {
        let mut launched = ModelSet::EMPTY;
        for model in models.iter().rev() {
            if self.is_blocked(model, launched) {
                continue;
            }
            if self.form(model, now) {
                launched.insert(model);
            } else {
                self.subservers[model.index()].rest(now);
            }
        }
        launched
    }

    /// Gives the request its terminal and takes it out of everything that refers to it. `named`: a batch in flight
    /// still names it, so its slot and pages stay until the batch lands.
    fn finish(&mut self, slot: usize, reason: FinishReason, named: bool) {
        let id = self.table.id(slot);
        let request = self.table.at_mut(slot);
        let state = request.state();
        self.settle_published(slot, &reason);
        let request = self.table.at_mut(slot);
        request.enter(self.now, State::Finished);
        let usage = self.ledger.close(self.now, &mut request.account, &reason);
        let (route, max_new_tokens) = (request.route, request.max_new_tokens);
        self.settle_purse(route, max_new_tokens, &usage);
        let request = self.table.at(slot);
        self.effects.terminal(id, request.client, reason, usage);
        #[cfg(test)]
        self.plant_second_terminal();
        self.forget_visits(slot);
        self.epoch = true;
        let links = &mut self.table.links;
        match state {
            State::Waiting => self.waiting.remove(links, slot),
            State::Ready(owner) => self.subservers[owner.index()].queue.remove(links, slot),
            State::Running(owner) => {
                self.subservers[owner.index()].running -= 1;
                self.subservers[owner.index()].goes_to = self.count_destinations(owner);
            }
            State::Finished => {}
        }
        if let Some(owner) = state.owner() {
            self.leave(owner, self.table.at(slot).visited);
        }
        #[cfg(test)]
        self.plant_lost_page(slot);
        let request = self.table.at(slot);
        if named {
            self.pages.defer(&request.pages);
        } else {
            self.pages.release(&request.pages);
            self.table.remove(slot);
        }
    }

    fn note_stalls(&mut self, now: Nanos) {
        let busy = self.busy();
        for (sub, apart) in self.subservers.iter_mut().zip(&self.apart) {
            sub.note_stall(now, !apart.intersection(busy).is_empty());
        }
    }

    /// The batch a model has in flight.
    pub fn batch(&self, model: ModelId) -> Option<&Batch> {
        self.subservers.get(model.index())?.batch()
    }

    /// When [`Core::launch`] must be called at the latest even if nothing happens; `None` when only an event can
    /// make a difference.
    pub fn wake(&self) -> Option<Nanos> {
        let stalls = self.subservers.iter().filter_map(|sub| sub.stalled_since);
        stalls.min().map(|since| since.saturating_add(self.guard_time()))
    }

    /// Takes the effects since the last call, in order. The buffer is kept.
    pub fn drain_effects(&mut self) -> DrainEffects<'_> {
        self.effects.drain()
    }

    /// Prompt and committed tokens; empty for a stale id. Valid for every row of a batch in flight.
    pub fn tokens(&self, id: RequestId) -> &[u32] {
        self.table.get(id).map_or(&[], |r| &r.tokens)
    }

    /// Tokens of the prompt; 0 for a stale id.
    pub fn prompt_len(&self, id: RequestId) -> usize {
        self.table.get(id).map_or(0, |r| r.prompt_len as usize)
    }

    /// The part of a row in which the model says for the first time what it thinks of tokens of a prompt that is scored:
    /// these positions, fed by this row, come before a token of the prompt. Empty for other requests and models, and for a
    /// stale id.
    pub fn scored(&self, row: &Row, model: ModelId) -> std::ops::Range<usize> {
        let Some(request) = self.table.get(row.request).filter(|r| r.score_prompt && r.entry == model) else {
            return 0..0;
        };
        let from = row.start.max(request.high_water[model.index()]) as usize;
        let to = (row.start + row.len).min(request.prompt_len - 1) as usize;
        from..to.max(from)
    }

    /// The page table, in order of positions; empty while the request waits and for a stale id.
    pub fn pages(&self, id: RequestId) -> &[PageId] {
        self.table.get(id).map_or(&[], |r| &r.pages)
    }

    /// Every request slot stays below this.
    pub fn slot_capacity(&self) -> usize {
        self.table.capacity()
    }

    /// The signals that steps of a model must compute: what the routers that reach it read.
    pub fn signals(&self, model: ModelId) -> SignalSet {
        let routes = self.routes.iter().filter(|r| r.reach.contains(model));
        routes.fold(SignalSet::NONE, |set, r| set.union(r.router.signals_at(model)))
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            submitted: self.ledger.opened,
            waiting: self.waiting.len(),
            admitted: self.admitted,
            pages: self.pages.counts(),
            terminals: self.ledger.closed,
            handoffs: self.handoffs,
            drops: self.drops,
            guard_launches: self.guard_launches,
            preemptions: self.preemptions,
            ..Counters::default()
        };
        for (i, sub) in self.subservers.iter().enumerate() {
            counters.ready[i] = sub.queue.len();
            counters.running[i] = sub.running;
            counters.pending[i] = sub.pending;
            counters.launches[i] = sub.launches;
        }
        counters
    }

    /// Whether nothing is waiting, admitted or in flight.
    pub fn idle(&self) -> bool {
        self.ledger.live() == 0 && !self.subservers.iter().any(Subserver::is_busy)
    }
}

fn check_route(router: Box<dyn Router>, models: usize) -> Result<Route, ConfigError> {
    // Every request may bring a budget, so somebody must keep it.
    let router = if router.keeps_budgets() { router } else { Box::new(Budgeted::new(router, None)) };
    let (entry, reach) = (router.entry(), router.reach());
    let unknown = reach.without(ModelSet::first(models));
    if !unknown.is_empty() {
        return Err(ConfigError::Reach { router: router.name().to_owned(), unknown, models });
    }
    if !reach.contains(entry) {
        return Err(ConfigError::Entry { router: router.name().to_owned(), entry });
    }
    let learner = Learner::of(&*router);
    Ok(Route { router, entry, reach, learner })
}

/// The route of a request, by index.
fn route_of(routes: &[Route], id: RouteId) -> &Route {
    &routes[usize::from(id.0)]
}
