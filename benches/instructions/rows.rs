//! Sampling and signals of one row of logits, on the path that valgrind knows.

use std::hint::black_box;

use tokenrouter_kernels::cpu::Isa;
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample, signals_and_sample};
use tokenrouter_kernels::signals::{SignalFlags, signals_on};

use crate::logits::logits;
use crate::{tokenrouter_counted, tokenrouter_scenario_ends};

const VOCAB: usize = 49_152;
const TIMES: u64 = 3;

/// Counts every scenario.
///
/// # Errors
/// When this processor lacks AVX2.
pub(crate) fn run() -> Result<(), String> {
    if !Isa::Avx2.supported() {
        return Err("the budget is for AVX2, which this processor lacks".into());
    }
    let plain = SamplingParams::default();
    let greedy = SamplingParams { temperature: 0.0, ..plain.clone() };
    for (name, flags) in
        [("lse", SignalFlags::NONE), ("entropy", SignalFlags::ENTROPY), ("all", SignalFlags::ALL)]
    {
        let row = logits(VOCAB, 3.0);
        count(&format!("signals, {name}"), || {
            black_box(signals_on(Isa::Avx2, black_box(&row), flags));
        });
    }
    let draws = [
        ("greedy", 3.0, greedy.clone()),
        ("temperature", 3.0, SamplingParams { temperature: 0.8, ..plain.clone() }),
        ("top_k 50", 3.0, SamplingParams { top_k: 50, ..plain.clone() }),
        ("top_p 0.9, peaked", 9.0, SamplingParams { top_p: 0.9, ..plain.clone() }),
        ("top_p 0.9, flat", 0.3, SamplingParams { top_p: 0.9, ..plain }),
    ];
    for (name, spread, params) in &draws {
        let (mut row, mut scratch) = (logits(VOCAB, *spread), SampleScratch::on(Isa::Avx2, VOCAB));
        count(&format!("sampling, {name}"), || {
            black_box(sample(black_box(&mut row), &input(params), &mut scratch)).ok();
        });
    }
    let (mut row, mut scratch) = (logits(VOCAB, 3.0), SampleScratch::on(Isa::Avx2, VOCAB));
    count("greedy with entropy", || {
        let row = black_box(&mut row);
        black_box(signals_and_sample(row, SignalFlags::ENTROPY, &input(&greedy), &mut scratch));
    });
    Ok(())
}

fn input(params: &SamplingParams) -> SampleInput<'_> {
    let key = DrawKey { seed: 1, choice: 0, position: 5, purpose: Purpose::Sample, model: 0 };
    SampleInput { params, key, history: &[], prompt_len: 0, forbidden: &[] }
}

fn count(name: &str, mut work: impl FnMut()) {
    work();
    tokenrouter_counted(&mut || (0..TIMES).for_each(|_| work()));
    tokenrouter_scenario_ends(name, "row", TIMES);
}
