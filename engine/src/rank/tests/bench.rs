//! A rank loop over a pretend executor: steps end when the test says so, and models break.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokenrouter_scheduler::router::{Fixed, Router, Single};
use tokenrouter_scheduler::{
    Core, CoreConfig, FinishReason, Handoff, ModelId, ModelLimits, ModelSet, Policy, RouteId, RowFault,
    RowResult, Usage,
};

use crate::executor::Executor;
use crate::faults::FaultOptions;
use crate::handle::{ClientEvent, Command, EngineHandle, EngineInfo, EngineRequest, RefuseError, Report};
use crate::rank::RankLoop;
use crate::status::EngineStatus;
use crate::step::{Step, StepLimits};

pub(super) const A: ModelId = ModelId(0);
pub(super) const B: ModelId = ModelId(1);
/// Pages of the cache.
pub(super) const PAGES: u64 = 2_000;
/// Rows in a step.
pub(super) const ROWS: usize = 3;

const LIMITS: StepLimits = StepLimits { rows: ROWS, tokens: 20_000, context_len: 20_000 };

/// What the test decides.
#[derive(Default)]
pub(super) struct Faults {
    /// Steps of these models do not end.
    pub(super) hung: ModelSet,
    /// The row of this seed that samples at this position has no finite logits.
    pub(super) poisoned: Vec<(u64, u32)>,
    /// Steps that were launched, and not ended.
    held: VecDeque<Box<Step>>,
    ended: VecDeque<Box<Step>>,
    spare: [Option<Box<Step>>; 2],
    broken: VecDeque<(ModelId, String)>,
    /// Rows launched, by model.
    pub(super) rows: [usize; 2],
    pub(super) abandoned: Vec<ModelId>,
    /// Nobody wakes the loop when a step ends.
    pub(super) polled: bool,
    /// Its end waits for the held steps.
    waits: bool,
}

impl Faults {
    fn end_held(&mut self, model: ModelId) {
        let (ended, held): (VecDeque<_>, _) = self.held.drain(..).partition(|step| step.model == model);
        self.held = held;
        self.ended.extend(ended);
    }
}

struct Fake(Arc<Mutex<Faults>>);

impl Executor for Fake {
    fn buffers(&mut self, model: ModelId) -> Box<Step> {
        let spare = self.0.lock().unwrap().spare[model.index()].take();
        spare.unwrap_or_else(|| Box::new(Step::new(LIMITS)))
    }
    fn launch(&mut self, mut step: Box<Step>) {
        let mut faults = self.0.lock().unwrap();
        assert!(!faults.held.iter().any(|held| held.model == step.model), "one step in flight");
        fill(&mut step, &faults.poisoned);
        faults.rows[step.model.index()] += step.rows.len();
        match faults.hung.contains(step.model) {
            true => faults.held.push_back(step),
            false => faults.ended.push_back(step),
        }
    }
    fn poll(&mut self) -> Option<Box<Step>> {
        self.0.lock().unwrap().ended.pop_front()
    }
    fn recycle(&mut self, step: Box<Step>) {
        let model = step.model.index();
        self.0.lock().unwrap().spare[model] = Some(step);
    }
    fn broken(&mut self) -> Option<(ModelId, String)> {
        self.0.lock().unwrap().broken.pop_front()
    }
    fn abandon(&mut self, model: ModelId, _why: &str) {
        self.0.lock().unwrap().abandoned.push(model);
    }
    fn must_poll(&self) -> bool {
        let faults = self.0.lock().unwrap();
        faults.polled && !faults.held.is_empty()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        while !self.0.lock().is_ok_and(|faults| !faults.waits || faults.held.is_empty()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The next token is a function of the last one, the position, the seed and the model.
fn fill(step: &mut Step, poisoned: &[(u64, u32)]) {
    let mut sampled = 0;
    for index in 0..step.rows.len() {
        let mut result = RowResult::default();
        if let Some(spec) = &step.rows[index].sample {
            let last = step.ids[step.logit_tokens[sampled] as usize];
            sampled += 1;
            let (seed, position) = (spec.key.seed, spec.key.position);
            result.token = (last * 31 + position * 7 + seed as u32 * 3 + spec.key.model * 11) % 500;
            result.fault = poisoned.contains(&(seed, position)).then_some(RowFault::NonFinite);
        }
        step.results.push(result);
    }
}

/// How one request has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) reason: FinishReason,
    pub(super) usage: Usage,
}

/// A running loop and what has come of it.
pub(super) struct Bench {
    pub(super) handle: EngineHandle,
    faults: Arc<Mutex<Faults>>,
    rank: Arc<OnceLock<Thread>>,
    pub(super) tokens: HashMap<u64, Vec<(u32, u8)>>,
    pub(super) ended: HashMap<u64, Ended>,
    pub(super) refused: HashMap<u64, RefuseError>,
}

/// Route 0 lets B write half of the tokens, routes 1 and 2 are A and B alone.
fn core(faults: FaultOptions) -> Core {
    let config = CoreConfig {
        models: vec![ModelLimits { max_batch_rows: ROWS, max_step_tokens: LIMITS.tokens }; 2],
        pages: PAGES as usize,
        context_len: LIMITS.context_len,
        max_waiting: 2_000,
        max_running: 8,
        eos_ids: Vec::new(),
        guard: 1_000_000,
        policy: Policy::Eager,
        prefix_cache: false,
        reserve_pages: 0,
        planner: None,
        handoff: Handoff::default(),
    };
    let routes: Vec<Box<dyn Router>> =
        vec![Box::new(Fixed::new(A, B, 0.5)), Box::new(Single::new(A)), Box::new(Single::new(B))];
    Core::new(config, routes).unwrap().on_peer_loss(faults.on_peer_loss)
}

impl Bench {
    pub(super) fn start(options: FaultOptions) -> Self {
        let (commands, inbox) = flume::bounded(4_000);
        let (outbox, reports) = flume::bounded::<Report>(256);
        let (status, faults, rank) =
            (Arc::new(EngineStatus::default()), Arc::default(), Arc::new(OnceLock::<Thread>::new()));
        let running = RankLoop {
            core: core(options),
            executor: Box::new(Fake(Arc::clone(&faults))),
            planner: None,
            commands: inbox,
            reports: outbox,
            wake: Arc::new(|| {}),
            status: status.clone(),
            eos_ids: Vec::new(),
            models: 2,
            faults: options,
            vocab: 1_000,
        };
        let thread = std::thread::spawn(move || running.run());
        let _ = rank.set(thread.thread().clone());
        let unpark = rank.clone();
        let notify = Box::new(move || unpark.get().map_or((), Thread::unpark));
        let handle =
            EngineHandle::new(commands, reports, notify, EngineInfo::default(), status).with_rank(thread);
        Self { handle, faults, rank, tokens: HashMap::new(), ended: HashMap::new(), refused: HashMap::new() }
    }

    /// Changes what the test decides, and lets the loop look.
    pub(super) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
        if let Some(thread) = self.rank.get() {
            thread.unpark();
        }
    }

    pub(super) fn hang(&self, model: ModelId) {
        self.set(|faults| faults.hung.insert(model));
    }

    /// What hung at the model ends, and so does what comes.
    pub(super) fn release(&self, model: ModelId) {
        self.set(|faults| {
            faults.hung = faults.hung.without(ModelSet::of(model));
            faults.end_held(model);
        });
    }

    /// What hung at the model ends; what comes hangs as before.
    pub(super) fn pass(&self, model: ModelId) {
        self.set(|faults| faults.end_held(model));
    }

    /// The model takes no step any more; the one in flight comes back as failed.
    pub(super) fn kill(&self, model: ModelId) {
        self.set(|faults| {
            faults.broken.push_back((model, "rank 7: its thread has died".into()));
            faults.held.iter_mut().filter(|step| step.model == model).for_each(|step| {
                step.failure = Some("its thread has died".into());
            });
        });
        self.release(model);
    }

    /// The end of the executor waits for what is held.
    pub(super) fn end_waits(&self) {
        self.set(|faults| faults.waits = true);
    }

    pub(super) fn look<T>(&self, at: impl FnOnce(&Faults) -> T) -> T {
        at(&self.faults.lock().unwrap())
    }

    pub(super) fn held(&self, model: ModelId) -> bool {
        self.look(|faults| faults.held.iter().any(|step| step.model == model))
    }

    pub(super) fn submit(&self, client: u64, route: u16, prompt: usize, tokens: u32) {
        let request = EngineRequest {
            client,
            seed: client,
            route: RouteId(route),
            ..EngineRequest::new((1..).take(prompt).map(|id| id % 900).collect(), tokens)
        };
        self.handle.send(Command::Submit(Box::new(request))).unwrap();
    }

    /// Takes reports until `done` says so; a minute without is a failure.
    #[track_caller]
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        loop {
            while let Some(report) = self.handle.try_report() {
                report.events.into_iter().for_each(|event| self.take(event));
            }
            if done(self) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.handle.status);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn take(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Token { client, token, model, .. } => {
                assert!(!self.ended.contains_key(&client), "a token after the end of {client}");
                self.tokens.entry(client).or_default().push((token, model));
            }
            ClientEvent::Finished { client, reason, usage } => {
                let before = self.ended.insert(client, Ended { reason, usage });
                assert!(before.is_none(), "{client} ends twice");
            }
            ClientEvent::Refused { client, error } => drop(self.refused.insert(client, error)),
            ClientEvent::Prompt { .. } => panic!("nobody asked"),
        }
    }

    /// All requests have ended.
    #[track_caller]
    pub(super) fn all_end(&mut self, clients: std::ops::Range<u64>) {
        self.until("all end", |bench| clients.clone().all(|client| bench.ended.contains_key(&client)));
    }
}
