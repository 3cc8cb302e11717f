//! The seam between the server and the engine: commands in, reports out, both bounded.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_scheduler::router::{Gauge, Terms};
use tokenrouter_scheduler::{
    FinishReason, Handoff, ModelId, ModelSet, PlannerConfig, Policy, RouteId, SubmitError, Threshold, Usage,
};

use crate::faults::FaultOptions;
use crate::heads::HeadInfo;
use crate::logprobs::TokenLogprobs;
use crate::status::EngineStatus;

/// The server's name for one choice of one request; unique for the life of the process.
pub type ClientId = u64;

/// One prompt and how to answer it. One choice of an API request is one of these.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Comes back in every event about this request.
    pub client: ClientId,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Upper bound on generated tokens, the end-of-sequence token included; at least 1, but see `prompt_logprobs`.
    pub max_new_tokens: u32,
    /// Which configured route answers.
    pub route: RouteId,
    /// Overrides the router's threshold for this request.
    pub threshold: Option<Threshold>,
    /// The most of the answer that models beside the route's entry may write (0 to 1); the route's own limit holds
    /// beside it.
    pub max_llm_fraction: Option<f32>,
    /// A score of the whole query, for routes that choose by it.
    pub query_score: Option<f32>,
    /// Sampling parameters; the same on whichever model samples.
    pub sampling: SamplingParams,
    /// Seed of every draw of this request.
    pub seed: u64,
    /// Index of the choice; draws of different choices are independent.
    pub choice: u32,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Further token ids that end the answer.
    pub stop_ids: Vec<u32>,
    /// End-of-sequence and stop ids cannot be sampled before this many tokens.
    pub min_tokens: u32,
    /// Higher is admitted first and preempted last.
    pub priority: i32,
    /// Only requests with the same salt share cached pages.
    pub cache_salt: Option<u64>,
    /// Report the log-probability of every token, and of this many of the likeliest (0 to 20).
    pub logprobs: Option<u8>,
    /// Report those of the prompt as well, by the model that the request starts at, with as many of the likeliest as
    /// `logprobs` says. Then `max_new_tokens` may be 0: the prompt is scored and nothing is written.
    pub prompt_logprobs: bool,
}

impl EngineRequest {
    /// A request with temperature 1 on the first route, and nothing else asked for.
    pub fn new(prompt: Vec<u32>, max_new_tokens: u32) -> Self {
        Self {
            client: 0,
            prompt,
            max_new_tokens,
            route: RouteId(0),
            threshold: None,
            max_llm_fraction: None,
            query_score: None,
            sampling: SamplingParams::default(),
            seed: 0,
            choice: 0,
            ignore_eos: false,
            stop_ids: Vec::new(),
            min_tokens: 0,
            priority: 0,
            cache_salt: None,
            logprobs: None,
            prompt_logprobs: false,
        }
    }
}

/// What the server asks of the engine.
#[derive(Debug)]
pub enum Command {
    /// Answer this request. The engine replies with tokens and one `Finished`, or one `Refused`.
    Submit(Box<EngineRequest>),
    /// The client left: free everything. Ends with `Finished { Cancelled }` unless already over.
    Cancel(ClientId),
    /// A stop string matched: `committed_len` generated tokens count, later ones are dropped.
    Stop {
        /// Which request.
        client: ClientId,
        /// How many generated tokens count.
        committed_len: u32,
    },
    /// Refuse new requests; finish what runs.
    Drain,
    /// Cancel everything and end the rank loop.
    Shutdown,
}

/// What the engine says about one request.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate for every request that ends")]
pub enum ClientEvent {
    /// Tokens of the prompt were scored. Comes before the first `Token`, in one or more parts that follow on each other
    /// and together cover every token of the prompt but the first.
    Prompt {
        /// Which request.
        client: ClientId,
        /// Index in the prompt of the first token that is scored, at least 1.
        start: usize,
        /// What the model said about that token and those behind it, given the tokens before each.
        scores: Vec<TokenLogprobs>,
    },
    /// One committed token.
    Token {
        /// Which request.
        client: ClientId,
        /// The token.
        token: u32,
        /// Index of the model that wrote it.
        model: u8,
        /// What that model said about it, if the request asks.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The one terminal of an accepted request.
    Finished {
        /// Which request.
        client: ClientId,
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The request was not accepted; nothing else follows.
    Refused {
        /// Which request.
        client: ClientId,
        /// Why, with numbers.
        error: RefuseError,
    },
}

/// Why a request was not accepted.
#[derive(Clone, Debug)]
pub enum RefuseError {
    /// The scheduler refused it.
    Submit(SubmitError),
    /// A token of the prompt has no embedding in some model.
    UnknownToken {
        /// The token.
        token: u32,
        /// Ids below this are known to all models.
        vocab: usize,
    },
    /// The engine is draining or stopped.
    Draining,
}

impl std::fmt::Display for RefuseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefuseError::Submit(e) => e.fmt(f),
            RefuseError::UnknownToken { token, vocab } => write!(
                f,
                "the prompt holds token {token}, which the models do not know; their vocabulary ends at {}",
                vocab.saturating_sub(1)
            ),
            RefuseError::Draining => f.write_str("the server is shutting down and takes no new requests"),
        }
    }
}

/// Everything one turn of the rank loop has to say.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which they happened.
    pub events: Vec<ClientEvent>,
}

/// One model as the server shows it.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    /// Name from the configuration.
    pub name: String,
    /// Its class, as the checkpoint names it.
    pub architecture: &'static str,
    /// Types of its weights (those of the output matrix) and of its cache, for people.
    pub dtypes: String,
    /// Rows of its embedding, padding included.
    pub vocab: usize,
    /// Longest context it was configured for, in tokens.
    pub context_len: usize,
    /// End-of-sequence ids its checkpoint declares.
    pub eos_ids: Vec<u32>,
    /// Its learned router heads; the index is what routers call `head`.
    pub heads: Vec<HeadInfo>,
}

/// One route as the server shows it.
#[derive(Clone, Debug)]
pub struct RouteInfo {
    /// The name clients ask for.
    pub name: String,
    /// Name of its router.
    pub router: String,
    /// The model that starts every answer.
    pub entry: ModelId,
    /// Every model it may visit.
    pub reach: ModelSet,
    /// What a request gets that says nothing: its threshold, where that came from, and its budget.
    pub terms: Terms,
    /// What the router compares with its threshold; none when it compares nothing.
    pub gauge: Option<Gauge>,
}

/// What is fixed once the engine has started. The default describes an engine without models.
#[derive(Clone, Debug, Default)]
pub struct EngineInfo {
    /// The models, in the order of the configuration.
    pub models: Vec<ModelInfo>,
    /// The routes; the index is the `RouteId`.
    pub routes: Vec<RouteInfo>,
    /// Longest context of a request: the smallest over all models and what the cache holds.
    pub context_len: usize,
    /// Union of the end-of-sequence ids over all models.
    pub eos_ids: Vec<u32>,
    /// Tokens that fit into the joint KV budget.
    pub capacity_tokens: usize,
    /// The memory plan as a printable table.
    pub plan_table: String,
    /// The launch policy of the configuration; with a planner, while there is no plan.
    pub policy: Policy,
    /// What a request takes along to another model.
    pub handoff: Handoff,
    /// Whether and how launches are planned.
    pub planner: Option<PlannerConfig>,
    /// What is done about devices that stop working.
    pub faults: FaultOptions,
}

/// The command could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The bounded command queue is full; try again later.
    Full,
    /// The engine has ended.
    Stopped,
}

/// How long a dropped handle waits for the rank loop: for the steps in flight and for what the devices hold.
const FAREWELL: Duration = Duration::from_secs(20);

/// The server's end of the engine. Dropping it ends the rank loop and waits until everything on the devices is gone: a
/// process that ends while a thread of its own still talks to a driver may crash in it.
pub struct EngineHandle {
    /// Taken only by `drop`, like the next two.
    commands: Option<flume::Sender<Command>>,
    reports: Option<flume::Receiver<Report>>,
    rank: Option<JoinHandle<()>>,
    notify: Box<dyn Fn() + Send + Sync>,
    /// What is fixed.
    pub info: EngineInfo,
    /// What changes.
    pub status: Arc<EngineStatus>,
}

impl EngineHandle {
    /// Joins the parts; `notify` wakes the rank loop after a command was queued.
    pub fn new(
        commands: flume::Sender<Command>,
        reports: flume::Receiver<Report>,
        notify: Box<dyn Fn() + Send + Sync>,
        info: EngineInfo,
        status: Arc<EngineStatus>,
    ) -> Self {
        Self { commands: Some(commands), reports: Some(reports), rank: None, notify, info, status }
    }

    /// The thread of the rank loop, to be waited for.
    pub(crate) fn with_rank(mut self, rank: JoinHandle<()>) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Queues a command without blocking.
    ///
    /// # Errors
    /// `Full` when the bounded queue has no room, `Stopped` when the rank loop has ended.
    pub fn try_send(&self, command: Command) -> Result<(), SendError> {
        let Some(commands) = &self.commands else { return Err(SendError::Stopped) };
        match commands.try_send(command) {
            Ok(()) => {
                (self.notify)();
                Ok(())
            }
            Err(flume::TrySendError::Full(_)) => Err(SendError::Full),
            Err(flume::TrySendError::Disconnected(_)) => Err(SendError::Stopped),
        }
    }

    /// Queues a command, waiting for room. For callers that are not a network thread.
    ///
    /// # Errors
    /// `Stopped` when the rank loop has ended.
    pub fn send(&self, command: Command) -> Result<(), SendError> {
        let Some(commands) = &self.commands else { return Err(SendError::Stopped) };
        commands.send(command).map_err(|_| SendError::Stopped)?;
        (self.notify)();
        Ok(())
    }

    /// The next report, if one is queued.
    pub fn try_report(&self) -> Option<Report> {
        self.reports.as_ref()?.try_recv().ok()
    }

    /// Waits for the next report; `None` when the engine has ended.
    pub fn wait_report(&self) -> Option<Report> {
        self.reports.as_ref()?.recv().ok()
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        // The loop may be parked: it sees the closed queues only when woken. Nobody reads reports any more.
        self.commands = None;
        self.reports = None;
        (self.notify)();
        let Some(rank) = self.rank.take() else { return };
        let until = Instant::now() + FAREWELL;
        while !rank.is_finished() {
            if Instant::now() >= until {
                tracing::error!("a step has not ended after {} s; leaving it behind", FAREWELL.as_secs());
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A panic of the loop has shown itself already, and the status says that it has stopped.
        let _ = rank.join();
    }
}
