//! Sampling and signals of one row of logits beside the time to read the row once, in the same run.
//!
//! `read` sums the row as fast as it can be streamed. The row stays in the cache, as it does in a decode step, where the
//! product that has just written it is larger by far. `cargo bench --bench rows`.

#[path = "support/logits.rs"]
mod logits;
#[path = "support/setup.rs"]
mod setup;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_kernels::cpu::Isa;
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample, signals_and_sample};
use tokenrouter_kernels::signals::{SignalFlags, signals_on};

use crate::logits::logits;

const VOCABULARIES: [usize; 2] = [49_152, 151_936];
const SPREADS: [(&str, f32); 2] = [("flat", 0.3), ("peaked", 9.0)];

fn input(params: &SamplingParams) -> SampleInput<'_> {
    let key = DrawKey { seed: 1, choice: 0, position: 5, purpose: Purpose::Sample, model: 0 };
    SampleInput { params, key, history: &[], prompt_len: 0, forbidden: &[] }
}

/// Plain loads and additions of bits in 32 lanes, which vectorise.
fn read(row: &[f32]) -> [u32; 32] {
    let mut lanes = [0_u32; 32];
    for chunk in row.chunks_exact(32) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(x.to_bits());
        }
    }
    lanes
}

fn rows(c: &mut Criterion) {
    let isa = Isa::detect().expect("an instruction set");
    let plain = SamplingParams::default();
    let greedy = SamplingParams { temperature: 0.0, ..plain.clone() };
    let draws = [
        ("greedy", greedy.clone()),
        ("temperature", SamplingParams { temperature: 0.8, ..plain.clone() }),
        ("top_k_50", SamplingParams { top_k: 50, ..plain.clone() }),
        ("top_p_0.9", SamplingParams { top_p: 0.9, ..plain.clone() }),
        ("top_k_50_top_p_0.9", SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() }),
        ("min_p_0.05", SamplingParams { min_p: 0.05, ..plain }),
    ];
    let signals = [("lse", SignalFlags::NONE), ("entropy", SignalFlags::ENTROPY), ("all", SignalFlags::ALL)];
    for vocab in VOCABULARIES {
        let mut scratch = SampleScratch::on(isa, vocab);
        for (spread, width) in SPREADS {
            let mut group = c.benchmark_group(format!("row_{vocab}_{spread}"));
            group.throughput(Throughput::Bytes(4 * vocab as u64));
            let mut row = logits(vocab, width);
            group.bench_function("read", |b| b.iter(|| read(black_box(&row))));
            for (name, flags) in signals {
                group.bench_function(BenchmarkId::new("signals", name), |b| {
                    b.iter(|| signals_on(isa, black_box(&row), flags));
                });
                group.bench_function(BenchmarkId::new("signals_and_greedy", name), |b| {
                    b.iter(|| signals_and_sample(black_box(&mut row), flags, &input(&greedy), &mut scratch));
                });
            }
            for (name, params) in &draws {
                group.bench_function(BenchmarkId::new("sample", name), |b| {
                    b.iter(|| sample(black_box(&mut row), &input(params), &mut scratch));
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = setup::samples(10);
    targets = rows
}
criterion_main!(benches);
