//! A step allocates nothing: every buffer is sized when the model is built. One test in its own
//! binary, because the counting allocator belongs to the whole process.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use safetensors::tensor::Dtype;
use tokenrouter_engine::heads::PromptEnd;
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::StepTokens;

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static BY_CALLER: AtomicUsize = AtomicUsize::new(0);
static BY_OTHERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if ON.load(Ordering::Relaxed) {
        let counter = if CALLER.get() { &BY_CALLER } else { &BY_OTHERS };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` or `realloc` of the same system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing() {
    // One model whose work stays on the caller, one whose work is shared out.
    for config in [support::qwen3_config(), support::wide_config()] {
        steps_allocate_nothing(support::random_checkpoint(&config, Dtype::BF16, 1).path(), &[]);
    }
    // One with router heads of every kind.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads");
    let heads = ["r2r-widths", "r2r-three", "citer", "co-llm"].map(|h| golden.join(h));
    steps_allocate_nothing(&golden.join("model"), &heads);
    steps_allocate_nothing(&golden.join("model"), &[golden.join("query")]);
}

fn steps_allocate_nothing(dir: &Path, heads: &[PathBuf]) {
    let options = ModelOptions {
        threads: 2,
        max_batch_rows: 4,
        max_step_tokens: 32,
        kv_dtype: DType::Bf16,
        real_vocab: 45,
        context_len: 64,
    };
    let mut model = Model::open(dir).unwrap().with_heads(heads).unwrap().build(options, 8).unwrap();
    let ids: Vec<u32> = (0..21).collect();
    let positions: Vec<u32> = (0..20).chain([30]).collect();
    let mut token_row = vec![0; 20];
    token_row.push(1);
    let extend = StepTokens {
        token_row: &token_row,
        positions: &positions,
        row_pages: &[3, 1, 0, 2],
        row_page_start: &[0, 2, 4],
    };
    let decode =
        StepTokens { token_row: &[0], positions: &[20], row_pages: &[3, 1], row_page_start: &[0, 2] };
    const ROUNDS: usize = 50;
    const SCORED: [u32; 9] = [0, 1, 2, 3, 9, 10, 17, 18, 20];
    BY_OTHERS.store(0, Ordering::Relaxed);
    BY_CALLER.store(0, Ordering::Relaxed);
    CALLER.set(true);
    ON.store(true, Ordering::Relaxed);
    for _ in 0..ROUNDS {
        model.forward(&ids, &extend, &[19, 20]);
        model.observe_logits(u8::MAX);
        model.score(u8::MAX, &[3, 4]);
        model.score_prompts(u8::MAX, &extend, &[PromptEnd { row: 0, sampled: 0, tokens: 20 }]);
        // More tokens than there are rows for logits.
        let mut seen = 0;
        model.forward_scored(0, &ids, &extend, &SCORED, &[20], |_, rows| seen += rows.len()).unwrap();
        assert!(seen > 0);
        model.forward(&[7], &decode, &[0]);
        model.observe_logits(u8::MAX);
        model.score(u8::MAX, &[5]);
    }
    let (caller, others) = (BY_CALLER.load(Ordering::Relaxed), BY_OTHERS.load(Ordering::Relaxed));
    let boxed = std::hint::black_box(Box::new(1));
    ON.store(false, Ordering::Relaxed);
    assert_eq!(caller, 0, "allocations of the calling thread, from the first step on");
    // A worker allocates a little while it comes up, which may be as late as now; a step that makes
    // it allocate would do so in every round.
    assert!(others < ROUNDS, "{others} allocations of the worker in {ROUNDS} rounds");
    assert!(BY_CALLER.load(Ordering::Relaxed) > 0, "the counter does not count ({boxed})");
}
