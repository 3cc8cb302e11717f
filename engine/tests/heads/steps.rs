//! A whole step: forward, candidate, heads, through the executor's thread; against torch and against itself.

use std::path::PathBuf;
use std::sync::Arc;

use safetensors::SafeTensors;
use tokenrouter_engine::executor::{CpuModel, Executor, RankExecutor};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_engine::step::{RowSampling, SampleSpec, Step, StepLimits};
use tokenrouter_engine::{DType, SamplingParams};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PageId, RowFault, RowResult};

use crate::golden;
use crate::refusals::changed;

const HEADS: [&str; 4] = ["r2r-plain", "citer", "co-llm", "r2r-widths"];
const ALL: u8 = 0b1111;
const PAGES: usize = 64;

pub(crate) fn array(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(golden().join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn ids() -> Vec<u32> {
    array("ids").iter().map(|x| x.to_bits()).collect()
}

fn executor(threads: usize) -> RankExecutor {
    executor_with(threads, &HEADS.map(|h| golden().join(h)))
}

pub(crate) fn executor_with(threads: usize, heads: &[PathBuf]) -> RankExecutor {
    let options = ModelOptions {
        threads,
        max_batch_rows: 16,
        max_step_tokens: 640,
        kv_dtype: DType::F32,
        real_vocab: 160,
        context_len: 64,
    };
    let open = Model::open(&golden().join("model")).unwrap().with_heads(heads).unwrap();
    let limits = StepLimits { rows: 16, tokens: 640, context_len: 64 };
    let parts = vec![(0, open.build(options, PAGES).unwrap())];
    RankExecutor::cpu(vec![CpuModel { parts, limits }], Arc::new(|| {})).unwrap()
}

/// One row of a step: which pages, which positions are fed, whether it samples, and how long its prompt is (as long as what
/// is fed, when it does not say).
pub(crate) struct Feed {
    pub(crate) pages: [u32; 4],
    pub(crate) fed: std::ops::Range<usize>,
    pub(crate) samples: bool,
    pub(crate) prompt: Option<usize>,
}

fn sampling(params: SamplingParams) -> Arc<RowSampling> {
    let needs_history = params.needs_history();
    Arc::new(RowSampling { params, stop_ids: Vec::new(), needs_history })
}

pub(crate) fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

pub(crate) fn run(
    executor: &mut RankExecutor,
    heads: u8,
    params: &SamplingParams,
    feeds: &[Feed],
) -> Vec<RowResult> {
    let tokens = ids();
    let mut step: Box<Step> = executor.buffers(ModelId(0));
    step.begin(1, ModelId(0), SignalFlags::ENTROPY, heads);
    let sampling = sampling(params.clone());
    for feed in feeds {
        let key =
            DrawKey { seed: 7, choice: 0, position: feed.fed.end as u32, purpose: Purpose::Sample, model: 0 };
        let prompt_len = feed.prompt.unwrap_or(feed.fed.end);
        let spec =
            SampleSpec { sampling: sampling.clone(), key, prompt_len, mask_stops: false, logprobs: None };
        let pages = feed.pages.map(PageId);
        step.push_row(&tokens[..feed.fed.end], feed.fed.clone(), &pages, feed.samples.then_some(spec));
    }
    executor.launch(step);
    let step = loop {
        if let Some(step) = executor.poll() {
            break step;
        }
        std::thread::yield_now();
    };
    assert_eq!(step.failure, None);
    let results = step.results.clone();
    executor.recycle(step);
    results
}

pub(crate) fn whole(row: usize, tokens: usize) -> Feed {
    let first = row as u32 * 4;
    Feed { pages: [first, first + 1, first + 2, first + 3], fed: 0..tokens, samples: true, prompt: None }
}

#[test]
fn scores_of_a_whole_step_are_those_of_torch() {
    let mut executor = executor(1);
    let truth = HEADS.map(|h| array(&format!("score.{h}")));
    let candidates = array("candidate");
    let mut worst = [0.0f32; 4];
    for batch in (1..=40).collect::<Vec<usize>>().chunks(13) {
        let feeds: Vec<Feed> = batch.iter().enumerate().map(|(row, n)| whole(row, *n)).collect();
        for (result, n) in run(&mut executor, ALL, &greedy(), &feeds).iter().zip(batch) {
            assert_eq!(result.fault, None);
            assert_eq!(result.token, candidates[n - 1].to_bits(), "candidate after {n} tokens");
            for (head, truth) in truth.iter().enumerate() {
                let difference = (result.signals.scores[head] - truth[n - 1]).abs();
                worst[head] = worst[head].max(difference);
            }
        }
    }
    println!("largest differences of {HEADS:?}: {worst:?}");
    assert!(worst.iter().all(|w| *w < 1e-5), "{worst:?}");
}

#[test]
fn decode_extend_and_any_batch_give_the_same_bits() {
    let mut executor_one = executor(1);
    let bits = |r: &RowResult| (r.token, r.signals.scores.map(f32::to_bits), r.fault);
    let alone: Vec<_> =
        (1..=40).map(|n| bits(&run(&mut executor_one, ALL, &greedy(), &[whole(0, n)])[0])).collect();
    let mut executor = executor(2);
    for batch in (1..=40).collect::<Vec<usize>>().chunks(16) {
        let feeds: Vec<Feed> = batch.iter().enumerate().map(|(row, n)| whole(row, *n)).collect();
        for (result, n) in run(&mut executor, ALL, &greedy(), &feeds).iter().zip(batch) {
            assert_eq!(bits(result), alone[n - 1], "extend of {n} in a batch");
        }
    }
    for n in 1..=40 {
        let one = Feed { fed: n - 1..n, ..whole(3, 0) };
        assert_eq!(bits(&run(&mut executor, ALL, &greedy(), &[one])[0]), alone[n - 1], "decode to {n}");
    }
}

#[test]
fn a_cut_row_has_no_score_and_shifts_nobody() {
    let mut executor = executor(1);
    let cut = Feed { samples: false, ..whole(1, 9) };
    let results = run(&mut executor, ALL, &greedy(), &[whole(0, 5), cut, whole(2, 7)]);
    let truth = HEADS.map(|h| array(&format!("score.{h}")));
    assert_eq!(results[1].signals.scores, [0.0; 4]);
    for (row, n) in [(0, 5), (2, 7)] {
        for (head, truth) in truth.iter().enumerate() {
            assert!((results[row].signals.scores[head] - truth[n - 1]).abs() < 1e-5, "row {row} {head}");
        }
    }
}

#[test]
fn only_wanted_heads_are_computed() {
    let mut executor = executor(1);
    let all = run(&mut executor, ALL, &greedy(), &[whole(0, 12)])[0].signals.scores;
    for wanted in [0b0000, 0b0001, 0b0110, 0b1000] {
        let scores = run(&mut executor, wanted, &greedy(), &[whole(0, 12)])[0].signals.scores;
        for (head, (score, asked)) in scores.iter().zip(&all).enumerate() {
            let expected = if wanted >> head & 1 == 1 { *asked } else { 0.0 };
            assert_eq!(score.to_bits(), expected.to_bits(), "wanted {wanted:04b} head {head}");
        }
    }
}

#[test]
fn raw_logits_are_read_before_penalties_and_temperature() {
    let mut executor = executor(1);
    let plain = run(&mut executor, ALL, &greedy(), &[whole(0, 20)])[0];
    // Everything that changes logits, and a bias that leaves the candidate as it is.
    let params = SamplingParams {
        repetition_penalty: 1.5,
        frequency_penalty: 0.7,
        presence_penalty: 0.3,
        logit_bias: vec![(plain.token, 90.0), (3, -50.0)],
        ..greedy()
    };
    let changed = run(&mut executor, ALL, &params, &[whole(0, 20)])[0];
    assert_eq!(changed.token, plain.token);
    assert_eq!(changed.signals.scores.map(f32::to_bits), plain.signals.scores.map(f32::to_bits));
    // Another candidate: R2R reads its embedding, the others do not look at it.
    let params = SamplingParams { logit_bias: vec![(3, 1e4)], ..greedy() };
    let other = run(&mut executor, ALL, &params, &[whole(0, 20)])[0];
    assert_eq!(other.token, 3);
    for head in 0..4 {
        let same = other.signals.scores[head].to_bits() == plain.signals.scores[head].to_bits();
        assert_eq!(same, head == 1 || head == 2, "head {head}");
    }
}

#[test]
fn a_score_that_is_no_number_fails_its_row_by_name() {
    // Finite weights whose products overflow in both directions.
    let dir = changed(
        "co-llm",
        |_| {},
        |t| {
            let row = &mut t.get_mut("defer_row").unwrap().2;
            for (i, value) in row.chunks_exact_mut(4).enumerate() {
                value.copy_from_slice(&if i % 2 == 0 { 3e38f32 } else { -3e38 }.to_le_bytes());
            }
        },
    );
    let mut executor = executor_with(1, &[dir.path().to_path_buf()]);
    let feeds: Vec<Feed> = (1..=16).map(|n| whole(n - 1, n)).collect();
    let results = run(&mut executor, 1, &greedy(), &feeds);
    let faults = results.iter().filter_map(|r| r.fault).collect::<Vec<_>>();
    assert!(!faults.is_empty(), "{results:?}");
    for result in &results {
        let named = matches!(result.fault, Some(RowFault::Other(text)) if text.contains("not a number"));
        assert_eq!(named, result.signals.scores[0].is_nan());
        assert!(named || (0.0..=1.0).contains(&result.signals.scores[0]));
    }
    let unread = run(&mut executor, 0, &greedy(), &feeds);
    assert!(unread.iter().all(|r| r.fault.is_none()), "a head that nobody asks fails nobody");
}
