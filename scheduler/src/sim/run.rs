//! The event loop: deliver everything that has happened, then decide, as the rank loop does.

use super::coverage::{Coverage, Seen};
use super::device::Device;
use super::outage::Outages;
use super::scenario::{Action, Scenario, What};
use super::shadow::Shadow;
use crate::config::SubmitError;
use crate::core::{Core, Counters};
use crate::event::{Effect, FailKind, FinishReason, Usage};
use crate::ids::{ModelId, Nanos, PageId, RequestId};
use std::fmt;

/// Turns after which a run counts as stuck.
const MOST_TURNS: usize = 1_000_000;

/// What one request produced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// Committed tokens, as they were reported.
    pub tokens: Vec<u32>,
    /// Who wrote each.
    pub writers: Vec<ModelId>,
    /// How it ended; none while it runs, or when it was refused.
    pub reason: Option<FinishReason>,
    /// The account, from the terminal.
    pub usage: Usage,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// By client, the index in the scenario.
    pub streams: Vec<Stream>,
    /// The core's counters at the end.
    pub counters: Counters,
    /// Virtual time at the end.
    pub end: Nanos,
    /// What happened.
    pub coverage: Coverage,
}

/// A run that went wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimError(pub String);

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SimError {}

impl SimError {
    pub(super) fn new<T>(text: impl Into<String>) -> Result<T, Self> {
        Err(Self(text.into()))
    }
}

/// Runs a scenario to its end. [`Core::audit`] runs after every event and panics on a broken invariant; what only
/// the outside can see (two terminals, a token after the end, a stuck run) is an error.
pub fn run(scenario: &Scenario) -> Result<Outcome, SimError> {
    drive(scenario, prepare(scenario)?)
}

/// The core of a scenario.
pub(super) fn prepare(scenario: &Scenario) -> Result<Core, SimError> {
    Core::new(scenario.config.clone(), scenario.routers())
        .map(|core| core.exclusive(&scenario.exclusive).on_peer_loss(scenario.on_loss))
        .map_err(|e| SimError(format!("the scenario is not possible: {e}")))
}

/// Runs a scenario on its core.
pub(super) fn drive(scenario: &Scenario, core: Core) -> Result<Outcome, SimError> {
    let mut run = Run {
        devices: scenario
            .devices
            .iter()
            .enumerate()
            .map(|(i, &spec)| Device::new(ModelId(i as u8), spec, scenario.config.pages, scenario.seed))
            .collect(),
        // Streams are by client; the order of arrival may be another.
        streams: vec![Stream::default(); scenario.requests.len()],
        ids: vec![None; scenario.requests.len()],
        coverage: Coverage::default(),
        shadow: Shadow::new(scenario.requests.len()),
        core,
        scenario,
        next_request: 0,
        next_action: 0,
        outages: Outages::default(),
    };
    let mut now = 0;
    for _ in 0..MOST_TURNS {
        run.turn(now)?;
        match run.next_time(now) {
            Some(next) if next >= now => now = next,
            Some(next) => return SimError::new(format!("time runs backwards from {now} to {next}")),
            None => return run.finish(now),
        }
    }
    SimError::new(format!("still running after {MOST_TURNS} turns"))
}

struct Run<'a> {
    scenario: &'a Scenario,
    core: Core,
    devices: Vec<Device>,
    streams: Vec<Stream>,
    ids: Vec<Option<RequestId>>,
    coverage: Coverage,
    shadow: Shadow,
    next_request: usize,
    next_action: usize,
    outages: Outages,
}

impl Run<'_> {
    /// One turn at time `now`: completions (the larger models first), arrivals, clients; then decide and launch.
    fn turn(&mut self, now: Nanos) -> Result<(), SimError> {
        let due: Vec<usize> =
            (0..self.devices.len()).rev().filter(|&m| self.devices[m].ends() == Some(now)).collect();
        for &model in &due {
            self.complete(now, model)?;
            self.after_event(now)?;
        }
        while let Some(arrival) = self.scenario.requests.get(self.next_request).filter(|r| r.at <= now) {
            self.next_request += 1;
            let client = arrival.request.client as usize;
            match self.core.submit(now, arrival.request.clone()) {
                Ok(id) => {
                    self.ids[client] = Some(id);
                    self.shadow.submitted(client, now);
                }
                Err(SubmitError::QueueFull { .. }) => self.coverage.add(Seen::Refused, 1),
                Err(SubmitError::ModelLost { model }) if self.core.lost().contains(model) => {
                    self.coverage.add(Seen::LostRefused, 1);
                }
                Err(e) => return SimError::new(format!("client {client} was refused: {e}")),
            }
            self.after_event(now)?;
        }
        while let Some(&action) = self.scenario.actions.get(self.next_action).filter(|a| a.at <= now) {
            self.next_action += 1;
            self.act(now, action)?;
            self.after_event(now)?;
        }
        self.outages.turn(self.scenario, &mut self.core, now, &mut self.coverage);
        self.after_event(now)?;
        let contested = self.contested_claimants();
        let launched = self.core.launch(now);
        for id in contested {
            let preempted = self.core.standing(id).is_some_and(|s| s.preempted);
            self.coverage.note(Seen::ClaimantPreempted, preempted);
        }
        for model in launched.iter() {
            let Some(batch) = self.core.batch(model) else {
                return SimError::new(format!("{model} launched without a batch"));
            };
            let cut = batch.rows.iter().filter(|r| !r.samples).count() as u64;
            self.coverage.add(Seen::CutRow, cut);
            let stalls = self.devices[model.index()].start(&self.core, batch, now);
            self.coverage.note(Seen::Stall, stalls);
        }
        self.after_event(now)?;
        for model in launched.iter() {
            self.check_delays(now, model)?;
        }
        self.alive(now)?;
        let pages = self.core.counters().pages;
        self.coverage.add(Seen::Turn, 1);
        self.coverage.note(Seen::Simultaneous, due.len() > 1);
        self.coverage.note(Seen::Deferred, pages.deferred > 0);
        self.coverage.note(Seen::Cached, pages.cached > 0);
        Ok(())
    }

    /// The batch knows how long its rows have been on their way from another model.
    fn check_delays(&mut self, now: Nanos, model: ModelId) -> Result<(), SimError> {
        let Some(batch) = self.core.batch(model) else { return Ok(()) };
        let client = |id: RequestId| self.ids.iter().position(|&other| other == Some(id));
        let clients: Vec<usize> = batch.rows.iter().filter_map(|row| client(row.request)).collect();
        let seen = self.shadow.delays(&clients, now);
        if seen == batch.delays {
            return Ok(());
        }
        SimError::new(format!("{model} launched with delays {:?}; seen were {seen:?}", batch.delays))
    }

    /// Requests between two chunks of a page that another one waits for: the launch may preempt them.
    fn contested_claimants(&self) -> Vec<RequestId> {
        let live = (0..self.ids.len()).filter(|&c| self.streams[c].reason.is_none());
        let contested = |id: &RequestId| self.core.standing(*id).is_some_and(|s| s.ready && s.is_awaited);
        live.filter_map(|client| self.ids[client]).filter(contested).collect()
    }

    /// Liveness, whatever the policy: while a request is admitted something runs, and nobody waits past the guard.
    fn alive(&self, now: Nanos) -> Result<(), SimError> {
        let models = (0..self.devices.len()).map(|m| ModelId(m as u8));
        let running = models.filter_map(|model| self.core.batch(model)).count() > 0;
        let counters = self.core.counters();
        if counters.admitted > 0 && !running {
            return SimError::new(format!("requests are ready and nothing runs: {counters:?}"));
        }
        match self.core.wake() {
            Some(at) if at <= now => SimError::new(format!("a queue waits past the guard: {counters:?}")),
            _ => Ok(()),
        }
    }

    fn complete(&mut self, now: Nanos, model: usize) -> Result<(), SimError> {
        let id = ModelId(model as u8);
        if self.core.is_abandoned(id) {
            self.coverage.add(Seen::LateStep, 1);
            self.devices[model].land_late();
            // Late results may be anything.
            return self.core.complete(now, id, &[]).map_err(|e| SimError(format!("late step refused: {e}")));
        }
        match self.devices[model].land().map_err(SimError)? {
            Some(results) => self
                .core
                .complete(now, id, &results)
                .map_err(|e| SimError(format!("completion refused: {e}"))),
            None => {
                self.coverage.add(Seen::FailedStep, 1);
                self.coverage.note(Seen::DeadStep, self.devices[model].is_dead(now));
                self.core.complete_failed(now, id, "the virtual device broke");
                Ok(())
            }
        }
    }

    fn act(&mut self, now: Nanos, action: Action) -> Result<(), SimError> {
        let live = self.streams[action.client].reason.is_none();
        let Some(id) = self.ids[action.client] else {
            self.coverage.add(Seen::EndedNothing, 1);
            return Ok(());
        };
        let standing = self.core.standing(id);
        let ended = match action.what {
            What::Cancel => self.core.cancel(now, id),
            What::Stop { back } => {
                let received = self.streams[action.client].tokens.len() as u32;
                self.core.stop(now, id, received.saturating_sub(back))
            }
        };
        if ended != live {
            let client = action.client;
            return SimError::new(format!(
                "client {client}: {action:?} returned {ended}, but live is {live}"
            ));
        }
        match standing {
            Some(was) => self.coverage.ended(action.what, was),
            None => self.coverage.add(Seen::EndedNothing, 1),
        }
        Ok(())
    }

    /// Audits the core, poisons what is free, and books the effects.
    fn after_event(&mut self, now: Nanos) -> Result<(), SimError> {
        self.core.audit();
        self.shadow.look(&self.core, &self.ids, now);
        for page in (0..self.scenario.config.pages as u32).map(PageId).filter(|&page| self.core.is_free(page))
        {
            self.devices.iter_mut().for_each(|device| device.poison(page));
        }
        for effect in self.core.drain_effects() {
            let (client, name) = match &effect {
                Effect::Token { client, request, .. } | Effect::Terminal { client, request, .. } => {
                    (*client as usize, *request)
                }
            };
            if self.ids[client] != Some(name) {
                return SimError::new(format!("client {client} is not {name}"));
            }
            let stream = &mut self.streams[client];
            if let Some(reason) = &stream.reason {
                return SimError::new(format!("client {client}: {effect:?} after {reason:?}"));
            }
            match effect {
                Effect::Token { token, model, .. } => {
                    stream.tokens.push(token);
                    self.shadow.token(client, now);
                    stream.writers.push(model);
                }
                Effect::Terminal { reason, usage, .. } => {
                    stream.reason = Some(reason);
                    self.coverage.add(Seen::Preemption, u64::from(usage.preemptions));
                    self.coverage.note(Seen::PreemptedTwice, usage.preemptions > 1);
                    let reason = stream.reason.as_ref();
                    let failed = matches!(reason, Some(FinishReason::Failed(FailKind::ModelLost { .. })));
                    self.coverage.note(Seen::LostFailed, failed);
                    self.coverage.note(Seen::Degraded, usage.degraded);
                    let by_itself = matches!(reason, Some(FinishReason::Eos(_) | FinishReason::Length));
                    self.coverage.note(Seen::DegradedEnded, usage.degraded && by_itself);
                    self.coverage.add(Seen::CachedToken, u64::from(usage.cached.iter().sum::<u32>()));
                    stream.usage = usage;
                    self.shadow
                        .ended(client, now, &usage)
                        .map_err(|e| SimError(format!("client {client}: {e}")))?;
                }
            }
        }
        Ok(())
    }

    fn next_time(&self, now: Nanos) -> Option<Nanos> {
        let completions = self.devices.iter().filter_map(Device::ends);
        let arrival = self.scenario.requests.get(self.next_request).map(|r| r.at);
        let action = self.scenario.actions.get(self.next_action).map(|a| a.at);
        let outage = self.outages.next_time(self.scenario, &self.core, now);
        completions.chain(arrival).chain(action).chain(self.core.wake()).chain(outage).min()
    }

    /// Nothing will ever happen again: then nothing may be left.
    fn finish(self, end: Nanos) -> Result<Outcome, SimError> {
        let counters = self.core.counters();
        let open: Vec<usize> = (0..self.ids.len())
            .filter(|&c| self.ids[c].is_some() && self.streams[c].reason.is_none())
            .collect();
        if !open.is_empty() || !self.core.idle() {
            return SimError::new(format!("nothing will happen, but clients {open:?} wait: {counters:?}"));
        }
        if counters.pages.free + counters.pages.cached != self.scenario.config.pages {
            return SimError::new(format!("pages are missing at the end: {:?}", counters.pages));
        }
        let queued: usize = counters.ready.iter().chain(&counters.running).chain(&counters.pending).sum();
        if queued + counters.waiting + counters.admitted != 0 {
            return SimError::new(format!("queues are not empty at the end: {counters:?}"));
        }
        if counters.terminals.total() != counters.submitted {
            return SimError::new(format!("terminals are missing: {counters:?}"));
        }
        let mut coverage = self.coverage;
        coverage.add(Seen::GuardLaunch, counters.guard_launches);
        Ok(Outcome { streams: self.streams, counters, end, coverage })
    }
}
