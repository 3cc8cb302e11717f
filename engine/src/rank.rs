//! The rank loop: drain commands, deliver completions, decide, launch, report. It owns `Core`.
//!
//! One turn takes everything that has arrived, then decides once, so that simultaneous events are seen
//! together (DESIGN rule 1). With nothing to do it parks; the server, the threads of the models and the other ranks unpark
//! it. While a step is in flight on a device that wakes nobody, it parks for 50 microseconds at most (DESIGN rule 7).

#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::router::SignalSet;
use tokenrouter_scheduler::{
    Core, Effect, FailKind, FinishReason, MAX_HEADS, ModelId, Nanos, NewRequest, RequestId, Row, RowFault,
};

use crate::executor::{Executor, POLL_WAIT, wake_on_time};
use crate::faults::FaultOptions;
use crate::handle::{ClientEvent, ClientId, Command, EngineRequest, RefuseError, Report};
use crate::logprobs::{MAX_LOGPROBS, TokenLogprobs};
use crate::planner::Planner;
use crate::status::{EngineState, EngineStatus};
use crate::step::{RowSampling, SampleSpec, Step};
use watch::Watch;

/// How long the loop looks for the next event before it parks. Longer only burns a core that the models need.
const SPIN: Duration = Duration::from_micros(20);
/// How soon the loop tries again when the report queue is full.
const REPORT_RETRY: Duration = Duration::from_millis(1);
/// Least distance of two snapshots of the estimates and the plan: they are for people, and allocate.
const PLANNER_STATUS_EVERY: Nanos = 250_000_000;
/// Commands taken in one turn, so that a burst of arrivals does not hold up finished steps.
const COMMANDS_PER_TURN: usize = 64;

/// What the engine remembers about a live request beside the scheduler.
struct Live {
    client: ClientId,
    sampling: Arc<RowSampling>,
    seed: u64,
    choice: u32,
    min_tokens: u32,
    logprobs: Option<u8>,
    /// What the last candidate's model said about it, until it is committed or another comes.
    candidate: Option<Box<TokenLogprobs>>,
}

/// The loop's state. Built by `start`, consumed by `run`.
pub(crate) struct RankLoop {
    pub(crate) core: Core,
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) planner: Option<Planner>,
    pub(crate) commands: flume::Receiver<Command>,
    pub(crate) reports: flume::Sender<Report>,
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
    pub(crate) status: Arc<EngineStatus>,
    pub(crate) eos_ids: Vec<u32>,
    pub(crate) models: usize,
    pub(crate) faults: FaultOptions,
    /// Every model has an embedding for the ids below this.
    pub(crate) vocab: usize,
}

/// Says that the loop has ended, also when it ended by a panic: a health check must not lie about it.
struct Ended {
    status: Arc<EngineStatus>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.status.set_state(EngineState::Stopped);
        (self.wake)();
    }
}

struct Running {
    parts: RankLoop,
    started: Instant,
    requests: HashMap<ClientId, RequestId>,
    live: Vec<Option<Live>>,
    outgoing: Vec<ClientEvent>,
    /// When the next snapshot of the planner's state is due, if something has happened since the last.
    snapshot_at: Option<Nanos>,
    last_snapshot: Nanos,
    watch: Watch,
    draining: bool,
    stopping: bool,
}

impl RankLoop {
    /// Runs until `Shutdown`, or until the server's end of the command queue is dropped.
    pub(crate) fn run(self) {
        let started = Instant::now();
        self.status.start_clock(started);
        let _ended = Ended { status: self.status.clone(), wake: self.wake.clone() };
        let mut running = Running {
            watch: Watch::new(self.faults),
            parts: self,
            started,
            requests: HashMap::new(),
            live: Vec::new(),
            outgoing: Vec::new(),
            snapshot_at: None,
            last_snapshot: 0,
            draining: false,
            stopping: false,
        };
        running.run();
        running.leave();
    }
}

impl Running {
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn run(&mut self) {
        wake_on_time();
        let mut idle_since = Instant::now();
        loop {
            let worked = self.turn();
            if self.stopping && self.parts.core.idle() && self.outgoing.is_empty() {
                break;
            }
            if worked {
                idle_since = Instant::now();
            } else if idle_since.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                self.park();
            }
        }
    }

    /// One turn; returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut worked = self.take_commands();
        worked |= self.take_completions();
        worked |= self.watch();
        worked |= self.take_plan();
        worked |= self.launch();
        worked |= self.collect_effects();
        if worked {
            self.plan();
            // Before the report goes out: who has read an answer finds it counted.
            self.publish();
            self.snapshot_at = self.snapshot_at.or(Some(self.last_snapshot + PLANNER_STATUS_EVERY));
        }
        self.snapshot();
        self.flush_reports();
        worked
    }

    fn park(&self) {
        if !self.outgoing.is_empty() && !self.parts.executor.must_poll() {
            std::thread::park_timeout(REPORT_RETRY);
            return;
        }
        let due = self.parts.core.wake().into_iter().chain(self.snapshot_at).chain(self.watch.next()).min();
        let due = due.map(|at| Duration::from_nanos(at.saturating_sub(self.now())));
        let poll = self.parts.executor.must_poll().then_some(POLL_WAIT);
        match due.into_iter().chain(poll).min() {
            Some(most) => std::thread::park_timeout(most),
            None => std::thread::park(),
        }
    }

    fn take_commands(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..COMMANDS_PER_TURN {
            match self.parts.commands.try_recv() {
                Ok(command) => self.command(command),
                Err(flume::TryRecvError::Disconnected) if !self.stopping => self.shutdown(),
                Err(_) => break,
            }
            worked = true;
        }
        worked
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit(request) => self.submit(now, *request),
            Command::Cancel(client) => {
                if let Some(id) = self.requests.get(&client) {
                    self.parts.core.cancel(now, *id);
                }
            }
            Command::Stop { client, committed_len } => {
                if let Some(id) = self.requests.get(&client) {
                    self.parts.core.stop(now, *id, committed_len);
                }
            }
            Command::Drain => {
                self.draining = true;
                self.parts.status.set_state(EngineState::Draining);
            }
            Command::Shutdown => self.shutdown(),
        }
    }

    fn shutdown(&mut self) {
        let now = self.now();
        self.draining = true;
        self.stopping = true;
        for id in self.requests.values() {
            self.parts.core.cancel(now, *id);
        }
    }

    fn submit(&mut self, now: Nanos, request: EngineRequest) {
        let client = request.client;
        if let Err(error) = self.accept(now, request) {
            self.outgoing.push(ClientEvent::Refused { client, error });
        }
    }

    fn accept(&mut self, now: Nanos, request: EngineRequest) -> Result<(), RefuseError> {
        let client = request.client;
        if self.draining {
            return Err(RefuseError::Draining);
        }
        // A tokenizer may know more tokens than a checkpoint has rows for; fed, one would fail the whole step.
        let vocab = self.parts.vocab;
        if let Some(&token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(RefuseError::UnknownToken { token, vocab });
        }
        let live = Live {
            client,
            seed: request.seed,
            choice: request.choice,
            min_tokens: request.min_tokens,
            logprobs: request.logprobs.map(|top| top.min(MAX_LOGPROBS)),
            candidate: None,
            sampling: Arc::new(row_sampling(request.sampling, &self.parts.eos_ids, &request.stop_ids)),
        };
        let new = NewRequest {
            client,
            prompt: request.prompt,
            max_new_tokens: request.max_new_tokens,
            route: request.route,
            threshold: request.threshold,
            max_llm_fraction: request.max_llm_fraction,
            query_score: request.query_score,
            seed: request.seed,
            choice: request.choice,
            ignore_eos: request.ignore_eos,
            stop_ids: request.stop_ids,
            min_tokens: request.min_tokens,
            priority: request.priority,
            cache_salt: request.cache_salt,
            score_prompt: request.prompt_logprobs,
        };
        let id = self.parts.core.submit(now, new).map_err(RefuseError::Submit)?;
        if self.live.len() <= id.slot() {
            self.live.resize_with(id.slot() + 1, || None);
        }
        self.live[id.slot()] = Some(live);
        self.requests.insert(client, id);
        Ok(())
    }

    fn take_completions(&mut self) -> bool {
        let mut worked = false;
        loop {
            let step = self.parts.executor.poll();
            // First: what of a broken model comes back is not delivered.
            worked |= self.take_broken();
            let Some(step) = step else { break };
            worked = true;
            let now = self.now();
            self.watch.ended(step.model);
            self.parts.status.finished(step.model.index(), step.failure.is_some(), now);
            match &step.failure {
                Some(why) => {
                    tracing::error!(model = step.model.0, "step failed: {why}");
                    self.parts.core.complete_failed(now, step.model, why);
                }
                None => {
                    if !step.scores.is_empty() {
                        self.take_scores(&step);
                    }
                    if let Err(error) = self.parts.core.complete(now, step.model, &step.results) {
                        tracing::error!(model = step.model.0, "step result refused: {error}");
                        self.parts.core.complete_failed(now, step.model, &error.to_string());
                    }
                }
            }
            self.parts.executor.recycle(step);
        }
        worked
    }

    /// Passes scores of prompts on and keeps those of candidates until it is known whether they are committed. Before the
    /// step is delivered, which may end its requests.
    fn take_scores(&mut self, step: &Step) {
        let core = &self.parts.core;
        let Some(batch) = core.batch(step.model) else { return };
        let mut sampled = step.score_tokens.len()..;
        for ((row, of_step), result) in batch.rows.iter().zip(&step.rows).zip(&step.results) {
            let asks = of_step.sample.as_ref().is_some_and(|spec| spec.logprobs.is_some());
            let place = if asks { sampled.next() } else { None };
            // None for a request that has ended meanwhile.
            let live = self.live.get_mut(row.request.slot()).and_then(Option::as_mut);
            let Some(live) = live.filter(|_| result.fault.is_none()) else { continue };
            live.candidate = place.and_then(|at| step.scores.get(at)).map(Box::new);
            let scores: Vec<_> = of_step.scored.clone().filter_map(|at| step.scores.get(at)).collect();
            if !scores.is_empty() {
                let start = core.scored(row, step.model).start + 1;
                self.outgoing.push(ClientEvent::Prompt { client: live.client, start, scores });
            }
        }
    }

    fn launch(&mut self) -> bool {
        let now = self.now();
        let launched = self.parts.core.launch(now);
        for model in (0..self.parts.models).map(|m| ModelId(m as u8)) {
            if launched.contains(model) {
                let mut step = self.parts.executor.buffers(model);
                self.fill(&mut step, model);
                if let Some(batch) = self.parts.core.batch(model) {
                    self.parts.status.launched(model.index(), batch, now);
                    self.watch.launched(model, batch.fed_tokens, now);
                }
                self.parts.executor.launch(step);
            }
        }
        !launched.is_empty()
    }

    /// Takes the reply of a round of planning.
    fn take_plan(&mut self) -> bool {
        let Some(reply) = self.parts.planner.as_ref().and_then(Planner::reply) else { return false };
        match reply {
            Some(reply) => self.parts.core.plan_done(reply),
            None => self.parts.core.plan_failed(),
        }
        true
    }

    /// Starts a round of planning if one is due. After the launch, since the devices need not wait for it.
    fn plan(&mut self) {
        let Some(planner) = self.parts.planner.as_ref().filter(|planner| planner.rested()) else { return };
        if let Some(job) = self.parts.core.plan_due()
            && !planner.offer(job)
        {
            tracing::error!("the planner takes no job; the policy in force stays");
            self.parts.core.plan_failed();
        }
    }

    /// Shows the estimates and the plan, a few times per second and once more after the last event.
    fn snapshot(&mut self) {
        let now = self.now();
        if self.snapshot_at.is_some_and(|at| at <= now) {
            self.parts.status.set_planner(self.parts.core.planner_status());
            (self.snapshot_at, self.last_snapshot) = (None, now);
        }
    }

    fn fill(&self, step: &mut Step, model: ModelId) {
        let core = &self.parts.core;
        let Some(batch) = core.batch(model) else { return };
        let wanted = core.signals(model);
        step.begin(batch.seq, model, signal_flags(wanted), head_mask(wanted));
        for row in &batch.rows {
            let fed = row.start as usize..(row.start + row.len) as usize;
            let sample = if row.samples { self.sample_spec(row, model) } else { None };
            step.push_row(core.tokens(row.request), fed.clone(), core.pages(row.request), sample);
            let scored = core.scored(row, model);
            if !scored.is_empty() {
                step.score_row(core.tokens(row.request), fed, scored, self.score_top(row));
            }
        }
    }

    /// How many of the likeliest ids are reported beside each token of a request's prompt.
    fn score_top(&self, row: &Row) -> u8 {
        let live = self.live.get(row.request.slot()).and_then(Option::as_ref);
        live.and_then(|live| live.logprobs).unwrap_or(0)
    }

    fn sample_spec(&self, row: &Row, model: ModelId) -> Option<SampleSpec> {
        let live = self.live.get(row.request.slot())?.as_ref()?;
        let prompt_len = self.parts.core.prompt_len(row.request);
        let position = row.start + row.len;
        Some(SampleSpec {
            sampling: live.sampling.clone(),
            key: DrawKey {
                seed: live.seed,
                choice: live.choice,
                position,
                purpose: Purpose::Sample,
                model: u32::from(model.0),
            },
            prompt_len,
            mask_stops: position - (prompt_len as u32) < live.min_tokens,
            logprobs: live.logprobs,
        })
    }

    fn collect_effects(&mut self) -> bool {
        let before = self.outgoing.len();
        for effect in self.parts.core.drain_effects() {
            match effect {
                Effect::Token { request, client, token, model } => {
                    self.parts.status.models[usize::from(model.0)].committed.fetch_add(1, Relaxed);
                    let live = self.live[request.slot()].as_mut().filter(|live| live.client == client);
                    let logprobs = live.and_then(|live| live.candidate.take());
                    self.outgoing.push(ClientEvent::Token { client, token, model: model.0, logprobs });
                }
                Effect::Terminal { request, client, reason, usage } => {
                    self.requests.remove(&client);
                    let entry = &mut self.live[request.slot()];
                    if entry.as_ref().is_some_and(|l| l.client == client) {
                        *entry = None;
                    }
                    self.parts.status.ended(&usage);
                    if let FinishReason::Failed(FailKind::Row { model, fault: RowFault::NonFinite }) = &reason
                    {
                        self.parts.status.models[model.index()].nonfinite.fetch_add(1, Relaxed);
                    }
                    self.outgoing.push(ClientEvent::Finished { client, reason, usage });
                }
            }
        }
        self.outgoing.len() > before
    }

    /// Hands the events over, or keeps them for the next turn when the queue is full: they are bounded by the
    /// max_tokens of the admitted requests (DESIGN rule 10).
    fn flush_reports(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let report = Report { events: std::mem::take(&mut self.outgoing) };
        match self.parts.reports.try_send(report) {
            Ok(()) => (self.parts.wake)(),
            Err(flume::TrySendError::Full(report)) => {
                self.outgoing = report.events;
                (self.parts.wake)();
            }
            Err(flume::TrySendError::Disconnected(_)) => {
                if !self.stopping {
                    self.shutdown();
                }
            }
        }
    }

    fn publish(&self) {
        self.parts.status.publish(&self.parts.core.counters(), self.parts.models, self.now());
        for model in 0..self.parts.models {
            let ungraphed = self.parts.executor.ungraphed(ModelId(model as u8));
            self.parts.status.set_ungraphed(model, ungraphed);
        }
    }
}

fn row_sampling(params: SamplingParams, eos_ids: &[u32], stop_ids: &[u32]) -> RowSampling {
    let needs_history = params.needs_history();
    let mut ids = eos_ids.to_vec();
    ids.extend_from_slice(stop_ids);
    RowSampling { params, stop_ids: ids, needs_history }
}

/// What a step computes for the routers that may read it.
pub(crate) fn signal_flags(wanted: SignalSet) -> SignalFlags {
    let pairs = [
        (SignalSet::ENTROPY, SignalFlags::ENTROPY),
        (SignalSet::TOP_K, SignalFlags::TOP_K),
        (SignalSet::MARGIN, SignalFlags::MARGIN),
    ];
    pairs
        .iter()
        .filter(|(set, _)| wanted.contains(*set))
        .fold(SignalFlags::default(), |flags, (_, flag)| flags.union(*flag))
}

/// The heads whose scores they read: bit `h` for head `h`.
pub(crate) fn head_mask(wanted: SignalSet) -> u8 {
    (0..MAX_HEADS).filter(|h| wanted.contains(SignalSet::score(*h))).fold(0, |mask, h| mask | 1 << h)
}
