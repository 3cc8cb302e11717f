//! A step allocates nothing: every buffer is sized when the model is built. One test in its own
//! binary, because the counting allocator belongs to the whole process.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use safetensors::tensor::Dtype;
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::StepTokens;

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if ON.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
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
    let config = support::qwen3_config();
    let dir = support::random_checkpoint(&config, Dtype::BF16, 1);
    let options = ModelOptions {
        threads: 2,
        max_batch_rows: 4,
        max_step_tokens: 32,
        kv_dtype: DType::Bf16,
        real_vocab: 45,
        context_len: 64,
    };
    let mut model = Model::open(dir.path()).unwrap().build(options, 8).unwrap();
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
    ON.store(true, Ordering::Relaxed);
    let before = COUNT.load(Ordering::Relaxed);
    model.forward(&ids, &extend, &[19, 20]);
    for _ in 0..3 {
        model.forward(&[7], &decode, &[0]);
    }
    let after = COUNT.load(Ordering::Relaxed);
    let boxed = std::hint::black_box(Box::new(1));
    ON.store(false, Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations in four steps");
    assert!(COUNT.load(Ordering::Relaxed) > after, "the counter does not count ({boxed})");
}
