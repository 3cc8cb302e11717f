//! The device's heads against the CPU's, from the same hidden states, on the emulation.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::bf16;
use tokenrouter_emulate::{STUB_IMAGE, Settings, seeds, session, skip};
use tokenrouter_kernels::cpu::{Isa, PAGE_TOKENS};
use tokenrouter_kernels::cuda::{Buffer, CudaStream, Device, Kernels, PackArgs, packed_len};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_kernels::top::top_values;
use tokenrouter_scheduler::{ModelId, PageId, RowResult};

use super::super::{HeadInput, HeadSet, HeadSizes, OpenHead, golden};
use super::*;
use crate::model::Model;
use crate::step::{RowSampling, SampleSpec, StepLimits};
use crate::weights::Tensor;

/// What the scores of the two devices differ by at most: the same numbers, summed in f32 in another order.
const NEAR: f32 = 2e-6;
/// Pages of the cache.
const PAGES: usize = 40;
/// Rows of a step at most.
const ROWS: usize = 20;

/// A sequence whose hidden states are given.
struct Sequence {
    states: Vec<f32>,
    pages: Vec<PageId>,
    prompt: usize,
    logits: Vec<f32>,
    candidate: u32,
}

/// A model's heads, its embedding as the device holds it, and sequences.
struct Case {
    heads: Vec<OpenHead>,
    embed: Tensor,
    sequences: Vec<Sequence>,
}

/// One row of a step: a sequence, what is fed of it, whether it samples.
type Feed = (usize, Range<usize>, bool);

fn noise(mut state: u64) -> impl FnMut() -> f32 {
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let view = tensor.view();
    (0..tensor.rows() * tensor.cols()).map(|i| view.dtype().read(view.data(), i)).collect()
}

impl Case {
    /// Sequences of 1, 2, .. tokens; the prompt of every third is shorter.
    fn new(heads: Vec<OpenHead>, embed: &Tensor) -> Self {
        let (vocab, hidden) = (embed.rows(), embed.cols());
        let round = |x: f32| bf16::from_f32(x).to_f32();
        let table: Vec<f32> = values(embed).into_iter().map(round).collect();
        let mut next = noise(11);
        let mut page = PAGES as u32;
        let mut sequence = |len: usize| {
            let pages = len.div_ceil(PAGE_TOKENS) as u32;
            page -= pages;
            Sequence {
                states: (0..len * hidden).map(|_| round(3.0 * next())).collect(),
                pages: (page..page + pages).rev().map(PageId).collect(),
                prompt: if len.is_multiple_of(3) { len - 1 } else { len },
                logits: (0..vocab).map(|_| 8.0 * next()).collect(),
                candidate: ((next() + 1.0) * 0.5 * vocab as f32) as u32 % vocab as u32,
            }
        };
        let sequences = (0..ROWS).map(|i| sequence(if i < 17 { i + 1 } else { 10 * (i - 14) })).collect();
        Self { heads, embed: Tensor::computed(&table, hidden), sequences }
    }

    /// The four routers that are shipped with the demo pair.
    fn demo() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
        let paths: Vec<PathBuf> =
            ["r2r", "citer", "co-llm", "query"].map(|name| root.join("routers").join(name)).to_vec();
        let model = Model::open(&root.join("slm")).unwrap().with_heads(&paths).unwrap();
        Self::new(model.open_heads().to_vec(), &model.weights().embed)
    }

    /// Heads of the golden files.
    fn golden(names: &[&str]) -> Self {
        let heads = names.iter().map(|name| golden::head(name)).collect();
        Self::new(heads, &golden::device(Isa::fastest(), 1).1)
    }

    /// All of these, and all kinds of R2R.
    fn all() -> [(&'static str, Self); 3] {
        let r2r = Self::golden(&["r2r-plain", "r2r-widths", "r2r-three"]);
        [("demo", Self::demo()), ("r2r", r2r), ("others", Self::golden(&["citer", "co-llm", "query"]))]
    }

    /// Whole sequences, all of them sampling.
    fn whole(&self, which: impl IntoIterator<Item = usize>) -> Vec<Feed> {
        which.into_iter().map(|s| (s, 0..self.sequences[s].states.len() / self.embed.cols(), true)).collect()
    }

    fn step(&self, feeds: &[Feed], heads: u8) -> Step {
        let mut step = Step::new(StepLimits { rows: ROWS, tokens: 400, context_len: 64 });
        step.begin(1, ModelId(0), SignalFlags::default(), heads);
        let params = SamplingParams::default();
        let sampling = Arc::new(RowSampling { params, stop_ids: Vec::new(), needs_history: false });
        for (index, fed, samples) in feeds {
            let sequence = &self.sequences[*index];
            let position = fed.end as u32;
            let key = DrawKey { seed: 1, choice: 0, position, purpose: Purpose::Sample, model: 0 };
            let sampling = sampling.clone();
            let spec =
                SampleSpec { sampling, key, prompt_len: sequence.prompt, mask_stops: false, logprobs: None };
            step.push_row(&vec![0; fed.end], fed.clone(), &sequence.pages, samples.then_some(spec));
        }
        step
    }

    /// States of all fed tokens, and of those that sample.
    fn states(&self, feeds: &[Feed]) -> (Vec<f32>, Vec<f32>) {
        let hidden = self.embed.cols();
        let of =
            |(s, fed, _): &Feed| self.sequences[*s].states[fed.start * hidden..fed.end * hidden].to_vec();
        let sampling = self.sampling(feeds);
        let last = sampling.iter().flat_map(|f| of(f).split_off((f.1.len() - 1) * hidden)).collect();
        (feeds.iter().flat_map(of).collect(), last)
    }

    fn sampling(&self, feeds: &[Feed]) -> Vec<Feed> {
        feeds.iter().filter(|f| f.2).cloned().collect()
    }

    fn candidates(&self, feeds: &[Feed]) -> Vec<u32> {
        self.sampling(feeds).iter().map(|f| self.sequences[f.0].candidate).collect()
    }

    /// Scores `[row][head]` of the sampling rows of the last step, on the CPU.
    fn on_cpu(&self, steps: &[Vec<Feed>]) -> Vec<Vec<f32>> {
        let (mut ops, _) = golden::device(Isa::fastest(), 1);
        let (hidden, vocab) = (self.embed.cols(), self.embed.rows());
        let mut set = HeadSet::new(&ops, self.heads.clone(), HeadSizes { rows: ROWS, hidden, pages: PAGES });
        let mut rows = 0;
        for feeds in steps {
            let (step, (all, last)) = (self.step(feeds, 0xff), self.states(feeds));
            set.keep(&mut ops, &step.tokens(), &all);
            let logits: Vec<f32> =
                self.sampling(feeds).iter().flat_map(|f| self.sequences[f.0].logits.clone()).collect();
            let candidates = self.candidates(feeds);
            rows = candidates.len();
            set.observe(&mut ops, 0xff, rows, vocab, &logits);
            let input = HeadInput { hidden: &last, embed: &self.embed, candidates: &candidates };
            set.score(&mut ops, 0xff, &input);
            let ends: Vec<PromptEnd> = PromptEnd::of(&step).collect();
            set.score_prompts(&mut ops, 0xff, &step.tokens(), &ends);
        }
        (0..rows).map(|row| (0..self.heads.len()).map(|h| set.scores(h)[row]).collect()).collect()
    }
}

/// A device with heads on it.
struct Gpu<'a> {
    case: &'a Case,
    heads: CudaHeads,
    embed: Buffer<bf16>,
    kernels: Kernels,
    stream: Arc<CudaStream>,
    device: Device,
}

impl<'a> Gpu<'a> {
    fn new(case: &'a Case, small_grids: bool) -> Self {
        let device = Device::open(0).unwrap();
        let stream = device.stream().unwrap();
        let mut kernels = Kernels::load(&device, &[&STUB_IMAGE]).unwrap();
        if small_grids {
            kernels.plan_for(1);
        }
        let (vocab, hidden) = (case.embed.rows(), case.embed.cols());
        let mut heads = CudaHeads::of(&device, &stream, &case.heads, (hidden, vocab), ROWS).unwrap().unwrap();
        heads.allocate_kept(&device, &stream, PAGES).unwrap();
        let src = Buffer::from_slice(&device, &stream, &values(&case.embed)).unwrap();
        let embed =
            Buffer::from_slice(&device, &stream, &vec![bf16::NAN; packed_len(vocab, hidden)]).unwrap();
        let (n, k) = (vocab as u32, hidden as u32);
        let pack =
            PackArgs { src: src.ptr().cast(), dst: embed.ptr(), n, k, first_tile: 0, tile_step: 1, kind: 2 };
        // SAFETY: the table and its packed copy have these sizes; the stream is waited for before `src` goes.
        unsafe { kernels.pack_weight(&stream, &pack) }.unwrap();
        stream.synchronize().unwrap();
        Self { case, heads, embed, kernels, stream, device }
    }

    fn buffer<T: bytemuck::Pod>(&self, values: &[T]) -> Buffer<T> {
        Buffer::from_slice(&self.device, &self.stream, values).unwrap()
    }

    fn states(&self, values: &[f32]) -> Buffer<bf16> {
        let hidden = self.case.embed.cols();
        let mut padded = vec![bf16::ZERO; values.len() / hidden * hidden.next_multiple_of(32)];
        for (to, from) in
            padded.chunks_exact_mut(hidden.next_multiple_of(32)).zip(values.chunks_exact(hidden))
        {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = bf16::from_f32(*x));
        }
        self.buffer(&padded)
    }

    /// The lists of the largest logits, wider than any head reads, with NaN behind.
    fn lists(&self, feeds: &[Feed]) -> (Buffer<f32>, u32) {
        let top = self.heads.top() as usize;
        let mut lists = Vec::new();
        for (sequence, ..) in self.case.sampling(feeds) {
            let mut list = vec![f32::NAN; top + 4];
            top_values(Isa::fastest(), &self.case.sequences[sequence].logits, &mut list[..top]);
            lists.extend(list);
        }
        (self.buffer(&lists), top as u32 + 4)
    }

    /// What the heads `heads` say about the sampling rows of a step, launched for up to `bound` rows.
    fn step(&self, feeds: &[Feed], heads: u8, bound: usize) -> Vec<RowResult> {
        let step = self.case.step(feeds, heads);
        let (all, last) = self.case.states(feeds);
        let (all, last, (lists, top)) = (self.states(&all), self.states(&last), self.lists(feeds));
        let candidates = self.buffer(&self.case.candidates(feeds));
        let tokens = step.tokens();
        let (positions, token_row) = (self.buffer(tokens.positions), self.buffer(tokens.token_row));
        let mut table = vec![u32::MAX; feeds.len() * 8];
        for (row, to) in table.chunks_exact_mut(8).enumerate() {
            let from = tokens.row_page_start[row] as usize..tokens.row_page_start[row + 1] as usize;
            to[..from.len()].copy_from_slice(&tokens.row_pages[from]);
        }
        let (tables, ends) = (self.buffer(&table), ends_of(&step).collect::<Vec<_>>());
        let counts =
            [u32::from(heads), step.logit_tokens.len() as u32, step.ids.len() as u32, ends.len() as u32];
        let (words, ends) = (self.buffer(&counts), self.buffer(&ends));
        let word = |i: usize| words.ptr().add(i);
        let place = HeadStep {
            hidden: last.ptr(),
            top_logits: lists.ptr(),
            top,
            candidates: candidates.ptr(),
            embed: self.embed.ptr(),
            wanted: word(0),
            rows: word(1),
            max_rows: bound as u32,
            prompts: PromptStep {
                states: all.ptr(),
                tokens: word(2),
                max_tokens: counts[2] + 3,
                positions: positions.ptr(),
                token_row: token_row.ptr(),
                tables: tables.ptr(),
                table_stride: 8,
                ends: ends.ptr(),
                end_count: word(3),
            },
        };
        self.heads.raw.write(&self.stream, &vec![f32::NAN; self.heads.raw_len()]).unwrap();
        // SAFETY: the buffers have the shapes that the step names and outlive the read below.
        unsafe { self.heads.launch(&self.kernels, &self.stream, &place) }.unwrap();
        let raw = self.heads.raw.read(&self.stream).unwrap();
        let mut results = vec![RowResult::default(); feeds.len()];
        self.heads.finish(&raw, &step, &mut results);
        feeds.iter().zip(results).filter(|(f, _)| f.2).map(|(_, r)| r).collect()
    }

    /// As above, as bits `[row][head]`.
    fn bits(&self, feeds: &[Feed], bound: usize) -> Vec<Vec<u32>> {
        let heads = self.case.heads.len();
        let results = self.step(feeds, 0xff, bound);
        assert!(results.iter().all(|r| r.fault.is_none()));
        results.iter().map(|r| r.signals.scores[..heads].iter().map(|x| x.to_bits()).collect()).collect()
    }
}

/// Runs `body` on the emulation under every seed, with small grids and large ones; all results must be equal.
fn everywhere(case: &Case, body: impl Fn(&Gpu<'_>) -> Vec<Vec<u32>>) {
    let emu = match session(Settings::default()) {
        Ok(emu) => emu,
        Err(why) => return skip(&why),
    };
    let mut first: Option<Vec<Vec<u32>>> = None;
    for (i, seed) in seeds().into_iter().enumerate() {
        emu.reset(Settings { seed, ..Settings::default() });
        let result = body(&Gpu::new(case, i % 2 == 0));
        assert!(*first.get_or_insert(result.clone()) == result, "seed {seed} changes the result");
    }
}

#[test]
fn scores_are_those_of_the_cpu() {
    for (name, case) in Case::all() {
        let feeds = case.whole(0..ROWS);
        let truth = case.on_cpu(std::slice::from_ref(&feeds));
        everywhere(&case, |gpu| {
            let found = gpu.bits(&feeds, ROWS);
            let mut worst = vec![0.0f32; case.heads.len()];
            for (row, (found, truth)) in found.iter().zip(&truth).enumerate() {
                for (head, (x, y)) in found.iter().zip(truth).enumerate() {
                    let error = (f32::from_bits(*x) - y).abs();
                    assert!(error <= NEAR, "{name}, head {head}, row {row}: {error}");
                    worst[head] = worst[head].max(error);
                }
            }
            println!("{name}: largest differences {worst:?}");
            found
        });
        let spread = |head: usize| truth.iter().any(|r| (r[head] - truth[0][head]).abs() > 1e-3);
        assert!((0..case.heads.len()).all(spread), "{name}: scores that do not vary prove nothing");
    }
}

/// DESIGN rule 5: alone, among others, in a launch for more rows.
#[test]
fn a_score_has_the_same_bits_in_every_batch() {
    for (_, case) in Case::all() {
        everywhere(&case, |gpu| {
            let all = gpu.bits(&case.whole(0..ROWS), ROWS);
            for row in [0, 7, 19] {
                assert!(gpu.bits(&case.whole([row]), 1)[0] == all[row], "row {row} alone");
                assert!(gpu.bits(&case.whole([row]), ROWS)[0] == all[row], "row {row} alone, larger bound");
                let found = gpu.bits(&case.whole([3, 4, row, 9, 1, 2, 5, 6, 8, 10]), 12);
                assert!(found[2] == all[row], "row {row} at place 2");
            }
            all
        });
    }
}

/// A prompt's mean is over the states that its pages hold, whoever computed them and in however many steps.
#[test]
fn prompts_in_chunks_score_as_whole_ones() {
    let case = Case::demo();
    let steps = [
        vec![(19, 0..17, false), (4, 0..3, false)],
        vec![(4, 3..5, true), (16, 0..17, true), (19, 17..50, true)],
    ];
    let truth = case.on_cpu(&steps);
    everywhere(&case, |gpu| {
        assert!(gpu.bits(&steps[0], 2).is_empty(), "nothing samples in the first step");
        let found = gpu.bits(&steps[1], 3);
        assert!(found == gpu.bits(&case.whole([4, 16, 19]), 3));
        let query = 3;
        for (found, truth) in found.iter().zip(&truth) {
            assert!((f32::from_bits(found[query]) - truth[query]).abs() <= NEAR);
        }
        found
    });
}

#[test]
fn a_head_that_nobody_wants_writes_nothing() {
    let case = Case::demo();
    everywhere(&case, |gpu| {
        for wanted in [0u8, 0b0101, 0b1010] {
            let found = gpu.step(&case.whole([0, 1]), wanted, 2);
            let raw = gpu.heads.raw.read(&gpu.stream).unwrap();
            for head in 0..4 {
                let wanted = wanted >> head & 1 == 1;
                let said = raw[head * ROWS * 3..][..ROWS * 3].iter().any(|x| !x.is_nan());
                assert_eq!(said, wanted, "head {head}");
                assert_eq!(found[0].signals.scores[head] != 0.0, wanted, "head {head}");
            }
        }
        Vec::new()
    });
}

/// A state that is no number fails its own row, by name, and no other.
#[test]
fn a_score_that_is_no_number_fails_its_row() {
    let mut case = Case::demo();
    let hidden = case.embed.cols();
    case.sequences[1].states[hidden..].fill(f32::NAN);
    everywhere(&case, |gpu| {
        let found = gpu.step(&case.whole(0..9), 0xff, 9);
        let why = Some(RowFault::Other("the score of a router head is not a number"));
        for (row, result) in found.iter().enumerate() {
            assert_eq!(result.fault, if row == 1 { why } else { None }, "row {row}");
        }
        vec![found[0].signals.scores.iter().map(|x| x.to_bits()).collect()]
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let case = Case::demo();
    everywhere(&case, |gpu| {
        let none = CudaHeads::of(&gpu.device, &gpu.stream, &[], (64, 455), 4).unwrap();
        assert!(none.is_none(), "no heads, nothing on the device");
        assert_eq!(gpu.heads.top(), 16);
        assert_eq!(gpu.heads.kept_bytes_per_page(), 16 * 64 * 2);
        let weights: u64 = case.heads.iter().map(OpenHead::bytes).sum();
        assert!(gpu.heads.bytes() > weights / 2, "{} bytes for {weights}", gpu.heads.bytes());
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            gpu.step(&case.whole([0]), 1, ROWS + 1)
        }));
        assert!(refused.is_err(), "more rows than buffers");
        Vec::new()
    });
}
