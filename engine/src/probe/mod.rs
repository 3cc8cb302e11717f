//! Steps by hand: the models of a deployment on the executor that serves, without requests, so that the time of a step
//! can be measured (`tokenrouter profile`).

mod bandwidth;
mod clock;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenrouter_kernels::cpu::Isa;
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_scheduler::router::{Registry, SignalSet};
use tokenrouter_scheduler::{ModelId, PAGE_TOKENS, PageId};

use crate::device::DeviceKind;
use crate::executor::{Executor, RankExecutor, wake_on_time};
use crate::model::OpenModel;
use crate::rank::{head_mask, signal_flags};
use crate::start::{EngineConfig, EngineError, Hints, build_probed};
use crate::step::{RowSampling, SampleSpec, Step};

pub use crate::start::{context_len, prints};
pub use bandwidth::ReadBuffer;
pub(crate) use clock::thread_time;
use clock::{Clocks, between};
pub use clock::{CpuTime, process_time};

/// The longest park between two looks for the end of a step: an unpark that was missed costs this much.
const PARK: Duration = Duration::from_millis(50);

/// How much of the cache is needed.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Rows that have pages of their own.
    pub rows: usize,
    /// Tokens of a row, those that it feeds included.
    pub tokens: usize,
    /// Tokens of row 0, which may have a longer context.
    pub first_row: usize,
}

/// One model as it is measured.
#[derive(Clone, Debug)]
pub struct ProbeModel {
    /// Its name.
    pub name: String,
    /// What it is, in one line: everything on which the time of a step depends, but for the machine.
    pub print: String,
    /// Bytes of the weights that a step reads.
    pub weight_bytes: u64,
    /// Bytes of its cache per token.
    pub cache_bytes_per_token: u64,
    /// Threads that run a step.
    pub threads: usize,
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most fed tokens of a step.
    pub max_tokens: usize,
    /// Longest request in tokens.
    pub context_len: usize,
}

/// A model of a deployment as a measurement knows it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrint {
    /// Its name.
    pub name: String,
    /// As [`ProbeModel::print`].
    pub print: String,
    /// Threads that run a step.
    pub threads: usize,
}

/// A step that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Whose it was.
    pub model: usize,
    /// From the launch until the loop that launched it saw its end.
    pub wall: Duration,
    /// What the model's threads did meanwhile; zero where they have no clocks.
    pub cpu: CpuTime,
}

/// Models that run steps when they are told to.
pub struct Probe {
    executor: RankExecutor,
    models: Vec<ProbeModel>,
    lanes: Vec<Lane>,
    room: Room,
    sampling: Arc<RowSampling>,
    /// Token ids for every row, all of them in every vocabulary.
    tokens: Vec<u32>,
    seq: u64,
}

/// The side of one model.
struct Lane {
    wanted: SignalSet,
    clocks: Clocks,
    began: Option<Instant>,
    before: Vec<Duration>,
    after: Vec<Duration>,
}

impl Probe {
    /// Opens and builds the models as [`start`](crate::start) does, with a cache that holds `room` and is filled. What
    /// the routers read is computed in every step, as when they are served.
    ///
    /// # Errors
    /// As `start`; [`EngineError::Device`] for another device than the CPU, and [`EngineError::Room`] for a budget that
    /// does not hold the cache.
    pub fn open(
        config: &EngineConfig,
        registry: &Registry,
        hints: &Hints,
        room: Room,
    ) -> Result<Self, EngineError> {
        if config.device != DeviceKind::Cpu {
            return Err(EngineError::Device("steps are measured on the CPU only".into()));
        }
        let unpark = std::thread::current();
        let pages = pages_of(room.first_row.max(room.tokens)) + room.rows * pages_of(room.tokens);
        let built = build_probed(config, registry, hints, pages)?;
        let helpers: Vec<i32> = built.helpers.iter().flatten().copied().collect();
        let executor = RankExecutor::cpu(built.models, Arc::new(move || unpark.unpark()))
            .map_err(EngineError::Thread)?;
        // Threads name themselves when they start to run.
        let named = lane_threads(built.helpers.len(), &helpers);
        let lane = |(index, helpers): (usize, Vec<i32>)| Lane {
            wanted: built.signals[index],
            clocks: Clocks::new([helpers, named[index].clone()].concat()),
            began: None,
            before: Vec::new(),
            after: Vec::new(),
        };
        let lanes = built.helpers.into_iter().enumerate().map(lane).collect();
        wake_on_time();
        let params = SamplingParams::default();
        let tokens = (0..room.first_row.max(room.tokens) as u32).map(|i| i % built.vocab as u32).collect();
        let sampling = Arc::new(RowSampling { params, stop_ids: Vec::new(), needs_history: false });
        Ok(Self { executor, models: built.infos, lanes, room, sampling, tokens, seq: 0 })
    }

    /// The models.
    pub fn models(&self) -> &[ProbeModel] {
        &self.models
    }

    /// Whether the processor time of every model can be told.
    pub fn has_clocks(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.clocks.threads().is_empty())
    }

    /// Starts a step of an idle model: row `r` has `rows[r].0` tokens in the cache and feeds `rows[r].1` more, and samples.
    ///
    /// # Panics
    /// When the step breaks the limits of the model or of the room, or one is in flight: a fault of the caller.
    pub fn launch(&mut self, model: usize, rows: &[(usize, usize)]) {
        let id = ModelId(model as u8);
        let mut step = self.executor.buffers(id);
        self.seq += 1;
        let wanted = self.lanes[model].wanted;
        step.begin(self.seq, id, signal_flags(wanted), head_mask(wanted));
        for (row, &(cached, fed)) in rows.iter().enumerate() {
            self.push_row(&mut step, row, cached..cached + fed);
        }
        let lane = &mut self.lanes[model];
        lane.clocks.read(&mut lane.before);
        lane.began = Some(Instant::now());
        self.executor.launch(step);
    }

    fn push_row(&self, step: &mut Step, row: usize, fed: std::ops::Range<usize>) {
        let first = pages_of(self.room.first_row.max(self.room.tokens));
        let begin = if row == 0 { 0 } else { first + row * pages_of(self.room.tokens) };
        let used = pages_of(fed.end);
        let pages: Vec<PageId> = (begin..begin + used).map(|page| PageId(page as u32)).collect();
        let key = DrawKey {
            seed: self.seq,
            choice: row as u32,
            position: fed.end as u32,
            purpose: Purpose::Sample,
            model: u32::from(step.model.0),
        };
        let sampling = self.sampling.clone();
        // Longer than any row: no prompt ends here, which heads that read prompts would score.
        let prompt_len = usize::MAX;
        let spec = SampleSpec { sampling, key, prompt_len, mask_stops: false, logprobs: None };
        step.push_row(&self.tokens[..fed.end], fed.clone(), &pages, Some(spec));
    }

    /// Waits for the next step that ends; none while nothing runs.
    ///
    /// # Errors
    /// The failure of the step, in words.
    pub fn wait(&mut self) -> Result<Option<Timing>, String> {
        while self.lanes.iter().any(|lane| lane.began.is_some()) {
            let Some(step) = self.executor.poll() else {
                if let Some((model, why)) = self.executor.broken() {
                    return Err(format!("model \"{}\": {why}", self.models[model.index()].name));
                }
                std::thread::park_timeout(PARK);
                continue;
            };
            let model = step.model.index();
            let lane = &mut self.lanes[model];
            let wall = lane.began.take().map_or(Duration::ZERO, |began| began.elapsed());
            lane.clocks.read(&mut lane.after);
            let cpu = between(&lane.before, &lane.after);
            let failure = step.failure.clone();
            self.executor.recycle(step);
            return match failure {
                Some(why) => Err(format!("a step of model \"{}\" failed: {why}", self.models[model].name)),
                None => Ok(Some(Timing { model, wall, cpu })),
            };
        }
        Ok(None)
    }
}

/// The name of the kernels that run on this processor.
pub fn isa_name() -> &'static str {
    Isa::detect().unwrap_or(Isa::fastest()).name()
}

fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Per model, the threads that run its steps; `others` have the same names.
fn lane_threads(models: usize, others: &[i32]) -> Vec<Vec<i32>> {
    let find = || -> Vec<Vec<i32>> {
        let threads: Vec<_> = clock::threads().into_iter().filter(|(id, _)| !others.contains(id)).collect();
        let of = |model: usize| {
            let name = format!("model-{model}");
            threads.iter().filter(|(_, found)| *found == name).map(|(id, _)| *id).collect()
        };
        (0..models).map(of).collect()
    };
    // A thread has its name a moment after it was started.
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        let found = find();
        if found.iter().all(|threads| !threads.is_empty()) || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The threads of this process.
pub(crate) fn thread_ids() -> Vec<i32> {
    clock::threads().into_iter().map(|(id, _)| id).collect()
}

/// What a model is, as far as the time of its steps depends on it: its shape and the types of weights and cache.
pub(crate) fn print_of(model: &OpenModel, cache: &str) -> String {
    let c = model.config();
    format!(
        "{} {}x{} q{}kv{}x{} ff{} vocab{} {} cache-{cache}",
        c.architecture.class_name(),
        c.layers,
        c.hidden_size,
        c.q_heads,
        c.kv_heads,
        c.head_dim,
        c.intermediate_size,
        c.vocab_size,
        model.weights_name(),
    )
}
