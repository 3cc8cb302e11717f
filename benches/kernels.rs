//! CPU kernels beside the machine's own limits, all measured in this run: bytes read, and multiply-adds, per second.
//!
//! `bytes_streamed`: `read` streams bytes with plain loads and additions; `linear` streams as many as weights through the
//! product of T activations. The ratio of the throughputs at T = 1 is the share of the bandwidth that a decode step gets
//! while weights stream. `cache_streamed`: the same for attention over a KV cache of 4,096 tokens. `multiply_adds`: `peak`
//! is what registers alone reach, `linear` the products of a prefill.
//! `cargo bench -p tokenrouter-kernels --bench kernels`; `TOKENROUTER_BENCH_THREADS` sets the worker group (default 1).

#[path = "support/peak.rs"]
mod peak;
#[path = "support/read.rs"]
mod read;
#[path = "support/setup.rs"]
mod setup;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{
    AttnArgs, Ctx, Isa, KvArena, KvLayout, PAGE_TOKENS, Reduce, StepTokens, WeightRef, WorkerGroup,
    attention, linear,
};

/// Far beyond the caches that one tenant of a shared machine can keep.
const BYTES: usize = 512 << 20;
const COLS: usize = 2048;

fn threads() -> usize {
    std::env::var("TOKENROUTER_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

/// Small values of both signs in each type: no denormals, no overflow.
fn words(dtype: DType) -> Vec<u64> {
    let (base, mask) = match dtype {
        DType::F32 => (0x3c00_0000_3c00_0000, 0x807f_0000_807f_0000),
        DType::F16 => (0x2000_2000_2000_2000, 0x83ff_83ff_83ff_83ff),
        DType::Bf16 => (0x3c00_3c00_3c00_3c00, 0x807f_807f_807f_807f),
    };
    (0..BYTES as u64 / 8).map(|i| base | (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask)).collect()
}

fn activations(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i % 13) as f32 - 6.0) * 0.1).collect()
}

fn weights(c: &mut Criterion) {
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    let mut group = c.benchmark_group("bytes_streamed");
    group.throughput(Throughput::Bytes(BYTES as u64));
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        let words = words(dtype);
        if dtype == DType::Bf16 {
            group.bench_function("read", |b| b.iter(|| read::read_all(ctx, &words)));
        }
        let rows = BYTES / dtype.size() / COLS;
        let weight =
            WeightRef::new(dtype, rows, COLS, bytemuck::cast_slice(&words)).expect("the whole buffer");
        for tokens in [1_usize, 2, 4, 8, 16] {
            let x = activations(tokens * COLS);
            let mut out = vec![0.0; tokens * rows];
            let name = format!("linear_{}", dtype.name());
            group.bench_function(BenchmarkId::new(name, tokens), |b| {
                b.iter(|| linear(ctx, &x, weight, None, Reduce::Whole, black_box(&mut out)));
            });
        }
    }
    group.finish();
}

fn prefill(c: &mut Criterion) {
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    let mut group = c.benchmark_group("multiply_adds");
    group.throughput(Throughput::Elements(peak::COUNT * threads() as u64));
    group.bench_function("peak", |b| b.iter(|| workers.run(threads(), &|_| peak::multiply_adds(ctx.isa))));
    // The products of a layer of Qwen3-0.6B, by their shapes.
    for (rows, cols) in [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)] {
        let words = words(DType::Bf16);
        let data = &bytemuck::cast_slice(&words)[..2 * rows * cols];
        let weight = WeightRef::new(DType::Bf16, rows, cols, data).expect("lengths");
        for tokens in [128_usize, 512] {
            let x = activations(tokens * cols);
            let mut out = vec![0.0; tokens * rows];
            group.throughput(Throughput::Elements((tokens * rows * cols) as u64));
            group.bench_function(BenchmarkId::new(format!("linear_{rows}x{cols}"), tokens), |b| {
                b.iter(|| linear(ctx, &x, weight, None, Reduce::Segments4, black_box(&mut out)));
            });
        }
    }
    group.finish();
}

fn cache(c: &mut Criterion) {
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    let mut group = c.benchmark_group("cache_streamed");
    for (name, layers, q_heads, kv_heads, head_dim) in
        [("SmolLM2-135M", 30, 9, 3, 64), ("Qwen3-0.6B", 28, 16, 8, 128), ("Qwen3-4B", 36, 32, 8, 128)]
    {
        for (dtype, context) in [(DType::F16, 4096_usize), (DType::Bf16, 4096), (DType::F16, 1024)] {
            let pages = context / PAGE_TOKENS;
            let layout = KvLayout { layers, kv_heads, head_dim, dtype, pages };
            let mut kv = KvArena::new(layout).expect("memory");
            // Memory that nobody wrote is one and the same page of zeros, which the first-level cache holds.
            (0..pages as u32).for_each(|page| kv.fill_page(page, 0x11));
            let row_pages: Vec<u32> = (0..pages as u32).collect();
            let tokens = StepTokens {
                token_row: &[0],
                positions: &[context as u32 - 1],
                row_pages: &row_pages,
                row_page_start: &[0, pages as u32],
            };
            let q = vec![0.1; q_heads * head_dim];
            let mut out = vec![0.0; q_heads * head_dim];
            group.throughput(Throughput::Bytes(layout.bytes().expect("fits") as u64));
            let what = format!("{name} {} {context}", dtype.name());
            group.bench_function(BenchmarkId::new("attention", what), |b| {
                b.iter(|| {
                    for layer in 0..layers {
                        let args = AttnArgs { q: &q, tokens: &tokens, layer, q_heads, scale: 0.09, kv: &kv };
                        attention(ctx, args, black_box(&mut out));
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = setup::samples(10);
    targets = weights, prefill, cache
}
criterion_main!(benches);
