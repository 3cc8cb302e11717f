//! The clients: what they ask, what they see, what they do about it.

use super::agenda::{Agenda, Item};
use super::run::Run;
use super::source::{Client, Fate, Order, Source, gap};
use super::spec::{Arrivals, ChangeKind, ServingSpec, keyed};
use crate::config::SubmitError;
use crate::event::{Effect, FailKind, FinishReason, Usage};
use crate::ids::{ModelId, Nanos, PAGE_TOKENS, RequestId};
use crate::sim::random::Random;
use crate::sim::run::SimError;
use std::collections::{BTreeMap, VecDeque};

/// A refused client of a closed loop asks again after this time.
const RETRY_AFTER: Nanos = 1_000_000_000;
/// Purpose of the draws of an open workload's arrivals.
const ARRIVALS: u64 = 4;

/// One request, from submission on.
#[derive(Debug)]
pub(super) struct Record {
    client: usize,
    id: RequestId,
    route: usize,
    submitted: Nanos,
    /// Since when it waits for a launch.
    pub(super) ready_since: Nanos,
    /// Its last token.
    last: Nanos,
    tokens: u32,
    pub(super) seed: u64,
    /// Position of its last token.
    pub(super) end: usize,
    fate: Fate,
    over: bool,
    /// Prompt and answer, when a later prompt begins with them.
    text: Option<Vec<u32>>,
}

/// Requests of a session of a trace.
#[derive(Debug, Default)]
struct Session {
    text: Vec<u32>,
    busy: bool,
    waiting: VecDeque<usize>,
}

pub(super) struct Clients<'a> {
    source: Source<'a>,
    clients: Vec<Client>,
    /// By client: its live request.
    asking: Vec<Option<usize>>,
    records: Vec<Record>,
    /// The record of every request slot of the core.
    by_slot: Vec<usize>,
    /// Records that were not admitted yet.
    waiting: Vec<usize>,
    /// Clients of a closed loop beyond this number have gone.
    limit: usize,
    sessions: BTreeMap<u64, Session>,
    arrivals: Random,
    closed: bool,
}

impl<'a> Clients<'a> {
    pub(super) fn new(spec: &'a ServingSpec, slots: usize, agenda: &mut Agenda) -> Self {
        let room = spec.config.context_len.min(spec.config.pages * PAGE_TOKENS);
        let mut this = Self {
            source: Source::new(&spec.workload, spec.clients, spec.seed, room),
            clients: Vec::new(),
            asking: Vec::new(),
            records: Vec::new(),
            by_slot: vec![0; slots],
            waiting: Vec::new(),
            limit: 0,
            sessions: BTreeMap::new(),
            arrivals: keyed(spec.seed, ARRIVALS, 0),
            closed: false,
        };
        spec.changes.iter().enumerate().for_each(|(i, change)| agenda.add(change.at, Item::Change(i)));
        match &spec.workload.arrivals {
            Arrivals::Closed(clients) => this.resize(*clients, 0, agenda),
            Arrivals::Trace(trace) => {
                trace.iter().enumerate().for_each(|(i, t)| agenda.add(t.at, Item::Traced(i)));
            }
            open => {
                let first =
                    if let Arrivals::Bursts(..) = open { Some(0) } else { gap(open, &mut this.arrivals, 0) };
                first.into_iter().for_each(|at| agenda.add(at, Item::Open(1)));
            }
        }
        this
    }

    /// A closed loop has so many clients from now on.
    fn resize(&mut self, clients: usize, now: Nanos, agenda: &mut Agenda) {
        for client in self.limit..clients {
            if client == self.clients.len() {
                self.add(self.source.client(client));
            }
            agenda.add(now, Item::Ask(client));
        }
        self.limit = clients;
    }

    fn add(&mut self, client: Client) -> usize {
        self.clients.push(client);
        self.asking.push(None);
        self.clients.len() - 1
    }

    pub(super) fn of_slot(&mut self, slot: usize) -> &mut Record {
        &mut self.records[self.by_slot[slot]]
    }

    /// Nobody asks any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether nobody is there any more to lose patience.
    pub(super) fn is_stale(&self, item: Item) -> bool {
        matches!(item, Item::Impatient(record) if self.records[record].over)
    }

    /// Requests without their terminal.
    pub(super) fn live(&self) -> impl Iterator<Item = RequestId> + use<> {
        let live: Vec<RequestId> = self.records.iter().filter(|r| !r.over).map(|r| r.id).collect();
        live.into_iter()
    }
}

impl Run<'_> {
    /// Something on the agenda is due.
    pub(super) fn happen(&mut self, now: Nanos, item: Item) -> Result<(), SimError> {
        match item {
            Item::Change(i) => self.change(now, self.spec.changes[i].what),
            Item::Open(n) => {
                let client = self.clients.source.client(self.clients.clients.len());
                let client = self.clients.add(client);
                let next = gap(&self.spec.workload.arrivals, &mut self.clients.arrivals, n);
                next.into_iter().for_each(|gap| self.agenda.add(now + gap, Item::Open(n + 1)));
                self.ask(now, client);
            }
            Item::Traced(index) => self.ask_traced(now, index),
            Item::Ask(client) => self.ask(now, client),
            Item::Impatient(record) => {
                let Record { id, tokens, over, .. } = self.clients.records[record];
                if !over && tokens == 0 {
                    self.core.cancel(now, id);
                }
            }
        }
        Ok(())
    }

    fn change(&mut self, now: Nanos, what: ChangeKind) {
        match what {
            ChangeKind::Latency(model, factor) => {
                if let Some(device) = self.devices.get_mut(model) {
                    device.scale = factor;
                }
            }
            ChangeKind::Phase(phase) => self.spec.phase.set(phase),
            ChangeKind::Clients(clients) => {
                self.clients.resize(clients, now, &mut self.agenda);
                for client in clients..self.clients.clients.len() {
                    if let Some(record) = self.clients.asking[client] {
                        self.core.cancel(now, self.clients.records[record].id);
                    }
                }
            }
        }
    }

    fn ask_traced(&mut self, now: Nanos, index: usize) {
        let Arrivals::Trace(trace) = &self.spec.workload.arrivals else { return };
        let text = match trace[index].session {
            None => Vec::new(),
            Some(name) => {
                let session = self.clients.sessions.entry(name).or_default();
                if std::mem::replace(&mut session.busy, true) {
                    session.waiting.push_back(index);
                    return;
                }
                session.text.clone()
            }
        };
        let client = self.clients.add(Client::traced(index, text));
        self.ask(now, client);
    }

    /// The client sends its next request.
    fn ask(&mut self, now: Nanos, client: usize) {
        let closed_loop = matches!(self.spec.workload.arrivals, Arrivals::Closed(_));
        let gone = closed_loop && client >= self.clients.limit;
        if gone || self.clients.closed || self.clients.asking[client].is_some() {
            return;
        }
        let Order { mut request, answer, fate } = self.clients.source.order(&self.clients.clients[client]);
        let record = self.clients.records.len();
        request.client = record as u64;
        let (seed, route) = (request.seed, usize::from(request.route.0));
        let remembers =
            self.session_of(client).is_some() || self.clients.source.remembers(&self.clients.clients[client]);
        let text = remembers.then(|| request.prompt.clone());
        let end = request.prompt.len() + answer as usize;
        match self.core.submit(now, request) {
            Ok(id) => {
                self.clients.by_slot[id.slot()] = record;
                self.clients.asking[client] = Some(record);
                self.clients.waiting.push(record);
                let (submitted, ready_since, last) = (now, now, now);
                self.clients.records.push(Record {
                    client,
                    id,
                    route,
                    submitted,
                    ready_since,
                    last,
                    tokens: 0,
                    seed,
                    end,
                    fate,
                    over: false,
                    text,
                });
                if let Some(patience) = self.spec.clients.patience {
                    self.agenda.add(now.saturating_add(patience), Item::Impatient(record));
                }
            }
            Err(error) => {
                self.meter.report.refused += 1;
                if closed_loop {
                    if !matches!(error, SubmitError::QueueFull { .. }) {
                        self.next_turn(client, None);
                    }
                    self.agenda.add(now + RETRY_AFTER, Item::Ask(client));
                } else {
                    self.leave_session(now, client, None);
                }
            }
        }
    }

    fn session_of(&self, client: usize) -> Option<u64> {
        let Arrivals::Trace(trace) = &self.spec.workload.arrivals else { return None };
        trace[self.clients.clients[client].traced_index()].session
    }

    /// True when the client's conversation goes on.
    fn next_turn(&mut self, client: usize, said: Option<Vec<u32>>) -> bool {
        let Clients { source, clients, .. } = &mut self.clients;
        source.advance(&mut clients[client], said)
    }

    /// The request of a session is over: the next one may start.
    fn leave_session(&mut self, now: Nanos, client: usize, said: Option<Vec<u32>>) {
        let Some(name) = self.session_of(client) else { return };
        let Some(session) = self.clients.sessions.get_mut(&name) else { return };
        session.busy = false;
        if let Some(said) = said {
            session.text = said;
        }
        if let Some(next) = session.waiting.pop_front() {
            self.agenda.add(now, Item::Traced(next));
        }
    }

    /// Books one effect, and does what its client does about it.
    pub(super) fn receive(&mut self, now: Nanos, effect: Effect) -> Result<(), SimError> {
        let (Effect::Token { client, request, .. } | Effect::Terminal { client, request, .. }) = effect;
        let index = client as usize;
        let known = self.clients.records.get(index).is_some_and(|r| r.id == request && !r.over);
        if !known {
            return SimError::new(format!("{effect:?} for a request that is over or unknown"));
        }
        match effect {
            Effect::Token { token, model, .. } => self.receive_token(now, index, token, model),
            Effect::Terminal { reason, usage, .. } => self.receive_end(now, index, &reason, &usage),
        }
        Ok(())
    }

    fn receive_token(&mut self, now: Nanos, index: usize, token: u32, model: ModelId) {
        let record = &mut self.clients.records[index];
        let since = now - record.last;
        if record.tokens == 0 {
            self.meter.first_token.add(since)
        } else {
            self.meter.inter_token.add(since)
        }
        record.tokens += 1;
        record.last = now;
        if let Some(text) = &mut record.text {
            text.push(token);
        }
        self.tokens += 1;
        let report = &mut self.meter.report;
        report.tokens += 1;
        report.models[model.index()].committed += 1;
        report.routes[record.route].tokens += 1;
        match record.fate {
            Fate::Vanish(at) if at == record.tokens => drop(self.core.cancel(now, record.id)),
            Fate::Stop(at, back) if at == record.tokens => {
                self.core.stop(now, record.id, at.saturating_sub(back));
            }
            _ => {}
        }
    }

    fn receive_end(&mut self, now: Nanos, index: usize, reason: &FinishReason, usage: &Usage) {
        let record = &mut self.clients.records[index];
        record.over = true;
        let (client, route, lived) = (record.client, record.route, now - record.submitted);
        let said = record.text.take();
        self.clients.asking[client] = None;
        let report = &mut self.meter.report;
        report.prompt_tokens += u64::from(usage.prompt_tokens);
        for (i, model) in report.models.iter_mut().enumerate() {
            model.discarded += u64::from(usage.discarded[i]);
            model.cached += u64::from(usage.cached[i]);
        }
        let well = match reason {
            FinishReason::Failed(kind) => {
                report.failed += 1;
                report.routes[route].failed += 1;
                if let FailKind::Step { model, .. } | FailKind::Row { model, .. } = kind {
                    report.models[model.index()].failed += 1;
                }
                false
            }
            FinishReason::Cancelled => {
                report.vanished += 1;
                false
            }
            _ => {
                report.completed += 1;
                report.routes[route].completed += 1;
                report.stopped += u64::from(*reason == FinishReason::Stop);
                self.meter.end_to_end.add(lived);
                true
            }
        };
        if let Arrivals::Trace(_) = self.spec.workload.arrivals {
            return self.leave_session(now, client, said.filter(|_| well));
        }
        let goes_on = self.next_turn(client, said.filter(|_| well));
        if goes_on || matches!(self.spec.workload.arrivals, Arrivals::Closed(_)) {
            self.agenda.add(now + self.spec.workload.think, Item::Ask(client));
        }
    }

    /// Which of the waiting requests have pages now.
    pub(super) fn note_admissions(&mut self, now: Nanos) {
        let Clients { waiting, records, .. } = &mut self.clients;
        let (core, meter) = (&self.core, &mut self.meter);
        waiting.retain(|&index| {
            let record = &mut records[index];
            let admitted = !core.pages(record.id).is_empty();
            if admitted {
                meter.admission.add(now - record.submitted);
                record.ready_since = now;
            }
            !admitted && !record.over
        });
    }
}
