//! Batches: order, limits, chunks, and several models at once.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn limits(max_batch_rows: usize, max_step_tokens: usize) -> CoreConfig {
    CoreConfig { models: vec![ModelLimits { max_batch_rows, max_step_tokens }; 2], ..config(2) }
}

#[test]
fn rows_come_in_queue_order_up_to_the_row_limit() {
    let mut rig = Rig::new(limits(2, 64));
    for _ in 0..3 {
        rig.submit(request(2, 9));
    }
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 0, 2, true), (1, 0, 2, true)]);
    rig.complete(A, &[stay(5), stay(6)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(2, 0, 2, true), (0, 2, 1, true)], "who has run goes to the back");
}

#[test]
fn a_long_prompt_is_cut_into_chunks() {
    let mut rig = Rig::new(limits(4, 5));
    let id = rig.submit(request(12, 9));
    for start in [0, 5] {
        assert_eq!(rig.launch(), [A]);
        assert_eq!(rig.rows(A), [(0, start, 5, false)]);
        // What a cut row reports is not looked at.
        rig.complete(A, &[keep(EOS, B)]);
        assert_eq!((rig.tokens(), rig.core.tokens(id).len()), (vec![], 12));
        assert_eq!(rig.core.counters().ready[0], 1);
    }
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 10, 2, true)]);
    assert!(rig.log.lock().unwrap().rows.is_empty(), "a cut row routes nothing");
    rig.complete(A, &[stay(5)]);
    assert_eq!(rig.tokens(), [(5, A)]);
    assert!(rig.cancel(id));
    let (_, _, usage) = rig.terminal();
    assert_eq!((usage.steps[0], usage.prefill[0], usage.completion_tokens), (3, 11, 1));
}

#[test]
fn rows_behind_a_long_prompt_still_advance_and_cut_rows_keep_their_place() {
    let mut rig = Rig::new(limits(4, 8));
    rig.submit(request(20, 9));
    rig.submit(request(3, 9));
    rig.submit(request(1, 9));
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 0, 6, false), (1, 0, 1, false), (2, 0, 1, true)]);
    assert_eq!(rig.core.batch(A).unwrap().fed_tokens, 8);
    rig.complete(A, &[stay(0), stay(0), stay(5)]);
    assert_eq!(rig.tokens(), [(5, A)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 6, 6, false), (1, 1, 1, false), (2, 1, 1, true)]);
    rig.complete(A, &[stay(0), stay(0), stay(6)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 12, 6, false), (1, 2, 1, true), (2, 2, 1, true)]);
    rig.complete(A, &[stay(0), stay(7), stay(8)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 18, 2, true), (1, 3, 1, true), (2, 3, 1, true)]);
}

#[test]
fn fewer_tokens_than_rows() {
    let mut rig = Rig::new(limits(4, 2));
    for _ in 0..3 {
        rig.submit(request(1, 9));
    }
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 0, 1, true), (1, 0, 1, true)]);
}

#[test]
fn chunks_also_cut_what_a_peer_has_missed() {
    let mut rig = Rig::new(limits(4, 4));
    rig.submit(request(3, 20));
    rig.step(A, &[keep(5, B)]);
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B), [(0, 0, 4, true)]);
    rig.complete(B, &[keep(6, A)]);
    for token in 7..11 {
        rig.step(A, &[stay(token)]);
    }
    rig.step(A, &[discard(11, B)]);
    rig.launch();
    assert_eq!(rig.rows(B), [(0, 4, 4, false)]);
    rig.complete(B, &[stay(0)]);
    rig.launch();
    assert_eq!(rig.rows(B), [(0, 8, 1, true)]);
}

/// Two requests have been at B and come back with three unseen tokens each, behind a new one with a long prompt: they
/// are answered in this step, and the prompt gets the rest of it. (A fault: the prompt took all and left one token each,
/// so both waited for the end of the prompt.)
#[test]
fn who_catches_up_does_not_wait_for_a_prompt() {
    let mut rig = Rig::new(limits(4, 10));
    for _ in 0..2 {
        rig.submit(request(2, 20));
    }
    rig.step(A, &[keep(5, B), keep(5, B)]);
    rig.step(B, &[keep(6, A), keep(6, A)]);
    rig.submit(request(9, 20));
    // The newcomer goes to B at once, the others stay at A meanwhile; who runs goes behind who was handed off.
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 2, 2, true), (1, 2, 2, true), (2, 0, 6, false)]);
    rig.complete(A, &[stay(7), stay(7), stay(0)]);
    rig.launch();
    rig.complete(A, &[keep(8, B), keep(9, B), keep(5, B)]);
    rig.launch();
    let rows = rig.rows(B);
    let of = |slot: usize| rows.iter().find(|row| row.0 == slot).copied();
    assert_eq!(of(2), Some((2, 0, 4, false)), "{rows:?}");
    assert_eq!([of(0), of(1)], [Some((0, 3, 3, true)), Some((1, 3, 3, true))], "{rows:?}");
    assert_eq!(rig.core.batch(B).unwrap().fed_tokens, 10);
}

#[test]
fn models_run_side_by_side_and_one_batch_each() {
    let mut rig = Rig::new(config(2));
    for _ in 0..2 {
        rig.submit(request(1, 9));
    }
    rig.step(A, &[keep(5, B), stay(6)]);
    assert_eq!(rig.launch(), [A, B]);
    let seqs = (rig.core.batch(A).unwrap().seq, rig.core.batch(B).unwrap().seq);
    assert_eq!(seqs, (3, 2), "the larger model is launched first");
    rig.submit(request(1, 9));
    assert_eq!(rig.launch(), [], "both are busy");
    rig.complete(B, &[keep(7, A)]);
    assert_eq!(rig.launch(), [], "nothing is ready at B");
    rig.complete(A, &[stay(8)]);
    assert_eq!(rig.launch(), [A]);
    // A launch admits: the newcomer was queued at A while A was busy, before B's request returned.
    let slots: Vec<usize> = rig.rows(A).iter().map(|r| r.0).collect();
    assert_eq!(slots, [2, 0, 1]);
}

#[test]
fn completions_of_one_turn_are_decided_together() {
    let mut rig = Rig::new(config(2));
    for _ in 0..4 {
        rig.submit(request(1, 9));
    }
    rig.step(A, &[keep(5, B), keep(5, B), stay(6), stay(6)]);
    assert_eq!(rig.launch(), [A, B]);
    // Both complete in one turn: the returns join the batch of the model that completed with them.
    rig.complete(B, &[keep(7, A), keep(7, A)]);
    rig.complete(A, &[stay(8), keep(8, B)]);
    assert_eq!(rig.launch(), [A, B]);
    assert_eq!(rig.rows(A).iter().map(|r| r.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(rig.rows(B).iter().map(|r| r.0).collect::<Vec<_>>(), [3]);
}

#[test]
fn pending_is_counted_at_every_model_visited() {
    let mut rig = Rig::new(config(3));
    let id = rig.submit(request(1, 20));
    rig.step(A, &[keep(5, C)]);
    rig.step(C, &[keep(6, B)]);
    assert_eq!(rig.core.counters().pending[..3], [1, 0, 1]);
    rig.step(B, &[keep(7, C)]);
    assert_eq!(rig.core.counters().pending[..3], [1, 1, 0]);
    rig.launch();
    assert_eq!(rig.rows(C), [(0, 2, 2, true)], "what A and B wrote since");
    rig.complete(C, &[keep(8, A)]);
    rig.launch();
    assert_eq!(rig.rows(A), [(0, 1, 4, true)]);
    assert!(rig.cancel(id));
    assert_eq!(rig.core.counters().pending[..3], [0, 0, 0]);
}
