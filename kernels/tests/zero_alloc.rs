//! One pass of all operations must not allocate, on the caller or on a helper.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::*;
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample};
use tokenrouter_kernels::signals::{SignalFlags, signals};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: passed on unchanged.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const T: usize = 40;
const H: usize = 128;
const D: usize = 32;
const HEADS: usize = 4;
const KV: usize = 2;
const VOCAB: usize = 3000;

/// The buffers of a small model.
struct Model {
    weights: Vec<u8>,
    rope: RopeTable,
    kv: KvArena,
    scratch: SampleScratch,
    hidden: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    logits: Vec<f32>,
    params: Vec<SamplingParams>,
}

fn pass(ctx: Ctx<'_>, m: &mut Model, tokens: &StepTokens<'_>, ids: &[u32]) -> u32 {
    let weights = std::mem::take(&mut m.weights);
    let w = |rows: usize, cols: usize| {
        WeightRef::new(DType::Bf16, rows, cols, &weights[..rows * cols * 2]).unwrap()
    };
    embed(ctx, w(VOCAB, H), ids, &mut m.hidden);
    rms_norm(ctx, &m.hidden, w(1, H), 1e-6, &mut m.normed);
    linear(ctx, &m.normed, w(HEADS * D, H), Some(w(1, HEADS * D)), Reduce::Whole, &mut m.q);
    linear(ctx, &m.normed, w(KV * D, H), None, Reduce::Whole, &mut m.k);
    linear(ctx, &m.normed, w(KV * D, H), None, Reduce::Whole, &mut m.v);
    let (q_norm, k_norm) = (Some(w(1, D)), Some(w(1, D)));
    let args = QkvArgs {
        q: &mut m.q,
        k: &mut m.k,
        v: &m.v,
        q_norm,
        k_norm,
        eps: 1e-6,
        rope: &m.rope,
        tokens,
        layer: 0,
    };
    qk_norm_rope_kv(ctx, args, &mut m.kv);
    let args = AttnArgs { q: &m.q, tokens, layer: 0, q_heads: HEADS, scale: 0.2, kv: &m.kv };
    attention(ctx, args, &mut m.attended);
    linear(ctx, &m.attended, w(H, HEADS * D), None, Reduce::Segments4, &mut m.q);
    silu_mul(ctx, &mut m.q, &m.attended);
    add_rms_norm(ctx, &mut m.hidden, &m.q, w(1, H), 1e-6, &mut m.normed);
    linear(ctx, &m.normed, w(VOCAB, H), None, Reduce::Whole, &mut m.logits);
    mask_padding(&mut m.logits, VOCAB, VOCAB - 5);
    let mut sum = 0;
    for (row, logits) in m.logits.chunks_exact_mut(VOCAB).enumerate() {
        sum += signals(logits, SignalFlags::ALL).top_ids[0];
        let key = DrawKey { seed: 1, choice: 0, position: row as u32, purpose: Purpose::Sample, model: 0 };
        let params = &m.params[row % m.params.len()];
        let input = SampleInput { params, key, history: ids, prompt_len: 3, forbidden: &[1] };
        sum += sample(logits, &input, &mut m.scratch).unwrap();
    }
    m.weights = weights;
    sum
}

#[test]
fn a_pass_allocates_nothing() {
    let params = SamplingParams::default();
    let pages = T.div_ceil(PAGE_TOKENS);
    let layout = KvLayout { layers: 1, kv_heads: KV, head_dim: D, dtype: DType::Bf16, pages };
    let mut model = Model {
        weights: (0..VOCAB * H).flat_map(|i| [(i % 251) as u8, 0x3c + (i % 3) as u8]).collect(),
        rope: RopeTable::new(&[0.1; D / 2], 1.0, T),
        kv: KvArena::new(layout).unwrap(),
        scratch: SampleScratch::new(VOCAB),
        hidden: vec![0.0; T * H],
        normed: vec![0.0; T * H],
        q: vec![0.0; T * HEADS * D],
        k: vec![0.0; T * KV * D],
        v: vec![0.0; T * KV * D],
        attended: vec![0.0; T * HEADS * D],
        logits: vec![0.0; T * VOCAB],
        params: vec![
            params.clone(),
            SamplingParams { top_k: 20, ..params.clone() },
            SamplingParams { top_p: 0.99, min_p: 0.001, ..params.clone() },
            SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.5, ..params.clone() },
            SamplingParams { temperature: 0.0, logit_bias: vec![(7, 1.0)], ..params },
        ],
    };
    let positions: Vec<u32> = (0..T as u32).collect();
    let row_pages: Vec<u32> = (0..pages as u32).rev().collect();
    let tokens = StepTokens {
        token_row: &[0; T],
        positions: &positions,
        row_pages: &row_pages,
        row_page_start: &[0, pages as u32],
    };
    let ids: Vec<u32> = (0..T as u32).map(|i| i * 7).collect();
    for threads in [1, 3] {
        let workers = WorkerGroup::new("test", threads).unwrap();
        // A thread allocates while it starts: wait until all take part.
        let arrived = AtomicUsize::new(0);
        workers.run(threads, &|_| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < threads {
                std::thread::yield_now();
            }
        });
        for isa in [Isa::Avx512, Isa::Avx2, Isa::Portable] {
            let ctx = Ctx { isa, workers: &workers };
            let first = pass(ctx, &mut model, &tokens, &ids);
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for _ in 0..3 {
                assert_eq!(pass(ctx, &mut model, &tokens, &ids), first);
            }
            let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(count, 0, "allocations with {threads} threads, {isa:?}");
        }
    }
}
