//! Admission, growth, preemption, order.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn pool(models: usize, pages: usize) -> CoreConfig {
    CoreConfig { pages, ..config(models) }
}

fn pages(free: usize, leased: usize) -> PageCounts {
    PageCounts { free, leased, deferred: 0, cached: 0 }
}

#[test]
fn a_page_is_taken_at_launch_when_the_row_needs_it() {
    let mut rig = Rig::new(pool(1, 4));
    let id = rig.submit(request(15, 40));
    rig.step(A, &[stay(5)]);
    assert_eq!(rig.core.counters().pages, pages(3, 1), "15 tokens of the prompt and one of the answer");
    rig.step(A, &[stay(6)]);
    assert_eq!(rig.core.pages(id).len(), 1, "the 17th token is written, but not fed yet");
    rig.launch();
    assert_eq!(rig.core.pages(id).len(), 2);
    assert_eq!(rig.rows(A), [(0, 16, 1, true)]);
}

#[test]
fn admission_leaves_the_reserve_but_asks_for_no_more_than_a_lifetime() {
    let mut rig = Rig::new(CoreConfig { reserve_pages: 2, ..pool(1, 4) });
    rig.submit(request(20, 40));
    rig.submit(request(10, 40));
    rig.launch();
    assert_eq!(rig.core.counters().waiting, 1, "1 page and 2 in reserve, but 2 are free");
    assert_eq!(rig.core.counters().pages, pages(2, 2));
    let mut rig = Rig::new(CoreConfig { reserve_pages: 100, ..pool(1, 4) });
    rig.submit(request(10, 40));
    rig.launch();
    assert_eq!(rig.core.counters().admitted, 1, "its whole lifetime is 4 pages");
}

/// Two requests of 16 tokens fill a pool of two pages; both want a second page.
fn full_pool() -> (Rig, RequestId, RequestId) {
    let mut rig = Rig::new(pool(2, 2));
    let first = rig.submit(request(15, 10));
    let second = rig.submit(request(15, 10));
    rig.step(A, &[stay(5), stay(6)]);
    rig.step(A, &[stay(7), stay(8)]);
    (rig, first, second)
}

#[test]
fn the_youngest_request_is_preempted_keeps_its_tokens_and_goes_on_exactly() {
    let (mut rig, first, second) = full_pool();
    rig.core.drain_effects();
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(first.slot(), 16, 1, true)], "the second gave its page up");
    let counters = rig.core.counters();
    assert_eq!((counters.waiting, counters.admitted, counters.preemptions), (1, 1, 1));
    assert_eq!((rig.core.pages(second).len(), rig.core.tokens(second).len()), (0, 17));
    rig.complete(A, &[stay(EOS)]);
    rig.core.drain_effects();
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(second.slot(), 0, 17, true)], "its answer is fed again with the prompt");
    rig.complete(A, &[stay(EOS)]);
    let (id, reason, usage) = rig.terminal();
    assert_eq!((id, reason), (second, FinishReason::Eos(EOS)));
    assert_eq!((usage.completion_tokens, usage.preemptions, usage.steps[0]), (3, 1, 3));
    rig.assert_empty();
}

#[test]
fn a_preempted_request_goes_on_at_the_model_that_owned_it_with_its_visit() {
    let mut rig = Rig::new(pool(2, 3));
    let first = rig.submit(request(15, 20));
    rig.submit(request(15, 20));
    rig.step(A, &[stay(5), keep(6, B)]);
    let last_visit = |rig: &Rig| rig.log.lock().unwrap().rows.last().unwrap().visit;
    assert_eq!(rig.launch(), [A, B]);
    rig.complete(B, &[stay(9)]);
    let before = last_visit(&rig);
    rig.complete(A, &[stay(7)]);
    assert_eq!(rig.launch(), [B], "the second takes the last page, the first gets none");
    rig.complete(B, &[stay(50)]);
    assert_eq!(rig.launch(), [A]);
    let counters = rig.core.counters();
    assert_eq!(
        (counters.waiting, counters.pending[0], counters.ready[1], counters.preemptions),
        (1, 0, 0, 1)
    );
    assert!(rig.cancel(first));
    rig.complete(A, &[stay(3)]);
    assert_eq!(rig.launch(), [B], "it waits for B, not for its entry");
    assert_eq!(rig.core.counters().pending[0], 1);
    assert_eq!(rig.rows(B), [(1, 0, 18, true)]);
    rig.complete(B, &[stay(60)]);
    let after = last_visit(&rig);
    assert_eq!((after.limit, after.scratch), (before.limit, before.scratch));
    assert_eq!((before.committed, after.committed), (0, 2), "it goes on counting");
}

#[test]
fn a_request_whose_launch_is_in_flight_is_not_preempted() {
    let mut rig = Rig::new(pool(2, 2));
    let first = rig.submit(request(15, 10));
    let second = rig.submit(request(15, 10));
    rig.step(A, &[stay(5), keep(6, B)]);
    assert_eq!(rig.launch(), [A, B]);
    rig.complete(A, &[stay(7)]);
    assert_eq!(rig.launch(), [], "the first lacks a page, and B is still reading the second's");
    assert_eq!(rig.core.pages(second).len(), 1);
    rig.submit(request(1, 1));
    rig.launch();
    assert_eq!(rig.core.counters().waiting, 1, "nobody is admitted while an admitted request lacks a page");
    rig.complete(B, &[stay(8)]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(first.slot(), 16, 1, true)]);
    assert_eq!(rig.core.counters().preemptions, 1);
}

/// The policy wants B alone, whose only request lacks a page and stands last in order; A is below its threshold.
#[test]
fn when_those_the_policy_chose_lack_pages_the_others_run() {
    let thresholds = Thresholds::constants(&[3, 1]);
    let hold = Policy::Hold { thresholds: thresholds.clone(), beside: CountTable::constant(1) };
    for policy in [Policy::Threshold(thresholds), hold] {
        let mut rig = Rig::new(CoreConfig { policy, ..pool(2, 3) });
        let ids = [0, 1, 2].map(|_| rig.submit(request(15, 10)));
        rig.step(A, &[stay(5), stay(6), keep(7, B)]);
        rig.step(B, &[stay(8)]);
        assert_eq!(rig.core.tokens(ids[2]).len(), 17, "it wants a second page, and there is none");
        assert_eq!(rig.launch(), [A], "two of the three that A waits for");
        assert_eq!(rig.core.counters().guard_launches, 0);
        rig.complete(A, &[stay(EOS), stay(EOS)]);
        assert_eq!(rig.launch(), [B]);
    }
}

#[test]
fn an_older_request_is_not_preempted_for_a_younger_one() {
    let mut rig = Rig::new(pool(2, 2));
    rig.submit(request(15, 10));
    let second = rig.submit(request(15, 10));
    rig.step(A, &[keep(5, B), stay(6)]);
    assert_eq!(rig.launch(), [A, B]);
    rig.complete(B, &[keep(6, A)]);
    rig.complete(A, &[stay(7)]);
    // Now both are ready at A and want a page; the younger one stands first in the queue.
    assert_eq!(rig.launch(), [A]);
    assert_eq!((rig.core.preempted(second), rig.core.counters().preemptions), (1, 1));
}

#[test]
fn preempted_twice_it_is_readmitted_with_its_whole_lifetime_and_left_alone() {
    let mut rig = Rig::new(pool(1, 3));
    let victim = rig.submit(NewRequest { priority: -1, ..request(15, 33) });
    for round in 0..2 {
        // A newcomer of higher priority takes what the victim does not hold, and then grows.
        let other = rig.submit(request(16, 20));
        while rig.core.preempted(victim) == round {
            rig.launch();
            let rows = rig.core.batch(A).unwrap().rows.len();
            rig.complete(A, &vec![stay(9); rows]);
            assert!(rig.core.tokens(other).len() < 36);
        }
        assert!(rig.cancel(other));
        if rig.core.batch(A).is_some() {
            rig.complete(A, &[stay(9)]);
        }
        rig.launch();
        let rows = rig.core.batch(A).unwrap().rows.len();
        rig.complete(A, &vec![stay(9); rows]);
    }
    assert_eq!(rig.core.preempted(victim), 2);
    assert_eq!(rig.core.pages(victim).len(), 3, "48 tokens are reserved");
    rig.submit(request(1, 1));
    rig.launch();
    assert_eq!(rig.core.counters().waiting, 1);
    rig.core.drain_effects();
    while rig.core.counters().terminals.length < 1 {
        rig.complete(A, &[stay(9)]);
        rig.launch();
    }
    assert_eq!(rig.core.preempted(victim), 0, "it ended, never preempted a third time");
    assert_eq!(rig.core.counters().preemptions, 2);
}

#[test]
fn who_waits_is_admitted_by_priority_and_then_in_order() {
    let mut rig = Rig::new(CoreConfig { max_running: 1, ..config(1) });
    let blocker = rig.submit(request(1, 1));
    rig.launch();
    let ids: Vec<RequestId> =
        [0, 5, -3, 5, 0].map(|priority| rig.submit(NewRequest { priority, ..request(1, 1) })).into();
    rig.complete(A, &[stay(9)]);
    assert!(!rig.cancel(blocker));
    let mut order = Vec::new();
    for _ in &ids {
        rig.launch();
        order.push(rig.core.batch(A).unwrap().rows[0].request);
        rig.complete(A, &[stay(9)]);
    }
    assert_eq!(order, [ids[1], ids[3], ids[0], ids[4], ids[2]]);
}

/// However many long prompts there are, a ready request is passed over by no more batches than the others fill.
#[test]
fn long_prompts_do_not_keep_decode_rows_out_of_the_batch() {
    let models = vec![ModelLimits { max_batch_rows: 2, max_step_tokens: 4 }];
    let mut rig = Rig::new(CoreConfig { models, ..config(1) });
    let short = rig.submit(request(1, 50));
    rig.step(A, &[stay(9)]);
    for _ in 0..3 {
        rig.submit(request(60, 1));
    }
    let mut passed = 0;
    for _ in 0..40 {
        rig.launch();
        let rows = rig.core.batch(A).unwrap().rows.clone();
        passed = if rows.iter().any(|r| r.request == short) { 0 } else { passed + 1 };
        assert!(passed < 2, "four ready requests fill two batches");
        let results = vec![stay(9); rows.len()];
        rig.complete(A, &results);
    }
}
