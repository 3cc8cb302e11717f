//! One model on several devices, a thread each.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use tokenrouter_kernels::DType;
use tokenrouter_kernels::cuda::{Communicator, NcclId};
use tokenrouter_scheduler::RowResult;

use super::checkpoint::{Sizes, write};
use super::support::*;
use crate::cuda::model::{CudaModel, ModelSpec};
use crate::model::{Model, OpenModel};
use crate::ranks::LaunchRecord;
use crate::shard::Shard;

const DEADLINE: Duration = Duration::from_secs(20);

fn communicator(id: NcclId, shard: Shard, context: &crate::cuda::context::RankContext) -> Communicator {
    Communicator::join(&context.device, id, shard.index, shard.count, DEADLINE).unwrap()
}

/// A shard, ready to run, on the device of its number. Every phase begins when all ranks have ended the one before.
fn ready_shard(open: &OpenModel, id: NcclId, shard: Shard, barrier: &Barrier) -> CudaModel {
    let context = context(shard.index);
    let comm = communicator(id, shard, &context);
    let options = options(open, 64);
    let spec = ModelSpec { open, options: &options, shard, buckets: &BUCKETS[..3], high_priority: true };
    let mut model = CudaModel::load(context, &spec, Some(comm)).unwrap();
    model.allocate_cache(PAGES).unwrap();
    let phases: [fn(&mut CudaModel); 4] = [
        |m| m.warm_up().unwrap(),
        |m| m.capture().unwrap(),
        |m| m.upload().unwrap(),
        |m| m.replay().unwrap(),
    ];
    for phase in phases {
        barrier.wait();
        phase(&mut model);
    }
    barrier.wait();
    model
}

/// What a rank that samples found: results and the bits of the logits, step by step.
type Found = Vec<(Vec<RowResult>, Vec<Vec<u32>>)>;

/// Some steps of two texts: extends, decodes, both, in graphs or not.
fn walk(model: &mut CudaModel, graphs: bool) -> Found {
    let vocab = model.parts().shape.vocab;
    let texts = [problem(0), problem(3)].map(|t| t.into_iter().map(|id| id % vocab).collect::<Vec<u32>>());
    let own = [pages(0, 80), pages(12, 80)];
    let row = |i: usize, fed| TestRow { tokens: &texts[i], fed, pages: &own[i], sample: greedy() };
    let steps = [
        vec![row(0, 0..20)],
        vec![row(1, 0..7), row(0, 20..21)],
        vec![row(0, 21..22), row(1, 7..8)],
        vec![row(0, 22..54), row(1, 8..12)],
        vec![row(1, 12..13)],
    ];
    let run = |rows: &Vec<TestRow<'_>>| {
        let step = step(rows);
        let key = model.graph_key()(&step).ok().filter(|_| graphs);
        let results = run_in(model, step, key);
        let bits = if results.is_empty() { Vec::new() } else { bits(&logits(model, rows.len())) };
        (results, bits)
    };
    let mut found: Found = steps.iter().map(run).collect();
    // A prompt of more tokens than there are rows for logits, beside a row that asks for its candidate.
    let mut scored = step(&[row(1, 13..40), row(0, 54..55)]);
    scored.rows[1].sample.as_mut().unwrap().logprobs = Some(2);
    let scored = with_scores(scored, &texts[1], 13..40, 3);
    let room = run_for(model, scored, None);
    let scores = (0..room.scores.len()).map(|i| score_bits(&room.scores, i)).collect();
    found.push((room.results, scores));
    found
}

/// The same steps on `count` devices.
fn sharded(open: &OpenModel, count: usize, graphs: bool) -> Found {
    let id = Communicator::unique_id().unwrap();
    let barrier = Arc::new(Barrier::new(count));
    let mut found: Vec<Found> = std::thread::scope(|scope| {
        let ranks: Vec<_> = Shard::all(count)
            .map(|shard| {
                let barrier = barrier.clone();
                scope.spawn(move || {
                    let mut model = ready_shard(open, id, shard, &barrier);
                    let found = walk(&mut model, graphs);
                    // Nobody leaves while another one still needs it.
                    barrier.wait();
                    found
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert!(found[1..].iter().flatten().all(|(results, _)| results.is_empty()), "shard 0 alone samples");
    found.swap_remove(0)
}

#[test]
fn two_ranks_are_one_to_the_bit() {
    let Some(emu) = emulation(2) else { return };
    for name in ["slm", "llm"] {
        let open = Model::open(&demo(name)).unwrap();
        let mut single = ready(&open, 64, &BUCKETS[..3], None);
        let expected = walk(&mut single, true);
        drop(single);
        assert_eq!((expected.len(), expected[5].1.len()), (6, 28));
        for graphs in [true, false] {
            assert_eq!(sharded(&open, 2, graphs), expected, "{name}, graphs {graphs}");
        }
    }
    drop(emu);
}

/// Untied, biases on all products, and sums whose order shows: the halves of one rank must be what two ranks hold.
#[test]
fn two_ranks_add_up_as_the_halves_of_one_do() {
    let Some(emu) = emulation(2) else { return };
    let dir = write("halves", DType::F32, &Sizes { hidden: 45, inner: 256, q_heads: 4, steady: true });
    let open = Model::open(&dir).unwrap();
    let mut single = ready(&open, 64, &BUCKETS[..3], None);
    let expected = walk(&mut single, true);
    drop(single);
    assert_eq!(sharded(&open, 2, true), expected);
    std::fs::remove_dir_all(&dir).unwrap();
    drop(emu);
}

#[test]
fn four_ranks_agree_with_themselves_and_write_the_same_tokens() {
    let Some(emu) = emulation(4) else { return };
    let open = Model::open(&demo("llm")).unwrap();
    let mut single = ready(&open, 64, &BUCKETS[..3], None);
    let expected = walk(&mut single, true);
    drop(single);
    let graphs = sharded(&open, 4, true);
    assert_eq!(sharded(&open, 4, false), graphs);
    for ((one, _), (four, _)) in expected.iter().zip(&graphs) {
        for (a, b) in one.iter().zip(four) {
            assert_eq!((a.token, a.fault), (b.token, b.fault));
            assert!((a.signals.lse - b.signals.lse).abs() < 0.1);
        }
    }
    drop(emu);
}

#[test]
fn a_shard_needs_the_communicator_of_its_place() {
    let Some(emu) = emulation(2) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let options = options(&open, 64);
    let shard = Shard { index: 1, count: 2 };
    let spec = ModelSpec { open: &open, options: &options, shard, buckets: &[], high_priority: true };
    let error = CudaModel::load(context(0), &spec, None).err().unwrap().to_string();
    assert!(error.contains("part 1 of 2"), "{error}");
    let shard = Shard { index: 0, count: 4 };
    let context = context(0);
    let error = CudaModel::load(context, &ModelSpec { shard, ..spec }, None).err().unwrap().to_string();
    assert!(error.contains("part 0 of 4"), "{error}");
    drop(emu);
}

#[test]
fn a_rank_that_waits_for_a_lost_one_ends_when_it_is_aborted() {
    let Some(emu) = emulation(2) else { return };
    let open = Model::open(&demo("slm")).unwrap();
    let id = Communicator::unique_id().unwrap();
    let barrier = Arc::new(Barrier::new(2));
    std::thread::scope(|scope| {
        for shard in Shard::all(2) {
            let (barrier, open) = (barrier.clone(), &open);
            scope.spawn(move || {
                let mut model = ready_shard(open, id, shard, &barrier);
                if shard.index == 0 {
                    let (ids, own) = (random_ids(1, 9, 450), pages(0, 9));
                    let step = step(&[TestRow { tokens: &ids, fed: 0..9, pages: &own, sample: greedy() }]);
                    let record = LaunchRecord::new(1, Some(16), step, false);
                    model.launch(&record, None).unwrap();
                    for _ in 0..200 {
                        assert!(!model.finished().unwrap(), "the other rank never came");
                    }
                    model.abort();
                    let error = model.launch(&record, None).unwrap_err().to_string();
                    assert!(error.contains("aborted"), "{error}");
                }
                barrier.wait();
            });
        }
    });
    drop(emu);
}

#[test]
fn a_model_may_move_to_another_thread() {
    fn sendable<T: Send>() {}
    sendable::<CudaModel>();
}
