//! Log-probabilities of candidates and prompts: the CPU's rules on the card's own logits.

use tokenrouter_kernels::cpu::Isa;
use tokenrouter_kernels::logprobs::{LogSoftmax, top_ids};
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_scheduler::RowFault;

use super::support::*;
use crate::logprobs::TokenLogprobs;
use crate::model::Model;

/// Compares with the log-softmax of raw logits: the same ids, values but for the rounding of the log-sum.
#[track_caller]
fn check(found: &TokenLogprobs, logits: &[f32], id: u32, top: usize) {
    let softmax = LogSoftmax::new(Isa::fastest(), logits).unwrap();
    let near = |a: f32, b: f32| (a - b).abs() <= 4e-6 * (1.0 + b.abs());
    assert!(near(found.logprob, softmax.of(logits[id as usize])), "{found:?}");
    let mut list = vec![(0, 0.0); top];
    assert_eq!(top_ids(Isa::fastest(), logits, &mut list), top);
    assert_eq!(
        found.top.iter().map(|t| t.0).collect::<Vec<_>>(),
        list.iter().map(|t| t.0).collect::<Vec<_>>()
    );
    for ((_, found), (_, logit)) in found.top.iter().zip(&list) {
        assert!(near(*found, softmax.of(*logit)) && *found <= 0.0);
    }
}

#[test]
fn candidates_are_scored_by_the_raw_logits_in_graphs_and_without() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS[..3], None);
    let texts: Vec<Vec<u32>> = (0..4).map(|i| random_ids(i, 9, 450)).collect();
    let own: Vec<_> = (0..4).map(|i| pages(i, 9)).collect();
    let wishes = [
        SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        SamplingParams { temperature: 3.0, ..SamplingParams::default() },
        SamplingParams { temperature: 0.0, logit_bias: vec![(7, 90.0)], ..SamplingParams::default() },
        SamplingParams { temperature: 2.0, presence_penalty: 2.0, top_k: 300, ..SamplingParams::default() },
    ];
    // The last one does not ask.
    let tops = [Some(0), Some(20), Some(3), None];
    for graph in [Some(32), None] {
        let rows: Vec<TestRow<'_>> = (0..4)
            .map(|i| TestRow {
                tokens: &texts[i],
                fed: 2..9,
                pages: &own[i],
                sample: Some(wishes[i].clone()),
            })
            .collect();
        let mut asked = step(&rows);
        for (row, top) in asked.rows.iter_mut().zip(tops) {
            row.sample.as_mut().unwrap().logprobs = top;
        }
        let room = run_for(&mut model, asked, graph);
        let raw = logits(&mut model, 4);
        assert_eq!(room.scores.len(), 3, "those that ask");
        for (i, top) in tops.iter().flatten().enumerate() {
            check(&room.scores.get(i).unwrap(), &raw[i], room.results[i].token, usize::from(*top));
        }
        assert_eq!(room.results[2].token, 7);
        assert_eq!(room.results[0].signals.top_len, 8, "routers see what they always see");
        let plain = run_in(&mut model, step(&rows), graph);
        assert_eq!(plain, room.results);
    }
    drop(model);
    drop(emu);
}

#[test]
fn prompts_are_scored_in_pieces_and_without_a_graph() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let text = problem(0);
    let (own, other, ids) = (pages(0, 60), pages(8, 9), random_ids(5, 9, 450));
    let expected: Vec<Vec<f32>> = (0..41)
        .map(|at| {
            let row = TestRow { tokens: &text[..at + 1], fed: at..at + 1, pages: &own, sample: greedy() };
            run(&mut model, step(&[row]));
            logits(&mut model, 1).remove(0)
        })
        .collect();
    for (fed, samples) in [(0..41, true), (0..12, false), (5..40, false)] {
        let rows = [
            TestRow {
                tokens: &text[..fed.end],
                fed: fed.clone(),
                pages: &own,
                sample: greedy().filter(|_| samples),
            },
            TestRow { tokens: &ids, fed: 0..9, pages: &other, sample: greedy() },
        ];
        let scored = with_scores(step(&rows), &text, fed.clone(), 4);
        assert!(model.graph_key()(&scored).is_err(), "a step that scores prompts runs uncaptured");
        let room = run_for(&mut model, scored, None);
        assert_eq!(room.scores.len(), fed.len());
        for (i, at) in fed.enumerate() {
            check(&room.scores.get(i).unwrap(), &expected[at], text[at + 1], 4);
        }
        assert!(room.results.iter().all(|result| result.fault.is_none()));
        assert_eq!(room.results, run_in(&mut model, step(&rows), None));
    }
    drop(model);
    drop(emu);
}

/// Weights that are no numbers: every row that is scored fails by name, also one that samples nothing.
#[test]
fn a_prompt_scored_by_no_numbers_fails() {
    let Some(emu) = emulation(1) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let mut model = ready(&open, 64, &[], None);
    let (own, text) = (pages(0, 40), problem(0));
    let parts = model.parts();
    let cache = parts.cache.unwrap();
    cache.write(parts.stream, &vec![half::bf16::NAN; cache.len()]).unwrap();
    // It reads the position in front of it, which holds no numbers.
    let rows = [TestRow { tokens: &text[..20], fed: 4..20, pages: &own, sample: None }];
    let room = run_for(&mut model, with_scores(step(&rows), &text, 4..20, 2), None);
    assert_eq!(room.results[0].fault, Some(RowFault::NonFinite));
    drop(model);
    drop(emu);
}
