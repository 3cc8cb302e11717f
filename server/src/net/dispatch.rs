//! The table of requests in progress: it feeds the tokenizer threads and the engine, and hands their results
//! to the connections.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokenrouter_engine::handle::{ClientEvent, ClientId, Command, EngineHandle, Report, SendError};
use tokenrouter_engine::{EngineInfo, EngineState, EngineStatus, ModelState};
use tokenrouter_scheduler::ModelId;

use super::config::NetConfig;
use super::exchange::{self, ChoiceEvent, Exchange, Outcome, Phase, Run};
use super::frontend::{ApiCall, CallContext, Prepared, Refusal};
use super::http::write::{Headers, Response};
use super::overdue::{Deadlines, Timers};
use super::record::Record;
use super::tokenize::{Done, Job, Output, Workers};
use crate::metrics::Traffic;

/// Where answers go. Connections that no longer exist swallow what is written to them.
pub(crate) trait Outlets {
    /// Whether stream events of this connection should wait.
    fn is_full(&self, conn: u64) -> bool;
    /// Whether the next stream event brings the head of an HTTP answer along.
    fn wants_headers(&self, conn: u64) -> bool;
    /// A whole HTTP answer, which ends the exchange.
    fn respond(&mut self, conn: u64, exchange: u64, response: &Response);
    /// An error, which ends the exchange: with its status, or as the last event.
    fn refuse(&mut self, conn: u64, exchange: u64, refusal: &Refusal);
    /// Stream events, and the headers if they are wanted; `end` ends the exchange.
    fn stream(&mut self, conn: u64, exchange: u64, headers: &Headers, events: &[u8], end: bool);
    /// The id of a line became known. False when it is in use on its connection.
    fn set_line_id(&mut self, conn: u64, exchange: u64, id: Value) -> bool;
}

/// Where a request came from.
pub(crate) struct Arrival {
    /// Its connection.
    pub(crate) conn: u64,
    /// The other end.
    pub(crate) client: SocketAddr,
    /// Its name in logs.
    pub(crate) request_id: String,
    /// The header `X-Token-Routing`.
    pub(crate) token_routing: Option<String>,
}

/// Requests in progress.
pub(crate) struct Dispatcher {
    engine: EngineHandle,
    workers: Workers,
    exchanges: HashMap<u64, Exchange>,
    clients: HashMap<ClientId, (u64, usize)>,
    next_exchange: u64,
    next_client: ClientId,
    /// Commands that found the engine's queue full: at most one submit, stop and cancel per live choice.
    waiting: VecDeque<Command>,
    job_bytes: usize,
    nonce: u64,
    draining: bool,
    drain_sent: bool,
    /// The engine's end of the command queue is gone, even if it did not say so.
    engine_gone: bool,
    finished: u64,
    cancelled: u64,
    failed: u64,
    traffic: Traffic,
    timers: Timers,
    limits: Limits,
    loading: bool,
}

/// What is configured about requests.
struct Limits {
    queue: Option<Duration>,
    whole: Option<Duration>,
    /// Requests that wait for admission; above, 429.
    waiting: usize,
}

impl Dispatcher {
    /// An empty table. `nonce` makes ids of this process unlike those of another.
    pub(crate) fn new(engine: EngineHandle, workers: Workers, nonce: u64, config: &NetConfig) -> Self {
        let entries = engine.info.routes.iter().map(|route| route.entry).collect();
        Self {
            traffic: Traffic::new(entries),
            engine,
            workers,
            exchanges: HashMap::new(),
            clients: HashMap::new(),
            next_exchange: 1,
            next_client: 1,
            waiting: VecDeque::new(),
            job_bytes: 0,
            nonce,
            draining: false,
            drain_sent: false,
            engine_gone: false,
            finished: 0,
            cancelled: 0,
            failed: 0,
            timers: Timers::default(),
            limits: Limits {
                queue: config.timeouts.queue,
                whole: config.timeouts.request,
                waiting: config.max_waiting,
            },
            loading: false,
        }
    }

    /// A table for a server whose engine is not there yet: it takes nothing.
    pub(crate) fn loading(config: &NetConfig) -> Self {
        let (commands, reports) = (flume::bounded(0).0, flume::bounded(0).1);
        let nothing = (Box::new(|| {}), EngineInfo::default(), Arc::default());
        let engine = EngineHandle::new(commands, reports, nothing.0, nothing.1, nothing.2);
        Self { loading: true, ..Self::new(engine, Workers::none(), 0, config) }
    }

    /// The engine's gauges.
    pub(crate) fn status(&self) -> &Arc<EngineStatus> {
        &self.engine.status
    }

    /// What has been counted.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Counts a request that is answered with this instead of being taken up.
    pub(crate) fn count_refusal(&mut self, refusal: &Refusal) {
        self.traffic.refuse(refusal.status);
    }

    /// Bodies with the tokenizer threads, in bytes.
    pub(crate) fn job_bytes(&self) -> usize {
        self.job_bytes
    }

    /// Answers finished, requests cancelled, requests failed or refused after they were taken.
    pub(crate) fn totals(&self) -> [u64; 3] {
        [self.finished, self.cancelled, self.failed]
    }

    /// True when no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.exchanges.is_empty()
    }

    /// True when commands wait for room in the engine's queue.
    pub(crate) fn wants_retry(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a request would be taken now.
    ///
    /// # Errors
    /// The refusal: draining, or the engine has ended.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.loading {
            return Err(exchange::loading());
        }
        if self.draining {
            return Err(exchange::shutting_down());
        }
        match self.engine.status.state() {
            _ if self.is_engine_dead() => Err(exchange::engine_dead()),
            EngineState::Ready => Ok(()),
            EngineState::Draining | EngineState::Stopped => Err(exchange::shutting_down()),
        }
    }

    /// Whether a request for the engine would be taken now. The engine looks again, exactly; but what is hopeless
    /// already costs nobody a tokenization.
    ///
    /// # Errors
    /// As [`check_open`](Self::check_open), or too many requests wait.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        self.check_open()?;
        let waiting = self.engine.status.waiting.load(Ordering::Relaxed);
        if waiting >= self.limits.waiting as u64 { Err(exchange::queue_full()) } else { Ok(()) }
    }

    /// The engine has ended, in order or not.
    pub(crate) fn is_engine_dead(&self) -> bool {
        self.engine_gone || self.engine.status.state() == EngineState::Stopped
    }

    /// Takes a request and returns its number.
    ///
    /// # Errors
    /// The refusal: draining, engine gone, too many requests waiting.
    pub(crate) fn submit(&mut self, call: ApiCall, arrival: Arrival, body: Vec<u8>) -> Result<u64, Refusal> {
        if call.generates() {
            self.check_room()?;
        }
        self.check_open()?;
        let exchange = self.next_exchange;
        let cancelled = Arc::new(AtomicBool::new(false));
        let Arrival { conn, client, request_id, token_routing } = arrival;
        let unique = format!("{:016x}{exchange:08x}", self.nonce);
        let context = CallContext { unique, request_id: request_id.clone(), token_routing, client };
        let body_len = body.len();
        if !self.workers.try_submit(Job { exchange, call, body, context, cancelled: cancelled.clone() }) {
            return Err(exchange::queue_full());
        }
        self.next_exchange += 1;
        self.job_bytes += body_len;
        let record = Record::new(call, request_id, client);
        let deadlines = Deadlines::new(record.arrived, self.limits.queue, self.limits.whole);
        self.timers.add(exchange, &deadlines);
        let phase = Phase::Preparing(cancelled);
        self.exchanges.insert(exchange, Exchange { conn, record, deadlines, phase });
        Ok(exchange)
    }

    /// When [`expire`](Self::expire) must be called.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Ends requests whose time is up.
    pub(crate) fn expire(&mut self, now: Instant, out: &mut dyn Outlets) {
        while let Some(id) = self.timers.pop(now) {
            let admitted = self.nobody_waits();
            let Some(exchange) = self.exchanges.get_mut(&id) else { continue };
            if exchange.deadlines.cut {
                self.fail(id, &exchange::took_too_long(), out);
            } else if exchange.deadlines.whole.is_some_and(|at| at <= now) {
                exchange.deadlines = Deadlines::cut(now);
                self.timers.add(id, &exchange.deadlines);
                self.cut(id, out);
            } else if admitted && matches!(exchange.phase, Phase::Running(_)) {
                // It is admitted and its prompt is being read, which may take its time.
                exchange.deadlines.first = None;
                self.timers.add(id, &exchange.deadlines);
            } else {
                self.fail(id, &exchange::waited_too_long(), out);
            }
        }
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.is_empty() && self.engine.status.waiting.load(Ordering::Relaxed) == 0
    }

    /// The whole time of a request is up: what it has is its answer, and nothing is an error.
    fn cut(&mut self, id: u64, out: &mut dyn Outlets) {
        let stops = match self.exchanges.get_mut(&id).map(|exchange| &mut exchange.phase) {
            Some(Phase::Running(run)) => run.cut(),
            _ => None,
        };
        match stops {
            None => self.fail(id, &exchange::took_too_long(), out),
            Some(stops) => {
                for (client, committed_len) in stops {
                    self.send(Command::Stop { client, committed_len });
                }
            }
        }
    }

    /// Takes results of the tokenizer threads.
    pub(crate) fn take_prepared(&mut self, out: &mut dyn Outlets) {
        while let Some(done) = self.workers.try_done() {
            self.job_bytes = self.job_bytes.saturating_sub(done.body_len);
            self.on_done(done, out);
        }
    }

    fn on_done(&mut self, done: Done, out: &mut dyn Outlets) {
        let id = done.exchange;
        let Some(exchange) = self.exchanges.get(&id) else { return };
        let fresh = done.line_id.is_none_or(|line_id| out.set_line_id(exchange.conn, id, line_id));
        match done.result {
            _ if !fresh => self.fail(id, &exchange::id_in_use(), out),
            Ok(Output::Prepared(prepared)) => self.start(id, prepared, out),
            Ok(Output::Body(body)) => {
                out.respond(exchange.conn, id, &Response::json(200, body));
                self.finished += 1;
                self.remove(id, "finished", 200);
            }
            Err(refusal) => self.fail(id, &refusal, out),
        }
    }

    /// Submits all choices, or none: a full queue refuses the request.
    fn start(&mut self, id: u64, prepared: Prepared, out: &mut dyn Outlets) {
        let first = self.next_client;
        let count = prepared.choices.len();
        let Some(arrived) = self.exchanges.get(&id).map(|exchange| exchange.record.arrived) else { return };
        let route = prepared.choices.first().map(|choice| choice.route).unwrap_or_default();
        let mut commands = VecDeque::with_capacity(count);
        for (index, mut choice) in prepared.choices.into_iter().enumerate() {
            choice.client = first + index as u64;
            self.traffic.submitted(&choice, arrived);
            commands.push_back(Command::Submit(Box::new(choice)));
        }
        let Some(front) = commands.pop_front() else {
            self.fail(id, &Refusal::new(400, None, "the request has no prompt"), out);
            return;
        };
        let sent = if self.waiting.is_empty() { self.engine.try_send(front) } else { Err(SendError::Full) };
        if let Err(error) = sent {
            let refusal = match error {
                SendError::Full => exchange::queue_full(),
                SendError::Stopped => {
                    self.engine_gone = true;
                    exchange::engine_dead()
                }
            };
            (first..).take(count).for_each(|client| self.traffic.forget(client));
            self.fail(id, &refusal, out);
            return;
        }
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let route = self.engine.info.routes.get(usize::from(route.0));
        exchange.record.started(prepared.answer.id(), route);
        exchange.phase = Phase::Running(Run::new(prepared.answer, prepared.stream, first, count));
        self.next_client += count as u64;
        for index in 0..count {
            self.clients.insert(first + index as u64, (id, index));
        }
        self.waiting.append(&mut commands);
        self.flush_commands();
    }

    /// Sends commands that wait, as far as the engine takes them.
    pub(crate) fn flush_commands(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            // A refused send loses its command, so it gets a copy.
            let copy = match &command {
                Command::Submit(request) => Command::Submit(request.clone()),
                Command::Cancel(client) => Command::Cancel(*client),
                Command::Stop { client, committed_len } => {
                    Command::Stop { client: *client, committed_len: *committed_len }
                }
                Command::Drain => Command::Drain,
                Command::Shutdown => Command::Shutdown,
            };
            match self.engine.try_send(copy) {
                Ok(()) => {}
                Err(SendError::Full) => {
                    self.waiting.push_front(command);
                    break;
                }
                Err(SendError::Stopped) => {
                    self.engine_gone = true;
                    self.waiting.clear();
                }
            }
        }
        // The engine refuses what comes after `Drain`, so it goes out once every accepted request is there.
        let preparing = || self.exchanges.values().any(|one| matches!(one.phase, Phase::Preparing(_)));
        if self.draining && !self.drain_sent && self.waiting.is_empty() && !preparing() {
            self.drain_sent = self.engine.try_send(Command::Drain) != Err(SendError::Full);
        }
    }

    fn send(&mut self, command: Command) {
        self.waiting.push_back(command);
        self.flush_commands();
    }

    /// Takes reports of the engine, at most `limit`. True when there may be more.
    pub(crate) fn take_reports(&mut self, limit: usize, out: &mut dyn Outlets) -> bool {
        for _ in 0..limit {
            match self.engine.try_report() {
                Some(report) => self.on_report(report, out),
                None => {
                    if self.is_engine_dead() && !self.exchanges.is_empty() {
                        // What the engine said last is in the queue by now.
                        while let Some(report) = self.engine.try_report() {
                            self.on_report(report, out);
                        }
                        self.fail_all(&exchange::engine_dead(), out);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn on_report(&mut self, report: Report, out: &mut dyn Outlets) {
        let now = Instant::now();
        for event in report.events {
            match event {
                ClientEvent::Prompt { client, start, scores } => {
                    self.on_event(client, ChoiceEvent::Prompt { start, scores }, now, out);
                }
                ClientEvent::Token { client, token, model, logprobs } => {
                    self.traffic.token(client, now);
                    self.on_event(client, ChoiceEvent::Token { token, model, logprobs }, now, out);
                }
                ClientEvent::Finished { client, reason, usage } => {
                    self.traffic.finished(client, &reason, &usage, now);
                    let event = ChoiceEvent::Finished { reason, usage: Box::new(usage) };
                    self.on_event(client, event, now, out);
                }
                ClientEvent::Refused { client, error } => {
                    self.traffic.forget(client);
                    if let Some((id, choice)) = self.clients.get(&client).copied() {
                        let refusal = exchange::refused(&error, &self.engine.info.models);
                        self.count_refusal(&refusal);
                        if let Some(Exchange { phase: Phase::Running(run), .. }) = self.exchanges.get_mut(&id)
                        {
                            run.set_over(choice);
                        }
                        self.fail(id, &refusal, out);
                    }
                }
            }
        }
    }

    /// Events of cancelled requests find no entry and are dropped.
    fn on_event(&mut self, client: ClientId, mut event: ChoiceEvent, now: Instant, out: &mut dyn Outlets) {
        let Some((id, choice)) = self.clients.get(&client).copied() else { return };
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let Phase::Running(run) = &mut exchange.phase else { return };
        if !run.receive(choice, &mut event) {
            return;
        }
        match &event {
            ChoiceEvent::Token { .. } => {
                exchange.record.token(now);
                if exchange.deadlines.first.is_some() {
                    self.timers.remove(id, &exchange.deadlines);
                    exchange.deadlines.first = None;
                    self.timers.add(id, &exchange.deadlines);
                }
            }
            ChoiceEvent::Finished { reason, usage } => exchange.record.choice(reason, usage),
            ChoiceEvent::Prompt { .. } => {}
        }
        if run.stream && (run.is_holding() || out.is_full(exchange.conn)) {
            run.hold(choice, event);
        } else {
            self.apply(id, choice, event, out);
        }
    }

    /// Goes on with events that waited for room. True when some still wait.
    pub(crate) fn resume(&mut self, id: u64, out: &mut dyn Outlets) -> bool {
        loop {
            let Some(exchange) = self.exchanges.get_mut(&id) else { return false };
            let Phase::Running(run) = &mut exchange.phase else { return false };
            if out.is_full(exchange.conn) {
                return run.is_holding();
            }
            let Some((choice, event)) = run.release() else { return false };
            self.apply(id, choice, event, out);
        }
    }

    fn apply(&mut self, id: u64, choice: usize, event: ChoiceEvent, out: &mut dyn Outlets) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let Phase::Running(run) = &mut exchange.phase else { return };
        let mut headers = Headers::new();
        // The head of a stream goes out before its end is known; then it is enough that a model is missing.
        let status = &self.engine.status.models;
        let lost = |m: ModelId| status.get(m.index()).is_some_and(|model| model.state() == ModelState::Lost);
        if exchange.record.degraded || exchange.record.reach.iter().any(lost) {
            headers.push(("x-token-routing-degraded", "true".into()));
        }
        let mut bytes = Vec::new();
        if let ChoiceEvent::Token { model, .. } = &event
            && let Some(client) = run.counts(choice)
        {
            self.traffic.count(client, *model);
        }
        let outcome = run.apply(choice, event, &self.engine.info.models, &mut bytes);
        let done = matches!(outcome, Outcome::Done);
        if run.stream && (done || !bytes.is_empty()) {
            if out.wants_headers(exchange.conn) {
                headers.extend(run.headers());
            }
            out.stream(exchange.conn, id, &headers, &bytes, done);
        }
        match outcome {
            Outcome::More => {}
            Outcome::Stop { client, committed_len } => self.send(Command::Stop { client, committed_len }),
            Outcome::Failed(refusal) => self.fail(id, &refusal, out),
            Outcome::Done => {
                if !run.stream {
                    let mut response = Response::json(200, run.final_body());
                    response.headers = headers;
                    response.headers.extend(run.headers());
                    out.respond(exchange.conn, id, &response);
                }
                self.finished += 1;
                self.remove(id, "finished", 200);
            }
        }
    }

    fn fail(&mut self, id: u64, refusal: &Refusal, out: &mut dyn Outlets) {
        let Some(exchange) = self.exchanges.get(&id) else { return };
        out.refuse(exchange.conn, id, refusal);
        // What ends later is counted by the engine's reason.
        if matches!(exchange.phase, Phase::Preparing(_)) {
            self.count_refusal(refusal);
        }
        self.failed += 1;
        self.remove(id, "failed", refusal.status);
    }

    /// Fails everything in progress.
    pub(crate) fn fail_all(&mut self, refusal: &Refusal, out: &mut dyn Outlets) {
        let ids: Vec<u64> = self.exchanges.keys().copied().collect();
        for id in ids {
            self.fail(id, refusal, out);
        }
    }

    /// The client has left.
    pub(crate) fn cancel(&mut self, id: u64) {
        if self.exchanges.contains_key(&id) {
            self.cancelled += 1;
            self.remove(id, "cancelled", 499);
        }
    }

    /// The client has asked for the end of a request that still answers.
    pub(crate) fn cancel_on_request(&mut self, id: u64, out: &mut dyn Outlets) {
        let refusal = Refusal::new(499, Some("cancelled"), "cancelled by the client");
        self.fail(id, &refusal, out);
    }

    /// Ends all requests of this name, as their clients could; tells how many there were.
    pub(crate) fn abort(&mut self, request_id: &str, out: &mut dyn Outlets) -> usize {
        let named = self.exchanges.iter().filter(|(_, exchange)| {
            let record = &exchange.record;
            record.request_id == request_id || record.answer_id == request_id
        });
        let ids: Vec<u64> = named.map(|(id, _)| *id).collect();
        for id in &ids {
            self.cancel_on_request(*id, out);
        }
        ids.len()
    }

    /// Forgets an exchange, with what the engine still does for it.
    fn remove(&mut self, id: u64, outcome: &str, status: u16) {
        let Some(exchange) = self.exchanges.remove(&id) else { return };
        self.timers.remove(id, &exchange.deadlines);
        if let Phase::Running(run) = &exchange.phase {
            for client in run.clients() {
                self.clients.remove(&client);
            }
        }
        exchange.record.log(outcome, status);
        for client in exchange.abandon() {
            self.send(Command::Cancel(client));
        }
    }

    /// No new requests from now on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.flush_commands();
    }

    /// Tells the engine to end. Dropping its handle does the same when the queue is full.
    pub(crate) fn shut_down(&mut self) {
        self.send(Command::Shutdown);
    }
}
