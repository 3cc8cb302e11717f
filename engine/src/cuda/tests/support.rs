//! A model on the emulation, and steps for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenrouter_emulate::{STUB_IMAGE, Session, Settings, session, skip};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PAGE_TOKENS, PageId, RowResult};

use crate::cuda::context::RankContext;
use crate::cuda::model::{CudaModel, ModelSpec};
use crate::model::{Model, ModelOptions, OpenModel};
use crate::ranks::{LaunchRecord, Room};
use crate::scores::Scores;
use crate::shard::Shard;
use crate::step::{RowSampling, SampleSpec, Step, StepLimits};

/// Pages of every cache here.
pub(super) const PAGES: usize = 24;
/// Tokens of the longest row.
pub(super) const CONTEXT: usize = 192;
/// The buckets of a server.
pub(super) const BUCKETS: [u32; 6] = [8, 16, 32, 64, 128, 256];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(super) fn demo(name: &str) -> PathBuf {
    root().join("models/demo").join(name)
}

/// The emulation, or `None` with a line that says why not.
pub(super) fn emulation(devices: usize) -> Option<Session> {
    match session(Settings { devices, ..Settings::default() }) {
        Ok(session) => Some(session),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

pub(super) fn context(ordinal: usize) -> Arc<RankContext> {
    let mut context = RankContext::open(ordinal, &[&STUB_IMAGE]).unwrap();
    // Small grids: blocks go around more often, and the emulation has fewer idle ones.
    context.kernels.plan_for(2);
    Arc::new(context)
}

pub(super) fn options(open: &OpenModel, max_step_tokens: usize) -> ModelOptions {
    ModelOptions {
        threads: 1,
        max_batch_rows: 12,
        max_step_tokens,
        kv_dtype: DType::Bf16,
        // The last two ids are padding.
        real_vocab: open.config().vocab_size - 2,
        context_len: CONTEXT,
    }
}

/// A model with graphs, ready to run.
pub(super) fn ready(open: &OpenModel, tokens: usize, buckets: &[u32], partials: Option<u64>) -> CudaModel {
    let options = options(open, tokens);
    let spec = ModelSpec { open, options: &options, shard: Shard::WHOLE, buckets, high_priority: true };
    let mut model = CudaModel::load_within(context(0), &spec, None, partials).unwrap();
    model.allocate_cache(PAGES).unwrap();
    model.warm_up().unwrap();
    model.capture().unwrap();
    model.upload().unwrap();
    model.replay().unwrap();
    model
}

/// The CPU's model with the same limits.
pub(super) fn reference(open: &OpenModel, tokens: usize) -> Model {
    open.clone().build(options(open, tokens), PAGES).unwrap()
}

/// One row of a step: its tokens so far and to come, which of them are fed, its pages, and how it samples.
pub(super) struct TestRow<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) fed: std::ops::Range<usize>,
    pub(super) pages: &'a [PageId],
    pub(super) sample: Option<SamplingParams>,
}

/// Pages `first ..`, enough for `tokens` tokens, neighbours swapped and the whole turned round.
pub(super) fn pages(first: u32, tokens: usize) -> Vec<PageId> {
    let count = tokens.div_ceil(PAGE_TOKENS) as u32;
    let swapped = |i: u32| if i ^ 1 < count { i ^ 1 } else { i };
    (0..count).rev().map(|i| PageId((first + swapped(i)) % PAGES as u32)).collect()
}

pub(super) fn greedy() -> Option<SamplingParams> {
    Some(SamplingParams { temperature: 0.0, ..SamplingParams::default() })
}

pub(super) fn step(rows: &[TestRow<'_>]) -> Box<Step> {
    step_with(rows, &[], false)
}

/// A step whose rows must not draw `stops` when `mask` is set.
pub(super) fn step_with(rows: &[TestRow<'_>], stops: &[u32], mask: bool) -> Box<Step> {
    let mut step = Step::new(StepLimits { rows: rows.len(), tokens: 512, context_len: CONTEXT });
    step.begin(7, ModelId(0), SignalFlags::ALL, 0);
    for (index, row) in rows.iter().enumerate() {
        let sample = row.sample.clone().map(|params| SampleSpec {
            key: DrawKey {
                seed: 0x5eed + index as u64,
                choice: index as u32 % 3,
                position: row.fed.end as u32,
                purpose: Purpose::Sample,
                model: 1,
            },
            prompt_len: row.tokens.len() / 2,
            mask_stops: mask,
            logprobs: None,
            sampling: Arc::new(RowSampling {
                needs_history: params.needs_history(),
                params,
                stop_ids: stops.to_vec(),
            }),
        });
        step.push_row(row.tokens, row.fed.clone(), row.pages, sample);
    }
    Box::new(step)
}

/// The step with scores of the tokens behind `fed`, what its first row feeds.
pub(super) fn with_scores(
    mut step: Box<Step>,
    tokens: &[u32],
    fed: std::ops::Range<usize>,
    top: u8,
) -> Box<Step> {
    let rows = step.rows.split_off(1);
    let count = fed.len();
    step.score_row(tokens, fed.clone(), fed, top);
    // The row's tokens stand first here, and not last.
    step.score_tokens = (0..count as u32).collect();
    step.rows.extend(rows);
    step
}

/// Entry `index` as bits: its value, then the likeliest ids and theirs.
pub(super) fn score_bits(scores: &Scores, index: usize) -> Vec<u32> {
    let entry = scores.get(index).expect("a number");
    let top = entry.top.iter().flat_map(|(id, logprob)| [*id, logprob.to_bits()]);
    std::iter::once(entry.logprob.to_bits()).chain(top).collect()
}

/// Runs a step as the rank loop does, in `graph` or uncaptured.
pub(super) fn run_in(model: &mut CudaModel, step: Box<Step>, graph: Option<u32>) -> Vec<RowResult> {
    run_for(model, step, graph).results
}

/// The same, with the log-probabilities that the step asks for.
pub(super) fn run_for(model: &mut CudaModel, step: Box<Step>, graph: Option<u32>) -> Room {
    let record = LaunchRecord::new(1, graph, step, false);
    model.launch(&record, None).unwrap();
    while !model.finished().unwrap() {}
    let mut room = Room::default();
    model.results(&record.step, &mut room);
    room
}

/// The same in the graph that the rule chooses.
pub(super) fn run(model: &mut CudaModel, step: Box<Step>) -> Vec<RowResult> {
    let graph = model.graph_key()(&step).ok();
    run_in(model, step, graph)
}

/// Raw logits of the last step, one vector a row.
pub(super) fn logits(model: &mut CudaModel, rows: usize) -> Vec<Vec<f32>> {
    let parts = model.parts();
    let all = parts.arena.logits.read(parts.stream).unwrap();
    let (vocab, stride) = (parts.shape.vocab as usize, parts.shape.vocab_stride as usize);
    all.chunks_exact(stride).take(rows).map(|row| row[..vocab].to_vec()).collect()
}

/// The bits of numbers, so that NaN equals itself.
pub(super) fn bits(values: &[Vec<f32>]) -> Vec<Vec<u32>> {
    values.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Token ids of a demo problem: prompt and the answer of the large model.
pub(super) fn problem(index: usize) -> Vec<u32> {
    let text = std::fs::read_to_string(root().join("tests/golden/demo.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let case = &golden["cases"][index];
    let ids =
        |v: &serde_json::Value| v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
    let mut tokens: Vec<u32> = ids(&case["prompt_ids"]);
    tokens.extend::<Vec<u32>>(ids(&case["llm"]["ids"]));
    tokens
}

/// Ids below `vocab`, the same every time.
pub(super) fn random_ids(seed: u64, len: usize, vocab: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab as u64) as u32
    };
    (0..len).map(next).collect()
}
