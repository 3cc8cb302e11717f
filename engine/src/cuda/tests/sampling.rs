//! Tokens, signals and lists: the CPU's rules on the card's own logits.

use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample};
use tokenrouter_kernels::signals::{SignalFlags, signals};

use super::support::*;
use crate::model::Model;
use crate::step::Step;

/// What clients may ask for, one kind a row.
fn wishes() -> Vec<SamplingParams> {
    let base = SamplingParams::default;
    vec![
        SamplingParams { temperature: 0.0, ..base() },
        SamplingParams { temperature: 1.3, ..base() },
        SamplingParams { top_k: 5, ..base() },
        SamplingParams { top_p: 0.7, temperature: 2.0, ..base() },
        SamplingParams { min_p: 0.2, temperature: 1.5, ..base() },
        SamplingParams { temperature: 0.0, repetition_penalty: 1.8, ..base() },
        SamplingParams { presence_penalty: 1.5, frequency_penalty: 0.5, temperature: 2.0, ..base() },
        SamplingParams {
            temperature: 0.0,
            logit_bias: vec![(7, 40.0), (7, 1.0), (1_000_000, 5.0), (3, -2.0)],
            ..base()
        },
        SamplingParams {
            logit_bias: vec![(9, 3.0), (11, 30.0)],
            repetition_penalty: 1.2,
            top_k: 40,
            top_p: 0.9,
            ..base()
        },
    ]
}

/// The CPU's token for row `index` of the step and these logits.
fn expected(step: &Step, index: usize, logits: &[f32]) -> u32 {
    let row = &step.rows[index];
    let spec = row.sample.as_ref().unwrap();
    let input = SampleInput {
        params: &spec.sampling.params,
        key: spec.key,
        history: step.history(row),
        prompt_len: spec.prompt_len,
        forbidden: if spec.mask_stops { &spec.sampling.stop_ids } else { &[] },
    };
    sample(&mut logits.to_vec(), &input, &mut SampleScratch::new(logits.len())).unwrap()
}

#[test]
fn equal_logits_give_the_cpu_s_tokens_and_signals() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let texts: Vec<Vec<u32>> = (0..9).map(|i| random_ids(i, 12, 450)).collect();
    let own: Vec<_> = (0..9).map(|i| pages(i, 12)).collect();
    let mut distinct = std::collections::BTreeSet::new();
    for mask in [false, true] {
        let rows: Vec<TestRow<'_>> = wishes()
            .into_iter()
            .enumerate()
            .map(|(i, params)| TestRow {
                tokens: &texts[i],
                fed: 5..12,
                pages: &own[i],
                sample: Some(params),
            })
            .collect();
        let make = || step_with(&rows, &[7, 452, 7, 99_999], mask);
        for graph in [Some(64), None] {
            let results = run_in(&mut model, make(), graph);
            let raw = logits(&mut model, rows.len());
            let step = make();
            for (i, (result, raw)) in results.iter().zip(&raw).enumerate() {
                assert_eq!(result.fault, None);
                assert_eq!(result.token, expected(&step, i, raw), "row {i}, mask {mask}, {graph:?}");
                distinct.insert(result.token);
                let cpu = signals(raw, SignalFlags::ALL);
                let found = &result.signals;
                assert_eq!(found.top_ids, cpu.top_ids);
                assert_eq!(found.top_logits, cpu.top_logits);
                assert_eq!(found.top_len, cpu.top_len);
                let near = |a: f32, b: f32| (a - b).abs() <= 2e-6 * (1.0 + b.abs());
                assert!(near(found.lse, cpu.lse), "{} {}", found.lse, cpu.lse);
                assert!(near(found.entropy, cpu.entropy), "{} {}", found.entropy, cpu.entropy);
                assert!(near(found.margin, cpu.margin), "{} {}", found.margin, cpu.margin);
                assert_eq!(found.entropy_norm, found.entropy / 455f32.ln());
            }
            let biased = results[7].token;
            assert_eq!(biased == 7, !mask, "a bias of 41 wins, unless the id is forbidden: {biased}");
        }
    }
    assert!(distinct.len() > 3, "{distinct:?}");
    drop(model);
    drop(emu);
}

#[test]
fn signals_that_nobody_asked_for_are_zero() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &[], None);
    let (ids, own) = (random_ids(1, 9, 450), pages(0, 9));
    let mut lse = Vec::new();
    for flags in [0, 1, 2, 4, 7] {
        let mut step = step(&[TestRow { tokens: &ids, fed: 0..9, pages: &own, sample: greedy() }]);
        step.flags = SignalFlags(flags);
        let signals = run(&mut model, step)[0].signals;
        lse.push(signals.lse.to_bits());
        assert_eq!(signals.entropy != 0.0, flags & 1 != 0);
        assert_eq!(signals.entropy_norm != 0.0, flags & 1 != 0);
        assert_eq!(signals.top_len != 0, flags & 2 != 0);
        assert_eq!(signals.margin != 0.0, flags & 4 != 0);
    }
    assert!(lse.iter().all(|x| *x == lse[0] && *x != 0));
    drop(model);
    drop(emu);
}
