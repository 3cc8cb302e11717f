//! From a configuration to a running engine: open every model, plan memory once, build, start the rank loops.

mod check;
mod probed;
mod ranks;
mod threads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use tokenrouter_kernels::DType;
use tokenrouter_scheduler::router::{ParamValue, Registry, Router, RouterError, RouterSpec, SignalSet};
use tokenrouter_scheduler::{
    ConfigError, Core, CoreConfig, Handoff, MAX_HEADS, Measured, ModelId, ModelLimits, Nanos, PAGE_TOKENS,
    PlanJob, PlannerConfig, Policy,
};

use crate::budget::BudgetError;
#[cfg(feature = "cuda-host")]
use crate::cuda::CudaStartError;
use crate::device::DeviceKind;
use crate::error::LoadError;
use crate::executor::{Executor, RankExecutor};
use crate::faults::FaultOptions;
use crate::handle::{EngineHandle, EngineInfo, ModelInfo, RouteInfo};
use crate::heads::HeadInfo;
use crate::model::{Model, ModelOptions, OpenModel};
use crate::planner::Planner;
use crate::rank::RankLoop;
use crate::ranks::Placed;
use crate::status::EngineStatus;
use crate::weights::WeightForm;

pub use check::{Checked, check};
pub(crate) use probed::build_probed;
pub use probed::{context_len, prints};

/// Commands queued to the rank loop at most; the server answers 429 beyond.
const COMMAND_QUEUE: usize = 1024;
/// Reports queued to the server at most; the rank loop then merges.
const REPORT_QUEUE: usize = 256;
/// A ready request launches at the latest after this long, or eight steps of every model if that is longer: for
/// faults only.
const GUARD: Nanos = 100_000_000;

/// One model of a deployment.
#[derive(Clone, Debug)]
pub struct EngineModel {
    /// Name in tables, answers and errors.
    pub name: String,
    /// Folder of the checkpoint.
    pub dir: PathBuf,
    /// The form of its linear layers in memory.
    pub weights: WeightForm,
    /// Threads of its worker groups on the CPU, divided over its devices; 0 is one per core,
    /// and the cores are shared with the other models that have 0 here.
    pub threads: usize,
    /// Most rows in one step.
    pub max_batch_rows: usize,
    /// Most fed tokens in one step.
    pub max_step_tokens: usize,
    /// The devices that hold it, one part each; `[0]` is the whole model on the first device.
    pub devices: Vec<usize>,
    /// Folders of its router heads, at most [`MAX_HEADS`](tokenrouter_scheduler::MAX_HEADS); the index is the head's.
    pub heads: Vec<PathBuf>,
}

/// What makes an engine faster and changes no answer. Lists have an entry per model; a shorter one says nothing about the
/// rest.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Step times that were measured on this machine.
    pub measured: Vec<Measured>,
    /// The cores that the threads of a model are bound to, on the CPU; empty: wherever the system puts them.
    pub cores: Vec<Vec<usize>>,
}

impl Hints {
    fn cores_of(&self, model: usize) -> &[usize] {
        self.cores.get(model).map_or(&[], Vec::as_slice)
    }
}

/// A route: a router with its parameters under a served name.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// The name clients ask for.
    pub name: String,
    /// The router's name in the registry.
    pub router: String,
    /// Its parameters.
    pub params: BTreeMap<String, ParamValue>,
}

/// Everything the engine needs to start.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The models; the index is the `ModelId`, the first is the entry model.
    pub models: Vec<EngineModel>,
    /// The routes; the index is the `RouteId`.
    pub routes: Vec<RouteConfig>,
    /// What the models run on.
    pub device: DeviceKind,
    /// Bytes for weights, buffers and KV caches together, on the CPU.
    pub budget_bytes: u64,
    /// Type of the KV cache.
    pub kv_dtype: DType,
    /// Longest context in tokens; 0 takes the smallest maximum of the models.
    pub context_len: usize,
    /// Whether pages of a common prefix are shared and kept for later prompts.
    pub prefix_cache: bool,
    /// Pages that must stay free when a request is admitted, so that those admitted can grow.
    pub reserve_pages: usize,
    /// Most admitted requests.
    pub max_running: usize,
    /// Most waiting requests.
    pub max_waiting: usize,
    /// Ids that a tokenizer produces are below this; the others are padding and masked.
    pub real_vocab: usize,
    /// End-of-sequence ids that the tokenizers declare, beside those of the checkpoints.
    pub eos_ids: Vec<u32>,
    /// When models launch; with a planner, while there is no plan.
    pub policy: Policy,
    /// What a request takes along to another model.
    pub handoff: Handoff,
    /// Plans launches from what the engine measures as it runs.
    pub planner: Option<PlannerConfig>,
    /// What is done about devices that stop working.
    pub faults: FaultOptions,
}

/// Why the engine did not start.
#[derive(Debug)]
pub enum EngineError {
    /// A checkpoint was refused.
    Load {
        /// The model's name.
        model: String,
        /// What is wrong.
        error: LoadError,
    },
    /// A model is placed where it cannot be.
    Placement {
        /// The model's name.
        model: String,
        /// The value and what would be right.
        problem: String,
    },
    /// The device cannot be used here.
    Device(String),
    /// The models do not fit.
    Budget(BudgetError),
    /// The GPUs refused something, or do not hold the models.
    #[cfg(feature = "cuda-host")]
    Cuda(CudaStartError),
    /// A router could not be made.
    Router(RouterError),
    /// A router reads the score of a head that its entry model does not have.
    NoHead {
        /// The route's name.
        route: String,
        /// The router's name.
        router: String,
        /// The head's index.
        head: usize,
        /// The entry model's name.
        model: String,
        /// How many heads that model has.
        has: usize,
    },
    /// The scheduler refused its limits or a route.
    Config(ConfigError),
    /// The operating system refused a thread.
    Thread(std::io::Error),
    /// The threads of a model cannot run on the cores that it was given.
    Cores {
        /// The model's name.
        model: String,
        /// The cores.
        cores: Vec<usize>,
        /// What the system says.
        error: std::io::Error,
    },
    /// The budget does not hold the cache that a measurement needs.
    Room {
        /// Tokens that it needs.
        needed: usize,
        /// Tokens that the budget holds.
        has: usize,
    },
    /// No model is configured, or too many for the scheduler.
    Models(usize),
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Load { model, error } => write!(f, "model \"{model}\": {error}"),
            EngineError::Placement { model, problem } => write!(f, "model \"{model}\": {problem}"),
            EngineError::Device(why) => f.write_str(why),
            EngineError::Budget(e) => e.fmt(f),
            #[cfg(feature = "cuda-host")]
            EngineError::Cuda(e) => e.fmt(f),
            EngineError::Router(e) => e.fmt(f),
            EngineError::NoHead { route, router, head, model, has } => write!(
                f,
                "route \"{route}\": router `{router}` reads the score of head {head}, but model \"{model}\" has {has} \
                 router heads; name a router file for it, or another `head`"
            ),
            EngineError::Config(e) => e.fmt(f),
            EngineError::Thread(e) => write!(f, "a thread could not be started: {e}"),
            EngineError::Cores { model, cores, error } => {
                write!(f, "model \"{model}\": its threads cannot run on cores {cores:?}: {error}")
            }
            EngineError::Room { needed, has } => {
                write!(f, "the measurement needs a cache of {needed} tokens, and the budget holds {has}")
            }
            EngineError::Models(n) => write!(f, "{n} models are configured; at least one is needed"),
        }
    }
}

impl std::error::Error for EngineError {}

/// Loads the models and starts the rank loop. `wake` is called after each report was queued, and once more
/// when the engine has ended.
///
/// # Errors
/// `EngineError`, which names the model, file and field, the router parameter, or the bytes that are missing.
pub fn start(
    config: &EngineConfig,
    registry: &Registry,
    wake: Box<dyn Fn() + Send + Sync>,
) -> Result<EngineHandle, EngineError> {
    start_hinted(config, registry, &Hints::default(), wake)
}

/// As [`start`], with what is known about the machine.
///
/// # Errors
/// As `start`, and [`EngineError::Cores`].
pub fn start_hinted(
    config: &EngineConfig,
    registry: &Registry,
    hints: &Hints,
    wake: Box<dyn Fn() + Send + Sync>,
) -> Result<EngineHandle, EngineError> {
    start_with(config, registry, hints, wake, |executor| executor)
}

/// As [`start`], with an executor of the caller's around the engine's: tests let steps fail, hang and break there.
///
/// # Errors
/// As `start`.
pub fn start_wrapped(
    config: &EngineConfig,
    registry: &Registry,
    wake: Box<dyn Fn() + Send + Sync>,
    wrap: impl FnOnce(Box<dyn Executor>) -> Box<dyn Executor>,
) -> Result<EngineHandle, EngineError> {
    start_with(config, registry, &Hints::default(), wake, wrap)
}

fn start_with(
    config: &EngineConfig,
    registry: &Registry,
    hints: &Hints,
    wake: Box<dyn Fn() + Send + Sync>,
    wrap: impl FnOnce(Box<dyn Executor>) -> Box<dyn Executor>,
) -> Result<EngineHandle, EngineError> {
    config.device.check().map_err(EngineError::Device)?;
    let open = open_models(config)?;
    let placement = ranks::place(config, &open)?;
    let options: Vec<ModelOptions> = model_options(config, &open, hints);
    let routes = build_routes(config, registry, &open)?;
    check_heads(config, &open, &routes)?;
    // The caches come before the scheduler: a budget that the machine does not have is refused by the one large
    // allocation, before a table of its pages is made.
    let built = ranks::build_ranks(config, &placement, &open, &options, hints)?;
    let info = engine_info(config, &open, &options, (built.pages, built.plan_table), &routes);

    let status = Arc::new(EngineStatus::default());
    status.pages_total.store(built.pages as u64, Relaxed);
    status.pages_free.store(built.pages as u64, Relaxed);
    let rank_thread = Arc::new(OnceLock::<Thread>::new());
    let unpark = {
        let rank_thread = rank_thread.clone();
        move || {
            if let Some(thread) = rank_thread.get() {
                thread.unpark();
            }
        }
    };
    let core = Core::new(core_config(config, &info, built.pages), routes)
        .map_err(EngineError::Config)?
        .measured(&hints.measured)
        .exclusive(&placement.exclusive())
        .on_peer_loss(config.faults.on_peer_loss);
    let placed = built.graph_keys.into_iter().zip(&options).enumerate().map(|(model, (graph, options))| {
        Placed { devices: placement.devices(model).to_vec(), graph, limits: ranks::step_limits(options) }
    });
    let executor = RankExecutor::start(built.ranks, placed.collect(), Arc::new(unpark.clone()))
        .map_err(EngineError::Thread)?;
    let planner = match config.planner {
        // One model has nothing to plan.
        Some(_) if config.models.len() > 1 => {
            Some(Planner::start(PlanJob::run, Arc::new(unpark.clone())).map_err(EngineError::Thread)?)
        }
        _ => None,
    };
    let (commands, inbox) = flume::bounded(COMMAND_QUEUE);
    let (outbox, reports) = flume::bounded(REPORT_QUEUE);
    let rank = RankLoop {
        core,
        executor: wrap(Box::new(executor)),
        planner,
        commands: inbox,
        reports: outbox,
        wake: Arc::from(wake),
        status: status.clone(),
        eos_ids: info.eos_ids.clone(),
        models: config.models.len(),
        faults: config.faults,
        vocab: info.models.iter().map(|m| m.vocab).min().unwrap_or(0),
    };
    let thread = std::thread::Builder::new()
        .name("rank-0".into())
        .spawn(move || rank.run())
        .map_err(EngineError::Thread)?;
    // A command sent before this line is seen by the loop's first turn, which has not parked yet.
    let _ = rank_thread.set(thread.thread().clone());
    thread.thread().unpark();
    Ok(EngineHandle::new(commands, reports, Box::new(unpark), info, status).with_rank(thread))
}

fn open_models(config: &EngineConfig) -> Result<Vec<OpenModel>, EngineError> {
    if config.models.is_empty() {
        return Err(EngineError::Models(0));
    }
    let open = |m: &EngineModel| {
        Model::open(&m.dir)
            .and_then(|open| open.with_form(m.weights).with_heads(&m.heads))
            .map_err(|error| EngineError::Load { model: m.name.clone(), error })
    };
    config.models.iter().map(open).collect()
}

fn model_options(config: &EngineConfig, open: &[OpenModel], hints: &Hints) -> Vec<ModelOptions> {
    // One context length for all: a request that fits, fits on every model.
    let asked = if config.context_len == 0 { usize::MAX } else { config.context_len };
    let context_len = open.iter().map(|m| m.config().context_len(asked)).min().unwrap_or(1);
    // A token that one model cannot embed must not be sampled by another.
    let vocab = open.iter().map(|m| m.config().vocab_size).min().unwrap_or(0).min(config.real_vocab);
    // Nor must a token that says "defer" (Co-LLM) be written by anybody.
    let masked = open.iter().filter_map(OpenModel::first_masked_id).min();
    let real_vocab = masked.map_or(vocab, |id| vocab.min(id as usize));
    let options = |(index, m): (usize, &EngineModel)| ModelOptions {
        threads: match (m.threads, hints.cores_of(index).len()) {
            (0, 0) => threads::available(),
            (0, cores) => cores,
            (threads, _) => threads,
        },
        max_batch_rows: m.max_batch_rows,
        max_step_tokens: m.max_step_tokens,
        kv_dtype: config.kv_dtype,
        real_vocab,
        context_len,
    };
    config.models.iter().enumerate().map(options).collect()
}

fn engine_info(
    config: &EngineConfig,
    open: &[OpenModel],
    options: &[ModelOptions],
    (pages, plan_table): (usize, String),
    routes: &[Box<dyn Router>],
) -> EngineInfo {
    let capacity_tokens = pages * PAGE_TOKENS;
    // A request's whole lifetime must fit the cache, so more than that is no context to offer.
    let context_len = options.first().map_or(0, |o| o.context_len).min(capacity_tokens);
    let kv_dtype = options.first().map_or(DType::F16, |o| o.kv_dtype);
    let models: Vec<ModelInfo> = config
        .models
        .iter()
        .zip(open)
        .map(|(named, model)| ModelInfo {
            name: named.name.clone(),
            architecture: model.config().architecture.class_name(),
            dtypes: format!("weights {}, cache {}", model.weights_name(), kv_dtype.name()),
            vocab: model.config().vocab_size,
            context_len: model.config().context_len(usize::MAX),
            eos_ids: model.config().eos_ids.clone(),
            heads: model.heads(),
        })
        .collect();
    let mut eos_ids: Vec<u32> = models.iter().flat_map(|m| m.eos_ids.iter().copied()).collect();
    eos_ids.extend_from_slice(&config.eos_ids);
    eos_ids.sort_unstable();
    eos_ids.dedup();
    EngineInfo {
        models,
        routes: config
            .routes
            .iter()
            .zip(routes)
            .map(|(named, router)| route_info(named, &**router))
            .collect(),
        context_len,
        eos_ids,
        capacity_tokens,
        plan_table,
        policy: config.policy.clone(),
        handoff: config.handoff,
        planner: config.planner,
        faults: config.faults,
    }
}

fn route_info(named: &RouteConfig, router: &dyn Router) -> RouteInfo {
    RouteInfo {
        name: named.name.clone(),
        router: router.name().to_owned(),
        entry: router.entry(),
        reach: router.reach(),
        terms: router.terms(),
        gauge: router.gauge(),
    }
}

fn build_routes(
    config: &EngineConfig,
    registry: &Registry,
    open: &[OpenModel],
) -> Result<Vec<Box<dyn Router>>, EngineError> {
    let vocab: Vec<usize> = open.iter().map(|m| m.config().vocab_size).collect();
    let for_routers = |m: &OpenModel| m.heads().iter().map(HeadInfo::for_router).collect::<Vec<_>>();
    let heads: Vec<_> = open.iter().map(for_routers).collect();
    let build = |route: &RouteConfig| {
        let spec = RouterSpec {
            models: config.models.len(),
            entry: ModelId(0),
            vocab: &vocab,
            heads: Some(&heads),
            params: route.params.clone(),
        };
        registry.build(&route.router, &spec).map_err(EngineError::Router)
    };
    config.routes.iter().map(build).collect()
}

/// The router asks the entry model's heads: those it names must be there.
fn check_heads(
    config: &EngineConfig,
    open: &[OpenModel],
    routes: &[Box<dyn Router>],
) -> Result<(), EngineError> {
    for (named, router) in config.routes.iter().zip(routes) {
        let entry = router.entry().index();
        let has = open.get(entry).map_or(0, |m| m.heads().len());
        let asked = (0..MAX_HEADS).filter(|h| router.signals().contains(SignalSet::score(*h)));
        if let Some(head) = asked.max().filter(|h| *h >= has) {
            return Err(EngineError::NoHead {
                route: named.name.clone(),
                router: router.name().to_owned(),
                head,
                model: config.models.get(entry).map_or_else(String::new, |m| m.name.clone()),
                has,
            });
        }
    }
    Ok(())
}

fn core_config(config: &EngineConfig, info: &EngineInfo, pages: usize) -> CoreConfig {
    let limits = |m: &EngineModel| ModelLimits {
        max_batch_rows: m.max_batch_rows,
        max_step_tokens: m.max_step_tokens,
    };
    CoreConfig {
        models: config.models.iter().map(limits).collect(),
        pages,
        context_len: info.context_len,
        max_waiting: config.max_waiting,
        max_running: config.max_running,
        eos_ids: info.eos_ids.clone(),
        guard: GUARD,
        policy: config.policy.clone(),
        prefix_cache: config.prefix_cache,
        reserve_pages: config.reserve_pages,
        planner: config.planner,
        handoff: config.handoff,
    }
}
