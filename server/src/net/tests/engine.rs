//! A thread that speaks commands and reports, and does what the prompts say.
//!
//! | prompt | behaviour |
//! | --- | --- |
//! | `refuse-full`, `refuse-context` | refused |
//! | `fail`, `fail-late` | fails before, after its first token |
//! | `lose`, `lose-late` | its model is lost before, after its first token |
//! | `refuse-lost` | refused, because its model is lost |
//! | `hang`, `hang-late` | no token, one token, then silence until cancel or stop |
//! | `slow` | one token every 2 ms |
//! | others | all tokens at once |

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokenrouter_engine::handle::{
    ClientEvent, ClientId, Command, EngineHandle, EngineInfo, EngineRequest, ModelInfo, RefuseError, Report,
};
use tokenrouter_engine::{EngineState, EngineStatus};
use tokenrouter_scheduler::{FailKind, FinishReason, ModelId, RowFault, SubmitError, Usage};

/// The test's view of the engine.
pub(super) struct FakeEngine {
    log: Arc<Mutex<Vec<String>>>,
    pub(super) status: Arc<EngineStatus>,
}

impl FakeEngine {
    pub(super) fn start(wake: Box<dyn Fn() + Send + Sync>) -> (Self, EngineHandle) {
        // Small queues, so that the tests meet full ones.
        let (commands, inbox) = flume::bounded(4);
        let (outbox, reports) = flume::bounded(2);
        let status = Arc::new(EngineStatus::default());
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut worker = Worker { outbox, wake, log: log.clone(), live: Vec::new(), draining: false };
        let ended = status.clone();
        std::thread::spawn(move || {
            worker.run(&inbox);
            ended.set_state(EngineState::Stopped);
            (worker.wake)();
        });
        let model = ModelInfo {
            name: "small".into(),
            vocab: 256,
            context_len: 512,
            eos_ids: vec![0],
            ..ModelInfo::default()
        };
        let info = EngineInfo {
            models: vec![model],
            context_len: 512,
            eos_ids: vec![0],
            capacity_tokens: 4096,
            ..EngineInfo::default()
        };
        let handle = EngineHandle::new(commands, reports, Box::new(|| {}), info, status.clone());
        (Self { log, status }, handle)
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until so many lines of the log begin with `start`.
    pub(super) fn wait_for(&self, start: &str, count: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.log().iter().filter(|line| line.starts_with(start)).count() < count {
            assert!(Instant::now() < end, "no {count} x {start:?} in {:?}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn count(&self, start: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(start)).count()
    }

    /// Pretends that the step in flight may take so many times as long as others.
    pub(super) fn set_times_in_flight(&self, times: u64) {
        self.status.models[0].in_flight_times.store(times, Ordering::Relaxed);
    }

    /// Pretends that a step has been running since `since`.
    pub(super) fn set_in_flight(&self, since: u64) {
        self.status.models[0].in_flight_since.store(since, Ordering::Relaxed);
    }
}

struct Live {
    request: EngineRequest,
    script: String,
    written: u32,
}

struct Worker {
    outbox: flume::Sender<Report>,
    wake: Box<dyn Fn() + Send + Sync>,
    log: Arc<Mutex<Vec<String>>>,
    live: Vec<Live>,
    draining: bool,
}

impl Worker {
    fn run(&mut self, inbox: &flume::Receiver<Command>) {
        loop {
            match inbox.recv_timeout(Duration::from_millis(2)) {
                Ok(Command::Shutdown) | Err(flume::RecvTimeoutError::Disconnected) => {
                    self.note("shutdown");
                    return;
                }
                Ok(command) => self.command(command),
                Err(flume::RecvTimeoutError::Timeout) => {}
            }
            let mut events = Vec::new();
            self.live.retain_mut(|live| live.advance(&mut events));
            self.report(events);
        }
    }

    fn note(&self, text: impl Into<String>) {
        self.log.lock().unwrap().push(text.into());
    }

    fn report(&self, events: Vec<ClientEvent>) {
        if !events.is_empty() && self.outbox.send(Report { events }).is_ok() {
            (self.wake)();
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Submit(request) => {
                let client = request.client;
                let script: String = request.prompt.iter().map(|byte| *byte as u8 as char).collect();
                self.note(format!("submit {script}"));
                let error = match script.as_str() {
                    _ if self.draining => Some(RefuseError::Draining),
                    "refuse-full" => Some(RefuseError::Submit(SubmitError::QueueFull { waiting: 9 })),
                    "refuse-context" => Some(RefuseError::Submit(SubmitError::ContextExceeded {
                        prompt: 600,
                        max_new_tokens: 3,
                        context_len: 512,
                    })),
                    "refuse-lost" => Some(RefuseError::Submit(SubmitError::ModelLost { model: ModelId(0) })),
                    _ => None,
                };
                match error {
                    Some(error) => self.report(vec![ClientEvent::Refused { client, error }]),
                    None => self.live.push(Live { request: *request, script, written: 0 }),
                }
            }
            Command::Cancel(client) => {
                self.note("cancel");
                self.end(client, FinishReason::Cancelled);
            }
            Command::Stop { client, committed_len } => {
                self.note(format!("stop {committed_len}"));
                self.end(client, FinishReason::Stop);
            }
            Command::Drain => {
                self.note("drain");
                self.draining = true;
            }
            Command::Shutdown => {}
        }
    }

    fn end(&mut self, client: ClientId, reason: FinishReason) {
        if let Some(at) = self.live.iter().position(|live| live.request.client == client) {
            self.live.remove(at);
            self.report(vec![ClientEvent::Finished { client, reason, usage: Usage::default() }]);
        }
    }
}

impl Live {
    /// False when over.
    fn advance(&mut self, events: &mut Vec<ClientEvent>) -> bool {
        let client = self.request.client;
        let limit = match self.script.as_str() {
            "hang" | "fail" | "lose" => 0,
            "hang-late" | "fail-late" | "lose-late" => 1,
            "slow" => self.written + 1,
            _ => u32::MAX,
        };
        while self.written < limit.min(self.request.max_new_tokens) {
            self.written += 1;
            events.push(ClientEvent::Token { client, token: self.written, model: 0, logprobs: None });
        }
        let reason = match self.script.as_str() {
            "fail" | "fail-late" => {
                FinishReason::Failed(FailKind::Row { model: ModelId(0), fault: RowFault::NonFinite })
            }
            "lose" | "lose-late" => FinishReason::Failed(FailKind::ModelLost { model: ModelId(0) }),
            // One that waits for a stop must not be over before it.
            "hang" | "hang-late" => return true,
            _ if self.written == self.request.max_new_tokens => FinishReason::Length,
            _ => return true,
        };
        let usage = Usage { completion_tokens: self.written, ..Usage::default() };
        events.push(ClientEvent::Finished { client, reason, usage });
        false
    }
}
