//! The event loop: completions, clients, then one decision, as in the rank loop.

use super::agenda::Agenda;
use super::clients::Clients;
use super::device::Device;
use super::report::{Meter, Report};
use super::spec::ServingSpec;
use crate::contention::Contention;
use crate::core::Core;
use crate::event::{Effect, RowResult};
use crate::ids::{ModelId, Nanos};
use crate::planner::PlanReply;
use crate::router::Router;
use crate::sim::run::SimError;

/// Turns in a row without a token after which a run counts as stuck.
const MOST_IDLE_TURNS: u64 = 1_000_000;

/// Simulates a service and measures it; [`crate::RouteId`] `i` is `routes[i]`. A pure function of its arguments.
///
/// # Errors
/// When the spec is not possible, nothing is written any more, the run ends within its warm-up, or an invariant is
/// broken: a second terminal, a token after it, pages that are missing at the end.
pub fn serve(spec: &ServingSpec, routes: Vec<Box<dyn Router>>) -> Result<Report, SimError> {
    let mut run = Run::new(spec, routes)?;
    let mut now = 0;
    loop {
        run.turn(now)?;
        match run.next_time().filter(|_| !run.is_done()) {
            Some(next) if spec.length.time.is_none_or(|end| next <= end) => now = next,
            Some(_) => return run.finish(spec.length.time.unwrap_or(now)),
            None => return run.finish(now),
        }
    }
}

pub(super) struct Run<'a> {
    pub(super) spec: &'a ServingSpec,
    pub(super) core: Core,
    pub(super) clock: Contention,
    pub(super) devices: Vec<Device<'a>>,
    pub(super) agenda: Agenda,
    pub(super) clients: Clients<'a>,
    pub(super) meter: Meter,
    /// Whether the warm-up is over.
    pub(super) measuring: bool,
    /// Tokens committed so far.
    pub(super) tokens: u64,
    routes: usize,
    idle_turns: u64,
    results: Vec<RowResult>,
    inbox: Vec<Effect>,
    /// A plan on its way, and when it arrives.
    reply: Option<(Nanos, PlanReply)>,
}

impl<'a> Run<'a> {
    fn new(spec: &'a ServingSpec, routes: Vec<Box<dyn Router>>) -> Result<Self, SimError> {
        let mut config = spec.config.clone();
        config.eos_ids = vec![super::source::EOS];
        let (models, route_count) = (config.models.len(), routes.len());
        if spec.devices.len() != models {
            return SimError::new(format!("{} devices for {models} models", spec.devices.len()));
        }
        let core = Core::new(config, routes).map_err(|e| SimError(e.to_string()))?.measured(&spec.measured);
        spec.phase.set(0);
        let slowdown: Vec<f64> = spec.devices.iter().map(|d| d.slowdown).collect();
        let devices = spec.devices.iter().enumerate().map(|(i, d)| Device::new(d, i, spec.seed)).collect();
        let mut agenda = Agenda::default();
        let clients = Clients::new(spec, core.slot_capacity(), &mut agenda);
        Ok(Self {
            clock: Contention::new(&slowdown),
            devices,
            agenda,
            clients,
            meter: Meter::begin(0, models, route_count, core.counters()),
            measuring: spec.length.warm_up == 0,
            tokens: 0,
            routes: route_count,
            idle_turns: 0,
            results: Vec::new(),
            inbox: Vec::new(),
            reply: None,
            core,
            spec,
        })
    }

    /// One turn: completions (the larger models first), what clients do about them and on their own, the planner,
    /// the decision.
    fn turn(&mut self, now: Nanos) -> Result<(), SimError> {
        let before = self.tokens;
        self.land(now)?;
        self.absorb(now)?;
        while let Some(item) = self.agenda.take(now) {
            self.happen(now, item)?;
            self.absorb(now)?;
            self.audit();
        }
        self.plan(now);
        for model in self.core.launch(now).iter() {
            self.start(model, now);
        }
        self.audit();
        self.absorb(now)?;
        self.note_admissions(now);
        if !self.measuring && self.tokens >= self.spec.length.warm_up {
            self.measuring = true;
            let models = self.devices.len();
            self.meter = Meter::begin(now, models, self.routes, self.core.counters());
        }
        self.idle_turns = if self.tokens > before { 0 } else { self.idle_turns + 1 };
        if self.idle_turns > MOST_IDLE_TURNS {
            return SimError::new(format!("no token was written in {MOST_IDLE_TURNS} turns"));
        }
        Ok(())
    }

    /// The online planner's turn: an answer that has arrived is delivered, and a job that is due is begun; its answer
    /// arrives after a virtual delay.
    fn plan(&mut self, now: Nanos) {
        if let Some((_, reply)) = self.reply.take_if(|(at, _)| *at <= now) {
            self.core.plan_done(reply);
        }
        if let Some(job) = self.core.plan_due() {
            self.reply = Some((now + self.spec.planning_time, job.run()));
        }
    }

    /// Ends the steps that are over.
    fn land(&mut self, now: Nanos) -> Result<(), SimError> {
        for model in (0..self.devices.len()).rev() {
            let over = if self.clock.finish(model, now) {
                self.devices[model].held = self.devices[model].stalled(now);
                self.devices[model].held.is_none()
            } else {
                self.devices[model].held.is_some_and(|until| until <= now)
            };
            if over {
                self.complete(now, model)?;
                self.audit();
            }
        }
        Ok(())
    }

    fn complete(&mut self, now: Nanos, model: usize) -> Result<(), SimError> {
        let id = ModelId(model as u8);
        let device = &mut self.devices[model];
        device.held = None;
        if let Some(since) = device.since.take() {
            self.meter.busy(model, since, now);
        }
        let rows = self.core.batch(id).map_or(&[][..], |b| &b.rows);
        self.results.clear();
        for row in rows {
            let record = self.clients.of_slot(row.request.slot());
            record.ready_since = now;
            let position = (row.start + row.len) as usize;
            self.results.push(device.result(record.seed, position, record.end));
        }
        if device.fails(now) {
            self.meter.report.models[model].failed_steps += 1;
            self.core.complete_failed(now, id, "the virtual device failed");
            return Ok(());
        }
        self.core.complete(now, id, &self.results).map_err(|e| SimError(e.to_string()))
    }

    fn start(&mut self, model: ModelId, now: Nanos) {
        let Some(batch) = self.core.batch(model) else { return };
        let index = model.index();
        let cut = batch.rows.iter().filter(|r| !r.samples).count() as u64;
        self.meter.step(index, batch.rows.len(), batch.fed_tokens, cut);
        for row in &batch.rows {
            let waited = now - self.clients.of_slot(row.request.slot()).ready_since.min(now);
            self.meter.waits[index].add(waited);
        }
        let parts = self.spec.devices[index].sharing.parts(batch.fed_tokens);
        let work = self.devices[index].start(batch, now);
        self.clock.start(index, work, parts, now);
    }

    /// Books all effects; what clients do about them has effects of its own.
    fn absorb(&mut self, now: Nanos) -> Result<(), SimError> {
        let mut inbox = std::mem::take(&mut self.inbox);
        loop {
            inbox.extend(self.core.drain_effects());
            if inbox.is_empty() {
                break;
            }
            for effect in inbox.drain(..) {
                self.receive(now, effect)?;
            }
        }
        self.inbox = inbox;
        Ok(())
    }

    fn audit(&self) {
        if self.spec.audit {
            self.core.audit();
        }
    }

    fn is_done(&self) -> bool {
        self.measuring && self.spec.length.tokens.is_some_and(|tokens| self.meter.report.tokens >= tokens)
    }

    fn next_time(&mut self) -> Option<Nanos> {
        let clients = &self.clients;
        self.agenda.skip_while(|item| clients.is_stale(item));
        let held = self.devices.iter().filter_map(|d| d.held);
        let planned = self.reply.as_ref().map(|(at, _)| *at);
        held.chain(self.clock.next()).chain(self.agenda.next()).chain(self.core.wake()).chain(planned).min()
    }

    /// Reads the instruments, ends what is left, and checks that nothing is lost.
    fn finish(mut self, now: Nanos) -> Result<Report, SimError> {
        if !self.measuring {
            let (tokens, warm_up) = (self.tokens, self.spec.length.warm_up);
            return SimError::new(format!(
                "the run ended after {tokens} tokens, within its warm-up of {warm_up}"
            ));
        }
        for (model, device) in self.devices.iter().enumerate() {
            if let Some(since) = device.since {
                self.meter.busy(model, since, now);
            }
        }
        let models = self.devices.len();
        let empty = Meter::begin(now, models, self.routes, self.core.counters());
        let mut report = std::mem::replace(&mut self.meter, empty).end(now, &self.core.counters());
        report.planner = self.core.planner_status();
        self.clients.close();
        for id in self.clients.live() {
            self.core.cancel(now, id);
        }
        let mut end = now;
        self.absorb(end)?;
        while let Some(next) = self.devices.iter().filter_map(|d| d.held).chain(self.clock.next()).min() {
            end = next;
            self.land(end)?;
            self.absorb(end)?;
        }
        self.settle()?;
        Ok(report)
    }

    /// One terminal per request, and all pages back.
    fn settle(&self) -> Result<(), SimError> {
        let counters = self.core.counters();
        let pages = counters.pages;
        let runs = (0..self.devices.len()).any(|model| self.clock.is_busy(model));
        if runs || !self.core.idle() || self.clients.live().next().is_some() {
            return SimError::new(format!("requests are left at the end: {counters:?}"));
        }
        if pages.free + pages.cached != self.spec.config.pages {
            return SimError::new(format!("pages are missing at the end: {pages:?}"));
        }
        if counters.terminals.total() != counters.submitted {
            return SimError::new(format!("terminals are missing at the end: {counters:?}"));
        }
        Ok(())
    }
}
