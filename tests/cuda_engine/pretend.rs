//! A pretend machine with the demo pair on it.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenrouter_emulate::{STUB_IMAGE, Session, Settings, session, skip};
use tokenrouter_engine::{
    ClientEvent, Command, CudaOptions, DType, DeviceKind, EngineConfig, EngineHandle, EngineRequest,
    RouteConfig,
};
use tokenrouter_kernels::cuda::{Device, images};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{FinishReason, PlannerConfig, Policy};

use crate::support::engine::{demo_config, request, route, start, stop};
use crate::support::golden;

/// The images that the pretend driver takes.
static IMAGES: [&[u8]; 1] = [&STUB_IMAGE];

/// Devices of the pretend machine.
const DEVICES: usize = 3;

/// Tokens of a whole answer in these tests: enough for several handoffs, few enough for a kernel that runs thread by
/// thread.
pub(crate) const MAX_TOKENS: u32 = 24;

/// Whether the whole sweep runs (`TOKENROUTER_CUDA_SWEEP=1`, as in CI) or a part of it that takes a minute.
pub(crate) fn sweep() -> bool {
    std::env::var_os("TOKENROUTER_CUDA_SWEEP").is_some_and(|v| v != "0")
}

/// Where the models run, and how.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) small: &'static [usize],
    pub(crate) large: &'static [usize],
    pub(crate) graphs: bool,
    pub(crate) policy: Policy,
    pub(crate) max_batch_rows: usize,
    pub(crate) max_step_tokens: usize,
    pub(crate) memory: Option<u64>,
    /// Of the route by entropy.
    pub(crate) threshold: f64,
    pub(crate) prefix_cache: bool,
    /// Plans from what is measured, on top of the policy.
    pub(crate) planner: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            small: &[0],
            large: &[0],
            graphs: true,
            policy: Policy::Eager,
            max_batch_rows: 16,
            max_step_tokens: 64,
            memory: None,
            threshold: 0.03,
            prefix_cache: true,
            planner: false,
        }
    }
}

impl Setup {
    /// The engine's configuration.
    pub(crate) fn config(&self) -> EngineConfig {
        let mut config = demo_config(routes(self.threshold));
        config.policy = self.policy.clone();
        config.kv_dtype = DType::Bf16;
        config.context_len = 512;
        config.prefix_cache = self.prefix_cache;
        config.planner = self.planner.then(PlannerConfig::default);
        for (model, devices) in config.models.iter_mut().zip([self.small, self.large]) {
            model.devices = devices.to_vec();
            model.max_batch_rows = self.max_batch_rows;
            model.max_step_tokens = self.max_step_tokens;
        }
        config.device = DeviceKind::Cuda(CudaOptions {
            memory_bytes: self.memory,
            graphs: self.graphs,
            images: if real().is_some() { images() } else { &IMAGES },
            ..CudaOptions::default()
        });
        config
    }

    /// Starts an engine, asks for everything with `at_once` requests under way, and stops it.
    pub(crate) fn answers(&self, asked: &[EngineRequest], at_once: usize) -> HashMap<u64, Answer> {
        let engine = start(&self.config(), &Registry::builtin());
        let answers = run(&engine, asked, at_once);
        stop(&engine);
        answers
    }
}

/// Tokens and the writer of each.
pub(crate) type Answer = (Vec<u32>, Vec<u8>);

/// Small alone, large alone, by entropy, at a fixed share.
fn routes(threshold: f64) -> Vec<RouteConfig> {
    vec![
        route("small", "single", "model", ParamValue::Int(0)),
        route("large", "single", "model", ParamValue::Int(1)),
        route("entropy", "r-stitch", "threshold", ParamValue::Float(threshold)),
        route("share", "fixed", "fraction", ParamValue::Float(0.3)),
    ]
}

/// Whether this process has a driver, a GPU and kernels for it; decided before the emulation is loaded.
fn real() -> Option<usize> {
    static REAL: OnceLock<Option<usize>> = OnceLock::new();
    *REAL.get_or_init(|| if images().is_empty() { None } else { Device::count().ok().filter(|n| *n > 0) })
}

/// What the tests run on: the emulation, or the GPUs of this machine.
pub(crate) struct Machine {
    emulation: Option<Session>,
}

impl Machine {
    /// The emulation, for tests that break devices; a line says where there is none.
    pub(crate) fn emulation(&self) -> Option<&Session> {
        if self.emulation.is_none() {
            println!("skipped: a real GPU is not broken on purpose");
        }
        self.emulation.as_ref()
    }

    /// Whether it has devices `0..=last`; a line says that it has not.
    pub(crate) fn reaches(&self, last: usize) -> bool {
        let count = if self.emulation.is_some() { DEVICES } else { real().unwrap_or(0) };
        if last >= count {
            println!("skipped: device {last} is not there, there are {count}");
        }
        last < count
    }
}

/// A pretend machine with three devices, or the real one; `None` with a line that says why.
pub(crate) fn machine(seed: u64) -> Option<Machine> {
    if real().is_some() {
        return Some(Machine { emulation: None });
    }
    match session(settings(seed)) {
        Ok(session) => {
            // Small grids are cheaper to run thread by thread; no result depends on them.
            session.set_processors(2);
            Some(Machine { emulation: Some(session) })
        }
        Err(why) => {
            skip(&why);
            None
        }
    }
}

/// Of the pretend machine.
pub(crate) fn settings(seed: u64) -> Settings {
    Settings { devices: DEVICES, memory: 256 << 20, seed, ..Settings::default() }
}

/// Requests over the golden prompts: two of four routed by entropy, one at a fixed share, one pinned; greedy and sampled.
pub(crate) fn requests(count: usize) -> Vec<EngineRequest> {
    let cases = golden().cases;
    let ask = |i: usize| {
        let prompt = &cases[i % cases.len()].prompt;
        let mut asked = request(i as u64, prompt, [2, 3, 2, (i / 4 % 2) as u16][i % 4], MAX_TOKENS);
        asked.seed = 11 + i as u64;
        if i % 2 == 1 {
            asked.sampling.temperature = 1.0;
            asked.sampling.top_p = 0.98;
        }
        asked
    };
    (0..count).map(ask).collect()
}

/// Asks for everything, `at_once` at a time.
pub(crate) fn run(engine: &EngineHandle, asked: &[EngineRequest], at_once: usize) -> HashMap<u64, Answer> {
    let mut waiting = asked.iter().cloned();
    let mut submit = |n: usize| {
        for request in waiting.by_ref().take(n) {
            engine.send(Command::Submit(Box::new(request))).expect("the engine runs");
        }
    };
    submit(at_once);
    let mut written: HashMap<u64, Answer> = HashMap::new();
    let mut ended = 0;
    while ended < asked.len() {
        for event in engine.wait_report().expect("the engine runs").events {
            match event {
                ClientEvent::Token { client, token, model, .. } => {
                    let (tokens, writers) = written.entry(client).or_default();
                    tokens.push(token);
                    writers.push(model);
                }
                ClientEvent::Finished { client, reason, .. } => {
                    assert!(
                        !matches!(reason, FinishReason::Failed(_)),
                        "request {client} ended with {reason:?}"
                    );
                    ended += 1;
                    submit(1);
                }
                ClientEvent::Prompt { .. } => {}
                ClientEvent::Refused { client, error } => panic!("request {client} was refused: {error}"),
            }
        }
    }
    written
}
