//! Router heads inside the step: the demo's own routers, against the CPU's model and among themselves.

use tokenrouter_scheduler::RowResult;

use super::support::*;
use crate::cuda::model::CudaModel;
use crate::heads::PromptEnd;
use crate::model::{Model, OpenModel};

/// The small model with all four of its routers: every head of the model at once.
fn open() -> OpenModel {
    let routers = ["r2r", "citer", "co-llm", "query"].map(|r| demo("routers").join(r));
    Model::open(&demo("slm")).unwrap().with_heads(&routers).unwrap()
}

/// Feeds a prompt in the given chunks, of which the last one samples; then one token more.
fn prompt(model: &mut CudaModel, ids: &[u32], sizes: &[usize], graphs: bool) -> [RowResult; 2] {
    let own = pages(3, ids.len() + 1);
    let len = sizes.iter().sum::<usize>();
    let mut from = 0;
    let mut last = Vec::new();
    for fed in sizes.iter().map(|s| (*s, true)).chain([(1, false)]) {
        let range = from..from + fed.0;
        from = range.end;
        let sample = greedy().filter(|_| from >= len);
        let mut step = step(&[TestRow { tokens: ids, fed: range, pages: &own, sample }]);
        step.heads = 0b1111;
        if let Some(spec) = &mut step.rows[0].sample {
            spec.prompt_len = len;
        }
        let key = model.graph_key()(&step).ok().filter(|_| graphs);
        last.extend(run_in(model, step, key));
    }
    [last[last.len() - 2], last[last.len() - 1]]
}

/// What the CPU's heads say about the same two rows.
fn expected(ids: &[u32], len: usize, candidates: [u32; 2]) -> [[f32; 4]; 2] {
    let open = open();
    let mut cpu = reference(&open, 128);
    let own = pages(3, len + 1);
    let ranges = [0..len, len..len + 1];
    [0, 1].map(|i| {
        let fed = ranges[i].clone();
        let step = step(&[TestRow { tokens: ids, fed, pages: &own, sample: greedy() }]);
        cpu.forward(&step.ids, &step.tokens(), &step.logit_tokens);
        cpu.observe_logits(0b1111);
        cpu.score(0b1111, &candidates[i..=i]);
        let ends = [PromptEnd { row: 0, sampled: 0, tokens: len }];
        cpu.score_prompts(0b1111, &step.tokens(), if i == 0 { &ends } else { &[] });
        [0, 1, 2, 3].map(|head| cpu.scores(head)[0])
    })
}

#[test]
fn heads_score_as_on_the_cpu_in_whatever_chunks_and_graphs() {
    let Some(emu) = emulation(1) else { return };
    let ids = problem(0);
    let open = open();
    let mut model = ready(&open, 64, &BUCKETS, None);
    let whole = prompt(&mut model, &ids, &[48], true);
    let candidates = [whole[0].token, whole[1].token];
    for (found, cpu) in whole.iter().zip(expected(&ids, 48, candidates)) {
        assert_eq!(found.fault, None);
        println!("{:?}, on the CPU {cpu:?}", found.signals.scores);
        for (a, b) in found.signals.scores.iter().zip(cpu) {
            assert!((a - b).abs() < 0.03, "{:?} {cpu:?}", found.signals.scores);
        }
    }
    assert!(whole[0].signals.scores.iter().all(|s| *s > 0.0 && *s < 1.0));
    assert_eq!(whole[1].signals.scores[3], 0.0, "the prompt is judged once");
    for (sizes, graphs) in [(vec![48], false), (vec![10, 30, 8], true), (vec![47, 1], false)] {
        assert_eq!(prompt(&mut model, &ids, &sizes, graphs), whole, "{sizes:?}, graphs {graphs}");
    }
    // Without anybody who asks there is nothing.
    let own = pages(3, 48);
    let quiet = run(&mut model, step(&[TestRow { tokens: &ids, fed: 0..48, pages: &own, sample: greedy() }]));
    assert_eq!(quiet[0].signals.scores, [0.0; 4]);
    assert!(model.bytes().heads > 0);
    drop(model);
    drop(emu);
}
