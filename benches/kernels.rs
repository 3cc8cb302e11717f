//! CPU kernels beside the machine's own limit, both measured in this run: bytes read per second.
//!
//! `read` streams the same bytes with plain loads and additions; `linear` streams them as bf16 weights through the
//! product of T activation rows. The ratio of the two throughputs at T = 1 is the share of the bandwidth that a decode
//! step gets while weights stream. `attention` reads a KV cache of 4,096 tokens.
//! `cargo bench -p tokenrouter-kernels --bench kernels`; `TOKENROUTER_BENCH_THREADS` sets the worker group (default 1).

#[path = "support/read.rs"]
mod read;

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

fn weights(c: &mut Criterion) {
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    // Small bf16 values of both signs: no denormals, no overflow.
    let words: Vec<u64> = (0..BYTES as u64 / 8)
        .map(|i| 0x3c00_3c00_3c00_3c00 | (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x807f_807f_807f_807f))
        .collect();
    let mut group = c.benchmark_group("bytes_streamed");
    group.throughput(Throughput::Bytes(BYTES as u64));
    group.bench_function("read", |b| b.iter(|| read::read_all(ctx, &words)));
    let data: &[u8] = bytemuck::cast_slice(&words);
    let rows = BYTES / 2 / COLS;
    let weight = WeightRef::new(DType::Bf16, rows, COLS, data).expect("the whole buffer");
    for tokens in [1_usize, 2, 4, 8, 16] {
        let x: Vec<f32> = (0..tokens * COLS).map(|i| ((i % 13) as f32 - 6.0) * 0.1).collect();
        let mut out = vec![0.0; tokens * rows];
        group.bench_function(BenchmarkId::new("linear_bf16", tokens), |b| {
            b.iter(|| linear(ctx, &x, weight, None, Reduce::Whole, black_box(&mut out)));
        });
    }
    group.finish();
}

fn cache(c: &mut Criterion) {
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    let (context, layers, kv_heads, head_dim, q_heads) = (4096_usize, 28, 8, 128, 16);
    let mut group = c.benchmark_group("cache_streamed");
    for dtype in [DType::F16, DType::Bf16] {
        let pages = context / PAGE_TOKENS;
        let layout = KvLayout { layers, kv_heads, head_dim, dtype, pages };
        let kv = KvArena::new(layout).expect("memory");
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
        group.bench_function(BenchmarkId::new("attention", dtype.name()), |b| {
            b.iter(|| {
                for layer in 0..layers {
                    let args = AttnArgs { q: &q, tokens: &tokens, layer, q_heads, scale: 0.09, kv: &kv };
                    attention(ctx, args, black_box(&mut out));
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_secs(1))
        .measurement_time(std::time::Duration::from_secs(5));
    targets = weights, cache
}
criterion_main!(benches);
