//! Whole steps through the engine, by its public API: one model, two on one card, and a routed pair.
//!
//! One engine holds both models, so that each is loaded once with graphs and once without; alone is a model whose
//! neighbour has nothing to do. Launches are eager: nothing waits for a fuller batch. A step is the wall clock
//! of a window in which every request decodes, over its steps, so planning, launch, sampling and read-back are in it; busy
//! is what the engine sees from launch to completion. The floor is the bytes of weights, keys and values that a step
//! reads, at the copy bandwidth of this run.
//!
//! `DEVICE_MODELS` names the folder of the checkpoints (else a temporary one; they stay there), `DEVICE_BIG=1` adds
//! Qwen3-8B, and `DEVICE_ENGINE_SECONDS` (100) is when no further window begins.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokenrouter_emulate::STUB_IMAGE;
use tokenrouter_engine::{
    CudaOptions, DType, DeviceKind, EngineConfig, EngineModel, FaultOptions, RouteConfig, WeightForm,
};
use tokenrouter_kernels::cuda::images;
use tokenrouter_scheduler::router::ParamValue;
use tokenrouter_scheduler::{Handoff, Policy};

use crate::checkpoint::Decoder;
use crate::window::{Ask, Server, Window};

/// The image that the pretend driver takes.
static STUB: [&[u8]; 1] = [&STUB_IMAGE];

/// Routes: the first two are a model alone.
const ROUTED: u16 = 2;

/// How much is asked.
struct Sizes {
    rows: &'static [usize],
    prompt: usize,
    /// Of an answer; a context is about 512 tokens in the middle of it.
    tokens: u32,
    lead: u32,
    context: usize,
    step_tokens: usize,
    largest_bucket: u32,
    memory: Option<u64>,
    /// Requests of each model beside the other, and of the routed pair at work.
    beside: usize,
}

const REAL: Sizes = Sizes {
    rows: &[1, 4, 16, 64],
    prompt: 448,
    tokens: 128,
    lead: 8,
    context: 1024,
    step_tokens: 2048,
    largest_bucket: 256,
    memory: None,
    beside: 4,
};

const TOY: Sizes = Sizes {
    rows: &[1, 4],
    prompt: 12,
    tokens: 8,
    lead: 2,
    context: 64,
    step_tokens: 32,
    largest_bucket: 8,
    memory: Some(48 << 20),
    beside: 2,
};

/// A model of the pair: what it is, where, and what it is called in the tables.
struct Member {
    decoder: Decoder,
    dir: PathBuf,
    label: String,
}

/// All that the parts share.
struct Bench {
    sizes: &'static Sizes,
    pair: [Member; 2],
    bandwidth: f64,
    toy: bool,
    until: Instant,
    /// Seconds of the last window and its rows: the next one's length is guessed from it.
    last: Option<(f64, usize)>,
    /// Seconds that the last start took.
    loading: f64,
    /// Seconds per step with graphs, by model and rows.
    steps: HashMap<(usize, usize), f64>,
}

/// Prints everything that can run. `bandwidth` is the copy's, in bytes per second.
pub(crate) fn run(toy: bool, bandwidth: f64) {
    let seconds = std::env::var("DEVICE_ENGINE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(100);
    let until = Instant::now() + Duration::from_secs(seconds);
    let pair = match pair(toy) {
        Ok(pair) => pair,
        Err(why) => return println!("engine: cannot run: {why}"),
    };
    let sizes = if toy { &TOY } else { &REAL };
    let mut bench =
        Bench { sizes, pair, bandwidth, toy, until, last: None, loading: 0.0, steps: HashMap::new() };
    for graphs in [true, false] {
        let name = if graphs { "engine with graphs" } else { "engine without graphs" };
        if let Err(why) = bench.serve(graphs) {
            println!("{name}: cannot run: {why}");
        }
    }
}

/// The checkpoints; where there is no large one, the small one plays both.
fn pair(toy: bool) -> Result<[Member; 2], String> {
    let root = std::env::var_os("DEVICE_MODELS")
        .map_or_else(|| std::env::temp_dir().join("tokenrouter-device-models"), PathBuf::from);
    let member = |decoder: Decoder| {
        let dir = decoder.ensure(&root)?;
        Ok::<_, String>(Member { decoder, dir, label: decoder.name.to_owned() })
    };
    if toy {
        return Ok([member(Decoder::TOY)?, member(Decoder::LARGE_TOY)?]);
    }
    let small = member(Decoder::QWEN3_0_6B)?;
    let large = match std::env::var("DEVICE_BIG") {
        Ok(v) if v == "1" => member(Decoder::QWEN3_8B),
        _ => Err("DEVICE_BIG=1 asks for it (16.4 GB of disk)".to_owned()),
    };
    let large = large.unwrap_or_else(|why| {
        println!("Qwen3-8B: cannot run: {why}; a second Qwen3-0.6B stands in for it");
        Member { decoder: small.decoder, dir: small.dir.clone(), label: format!("{} (2)", small.label) }
    });
    Ok([small, large])
}

impl Bench {
    fn serve(&mut self, graphs: bool) -> Result<(), String> {
        let (begun, left) = (Instant::now(), self.left());
        if left <= self.loading {
            return Err(format!("loading takes {:.0} s, and {left:.0} s are left", self.loading));
        }
        let vocab = self.pair.iter().map(|m| m.decoder.vocab).min().unwrap_or(0);
        let mut server = Server::start(&self.config(graphs), (self.sizes.prompt, vocab), self.sizes.lead)?;
        let on = if graphs { "on" } else { "off" };
        self.loading = begun.elapsed().as_secs_f64();
        println!("engine: both models loaded in {:.1} s, graphs {on}", self.loading);
        self.single(&mut server, graphs);
        if graphs {
            type Part = fn(&mut Bench, &mut Server) -> Result<(), String>;
            let parts: [(&str, Part); 2] = [("sharing", Self::sharing), ("handoff", Self::handoff)];
            for (name, part) in parts {
                if let Err(why) = part(self, &mut server) {
                    println!("{name}: cannot run: {why}");
                }
            }
        }
        server.stop();
        Ok(())
    }

    fn ask(&self, route: u16, count: usize) -> Ask {
        Ask { route, count, tokens: self.sizes.tokens }
    }

    /// Seconds until no further window begins.
    fn left(&self) -> f64 {
        self.until.saturating_duration_since(Instant::now()).as_secs_f64()
    }

    /// One window, if there is time for it.
    fn window(&mut self, server: &mut Server, asks: &[Ask]) -> Result<Window, String> {
        let rows: usize = asks.iter().map(|a| a.count).sum();
        let guess =
            self.last.map_or(0.0, |(seconds, before)| seconds * (rows as f64 / before as f64).max(1.0));
        let left = self.left();
        // Half of the time stays for what comes after.
        if left <= 2.0 * guess {
            return Err(format!("it may take {guess:.0} s, and {left:.0} s are left for it and the rest"));
        }
        let begun = Instant::now();
        let window = server.window(asks);
        self.last = Some((begun.elapsed().as_secs_f64(), rows));
        window
    }

    /// Steps of each model alone, at every number of rows.
    fn single(&mut self, server: &mut Server, graphs: bool) {
        println!(
            "{:<16} {:>5} {:>7} {:>10} {:>10} {:>10} {:>8} {:>10}",
            "model", "rows", "graphs", "step us", "busy us", "floor us", "reached", "gap us"
        );
        for model in [0, 1] {
            self.last = None;
            for rows in self.sizes.rows {
                let ask = self.ask(model as u16, *rows);
                match self.window(server, &[ask]) {
                    Ok(window) => self.print_steps(model, *rows, graphs, &window),
                    Err(why) => {
                        println!("{:<16} {rows:>5} cannot run: {why}", self.pair[model].label);
                    }
                }
            }
        }
    }

    fn print_steps(&mut self, model: usize, rows: usize, graphs: bool, window: &Window) {
        let member = &self.pair[model];
        let step = window.step(model);
        let work = window.models[model];
        let read = member.decoder.step_bytes() as f64
            + rows as f64 * window.context * member.decoder.kv_bytes() as f64;
        let floor = (self.bandwidth > 0.0).then(|| read / self.bandwidth);
        let us = |seconds: Option<f64>| seconds.map_or("-".into(), |s| format!("{:.1}", s * 1e6));
        // The launches' gaps: what a step loses without its graph.
        let gap = if graphs { None } else { self.steps.get(&(model, rows)).map(|with| step - with) };
        println!(
            "{:<16} {rows:>5} {:>7} {:>10} {:>10} {:>10} {:>8} {:>10}",
            member.label,
            if graphs { "on" } else { "off" },
            us(Some(step)),
            us(Some(work.busy / work.steps as f64)),
            us(floor),
            floor.map_or("-".into(), |floor| format!("{:.0}%", floor / step * 100.0)),
            us(gap)
        );
        if graphs {
            self.steps.insert((model, rows), step);
        }
    }

    /// Each model's step alone and while the other one decodes too.
    fn sharing(&mut self, server: &mut Server) -> Result<(), String> {
        self.last = None;
        let count = self.sizes.beside;
        let [small, large] = [0, 1].map(|route| self.ask(route, count));
        let alone = [self.window(server, &[small])?.step(0), self.window(server, &[large])?.step(1)];
        let both = self.window(server, &[small, large])?;
        for model in [0, 1] {
            let label = &self.pair[model].label;
            if both.models[model].steps == 0 {
                println!("sharing: {label}: cannot run: no step of it beside the other's");
                continue;
            }
            println!(
                "sharing: {label}, {count} rows: step {:.1} us alone, {:.1} us beside the other ({:.2}x)",
                alone[model] * 1e6,
                both.step(model) * 1e6,
                both.step(model) / alone[model]
            );
        }
        Ok(())
    }

    /// One request whose positions the models write half each: what a handoff costs beyond the steps.
    fn handoff(&mut self, server: &mut Server) -> Result<(), String> {
        self.last = None;
        let asked = [self.ask(ROUTED, 1)];
        let routed = self.window(server, &asked)?;
        let handoffs = routed.models.iter().map(|m| m.handoffs).sum::<u64>();
        if handoffs == 0 {
            return Err("no handoff in the window".into());
        }
        let [small, large] = routed.models.map(|m| m.steps);
        let per = |seconds: f64| seconds * 1e6 / handoffs as f64;
        let busy: f64 = routed.models.iter().map(|m| m.busy).sum();
        println!(
            "handoff: 1 request, fixed fraction 0.5: {} tokens in {:.1} us each, {small} and {large} steps, {handoffs} handoffs",
            routed.tokens,
            routed.wall / routed.tokens as f64 * 1e6
        );
        println!("handoff: (wall - busy of the steps) / handoffs = {:.1} us", per(routed.wall - busy));
        match [0, 1].map(|model| self.steps.get(&(model, 1))) {
            [Some(first), Some(second)] => {
                let steps = small as f64 * first + large as f64 * second;
                println!(
                    "handoff: (wall - sum of steps at their time alone) / handoffs = {:.1} us; a step that catches up \
                     feeds more than one token",
                    per(routed.wall - steps)
                );
            }
            _ => println!("handoff: against the single models: cannot run: they have no step of 1 row"),
        }
        self.rate(server)
    }

    /// Tokens per second of the routed pair beside the single models.
    fn rate(&mut self, server: &mut Server) -> Result<(), String> {
        let count = self.sizes.beside;
        let mut rates = [0.0; 3];
        for (route, rate) in rates.iter_mut().enumerate() {
            let asked = [self.ask(route as u16, count)];
            let window = self.window(server, &asked)?;
            *rate = window.tokens as f64 / window.wall;
        }
        let [small, large, pair] = rates;
        println!(
            "routed: {count} requests: {pair:.0} tokens/s; {} alone {small:.0}, {} alone {large:.0}",
            self.pair[0].label, self.pair[1].label
        );
        Ok(())
    }

    fn config(&self, graphs: bool) -> EngineConfig {
        let sizes = self.sizes;
        let model = |name: &str, dir: &Path| EngineModel {
            weights: WeightForm::Stored,
            name: name.into(),
            dir: dir.to_owned(),
            devices: vec![0],
            threads: 1,
            max_batch_rows: 64,
            max_step_tokens: sizes.step_tokens,
            heads: Vec::new(),
        };
        let route = |name: &str, router: &str, key: &str, value| RouteConfig {
            name: name.into(),
            router: router.into(),
            params: BTreeMap::from([(key.into(), value)]),
        };
        EngineConfig {
            models: vec![model("small", &self.pair[0].dir), model("large", &self.pair[1].dir)],
            routes: vec![
                route("small", "single", "model", ParamValue::Int(0)),
                route("large", "single", "model", ParamValue::Int(1)),
                route("routed", "fixed", "fraction", ParamValue::Float(0.5)),
            ],
            device: DeviceKind::Cuda(CudaOptions {
                memory_bytes: sizes.memory,
                graphs,
                largest_bucket: sizes.largest_bucket,
                images: if self.toy { &STUB } else { images() },
                ..CudaOptions::default()
            }),
            budget_bytes: 0,
            kv_dtype: DType::Bf16,
            context_len: sizes.context,
            prefix_cache: true,
            reserve_pages: 8,
            max_running: 64,
            max_waiting: 256,
            real_vocab: usize::MAX,
            eos_ids: Vec::new(),
            policy: Policy::Eager,
            handoff: Handoff::default(),
            planner: None,
            faults: FaultOptions::default(),
        }
    }
}
