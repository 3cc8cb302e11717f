//! The ablation: a handoff as a new request. What it costs is work and waiting, never a token or an account.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn readmit(prefix_cache: bool) -> CoreConfig {
    CoreConfig { handoff: Handoff::Readmit, prefix_cache, ..config(2) }
}

/// Away to B and back to A; the rows of B and of A's second step.
fn there_and_back(config: CoreConfig, prompt: usize) -> [Vec<(usize, u32, u32, bool)>; 2] {
    let mut rig = Rig::new(config);
    rig.submit(request(prompt, 9));
    rig.step(A, &[keep(5, B)]);
    assert_eq!(rig.launch(), [B]);
    let there = rig.rows(B);
    rig.complete(B, &[keep(6, A)]);
    assert_eq!(rig.launch(), [A]);
    let back = rig.rows(A);
    [there, back]
}

#[test]
fn a_readmitted_request_feeds_again_what_lies_beyond_its_full_pages() {
    let resume = CoreConfig { handoff: Handoff::Resume, ..readmit(true) };
    assert_eq!(there_and_back(resume, 40), [[(0, 0, 41, true)], [(0, 40, 2, true)]]);
    assert_eq!(
        there_and_back(readmit(true), 40),
        [[(0, 0, 41, true)], [(0, 32, 10, true)]],
        "two full pages"
    );
    assert_eq!(there_and_back(readmit(true), 32), [[(0, 0, 33, true)], [(0, 32, 2, true)]], "just filled");
    assert_eq!(
        there_and_back(readmit(false), 40),
        [[(0, 0, 41, true)], [(0, 0, 42, true)]],
        "none can be found"
    );
}

#[test]
fn between_two_models_it_waits_without_pages_and_is_not_preempted() {
    let mut rig = Rig::new(readmit(true));
    let id = rig.submit(request(40, 9));
    rig.step(A, &[keep(5, B)]);
    let counters = rig.core.counters();
    assert_eq!((counters.waiting, counters.admitted, counters.handoffs[0][1]), (1, 0, 1));
    assert_eq!((counters.pages.leased, counters.pages.cached), (0, 2));
    assert_eq!((rig.core.pages(id).len(), rig.core.tokens(id).len()), (0, 41));
    for (model, to) in [(B, A), (A, B), (B, A), (A, B)] {
        rig.step(model, &[keep(6, to)]);
    }
    assert_eq!((rig.core.preempted(id), rig.core.counters().preemptions), (0, 0));
    rig.core.drain_effects();
    rig.step(B, &[stay(EOS)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.preemptions, usage.handoffs), (FinishReason::Eos(EOS), 0, 5));
    assert_eq!((usage.completion_tokens, usage.committed[..2].to_vec()), (6, vec![3, 3]));
    assert_eq!(usage.cached, [0; MAX_MODELS], "its own pages are no gift of the cache");
    // 40; 41 and 2 unseen; then what lies beyond 32: 10 at A for 2, 11 at B, 12 at A, 13 at B.
    assert_eq!((usage.steps[..2].to_vec(), usage.prefill[..2].to_vec()), (vec![3, 3], vec![59, 62]));
    rig.assert_empty();
}

#[test]
fn the_peer_writes_the_dropped_position_after_a_readmission() {
    let mut rig = Rig::new(readmit(true));
    rig.submit(request(17, 9));
    rig.step(A, &[discard(5, B)]);
    assert_eq!(rig.tokens(), []);
    rig.step(B, &[keep(6, A)]);
    assert_eq!(rig.tokens(), [(6, B)]);
    let log = rig.log.lock().unwrap();
    assert_eq!(log.rows.iter().map(|r| r.position).collect::<Vec<_>>(), [17, 17]);
    assert_eq!((log.rows[1].visit.limit, log.rows[1].visit.scratch[0]), (7, 5), "the visit is kept");
}

#[test]
fn who_came_first_is_readmitted_first() {
    let mut rig = Rig::new(CoreConfig { max_running: 1, ..readmit(true) });
    let first = rig.submit(request(3, 9));
    let second = rig.submit(request(3, 9));
    rig.step(A, &[keep(5, B)]);
    assert_eq!(rig.core.counters().waiting, 2);
    assert_eq!(rig.launch(), [B], "the second is not admitted in its place");
    assert_eq!(rig.core.batch(B).unwrap().rows[0].request, first);
    rig.complete(B, &[stay(EOS)]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.core.batch(A).unwrap().rows[0].request, second);
}

#[test]
fn it_waits_for_pages_that_others_have_taken() {
    let mut rig = Rig::new(CoreConfig { pages: 4, ..readmit(false) });
    let first = rig.submit(NewRequest { priority: -1, ..request(30, 20) });
    rig.step(A, &[keep(5, B)]);
    let second = rig.submit(request(33, 9));
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.core.batch(A).unwrap().rows[0].request, second);
    assert_eq!((rig.core.counters().waiting, rig.core.pages(first).len()), (1, 0));
    rig.complete(A, &[stay(EOS)]);
    assert_eq!(rig.launch(), [B], "it goes on where it was sent");
    assert_eq!(rig.rows(B), [(first.slot(), 0, 31, true)]);
}

#[test]
fn a_request_that_waits_between_two_models_can_end() {
    for stop in [false, true] {
        let mut rig = Rig::new(readmit(true));
        let id = rig.submit(request(40, 9));
        rig.step(A, &[keep(5, B)]);
        rig.core.drain_effects();
        assert!(if stop { rig.stop(id, 0) } else { rig.cancel(id) });
        let (_, reason, usage) = rig.terminal();
        let tokens = if stop { 0 } else { 1 };
        assert_eq!((reason == FinishReason::Stop, usage.completion_tokens), (stop, tokens));
        rig.assert_empty();
    }
}
