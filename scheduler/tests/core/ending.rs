//! Cancel and stop in every state, faults, and when pages come back.

use crate::rig::*;
use tokenrouter_scheduler::*;

/// Every state a live request can be in, two of them with a model where it is pending.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Waiting,
    Ready,
    ReadyCut,
    Running,
    ReadyAtPeer,
    RunningAtPeer,
}

const STATES: [At; 6] =
    [At::Waiting, At::Ready, At::ReadyCut, At::Running, At::ReadyAtPeer, At::RunningAtPeer];

/// A request in that state, with the number of its committed tokens.
fn bring(state: At) -> (Rig, RequestId, u32) {
    let mut limits = config(2);
    limits.max_running = 1;
    if state == At::ReadyCut {
        limits.models[0].max_step_tokens = 3;
    }
    let mut rig = Rig::new(limits);
    if state == At::Waiting {
        let blocker = rig.submit(request(1, 50));
        rig.launch();
        assert_eq!(blocker.slot(), 0);
    }
    let id = rig.submit(request(4, 50));
    if state == At::Waiting {
        return (rig, id, 0);
    }
    rig.launch();
    if state == At::ReadyCut {
        rig.complete(A, &[stay(5)]);
        assert_eq!(rig.core.counters().ready[0], 1);
        return (rig, id, 0);
    }
    rig.complete(A, &[stay(5)]);
    rig.step(A, &[stay(6)]);
    match state {
        At::Ready => {}
        At::Running => drop(rig.launch()),
        _ => rig.step(A, &[keep(7, B)]),
    }
    if state == At::RunningAtPeer {
        assert_eq!(rig.launch(), [B]);
        assert_eq!(rig.core.counters().pending[0], 1);
    }
    let committed = if matches!(state, At::ReadyAtPeer | At::RunningAtPeer) { 3 } else { 2 };
    (rig, id, committed)
}

/// Lands whatever is in flight and empties the rig.
fn clear(mut rig: Rig) {
    for model in [A, B] {
        if rig.core.batch(model).is_some() {
            rig.complete(model, &[stay(9)]);
        }
    }
    let rest: Vec<Effect> = rig.core.drain_effects().collect();
    if let [Effect::Token { request, .. }] = rest[..] {
        // The one that kept the waiting request out.
        assert!(rig.cancel(request));
        rig.core.drain_effects();
    } else {
        assert!(rest.is_empty(), "effects after the terminal: {rest:?}");
    }
    rig.assert_empty();
}

#[test]
fn cancel_is_legal_in_every_state() {
    for state in STATES {
        let (mut rig, id, committed) = bring(state);
        rig.core.drain_effects();
        assert!(rig.cancel(id), "{state:?}");
        let (over, reason, usage) = rig.terminal();
        assert_eq!((over, reason), (id, FinishReason::Cancelled), "{state:?}");
        assert_eq!(usage.completion_tokens, committed, "{state:?}");
        assert!(!rig.cancel(id) && !rig.stop(id, 0), "{state:?}: it is over");
        clear(rig);
    }
}

#[test]
fn stop_is_legal_in_every_state_and_cuts_the_account() {
    for state in STATES {
        for committed_len in [0, 1, 2, 3, 1_000] {
            let (mut rig, id, committed) = bring(state);
            rig.core.drain_effects();
            assert!(rig.stop(id, committed_len), "{state:?}");
            let (over, reason, usage) = rig.terminal();
            assert_eq!((over, reason), (id, FinishReason::Stop), "{state:?}");
            assert_eq!(usage.completion_tokens, committed_len.min(committed), "{state:?}");
            assert_eq!(usage.committed.iter().sum::<u32>(), usage.completion_tokens);
            assert!(!rig.stop(id, 0) && !rig.cancel(id), "{state:?}: it is over");
            clear(rig);
        }
    }
}

#[test]
fn a_stop_counts_the_writers_of_the_tokens_that_remain() {
    let mut rig = Rig::new(config(2));
    let id = rig.submit(request(1, 50));
    rig.step(A, &[keep(5, B)]);
    rig.step(B, &[stay(6)]);
    rig.step(B, &[keep(7, A)]);
    rig.step(A, &[discard(8, B)]);
    rig.step(B, &[stay(9)]);
    assert_eq!(rig.launch(), [B]);
    rig.core.drain_effects();
    assert!(rig.stop(id, 2));
    let (_, _, usage) = rig.terminal();
    assert_eq!(
        (usage.completion_tokens, &usage.committed[..2], &usage.discarded[..2]),
        (2, &[1, 1][..], &[1, 0][..])
    );
    assert_eq!((usage.handoffs, &usage.steps[..2]), (3, &[2, 3][..]), "work done stays on the account");
    rig.complete(B, &[stay(10)]);
    assert_eq!(rig.tokens(), [], "later commits are dropped");
    rig.assert_empty();
}

#[test]
fn pages_of_a_request_in_flight_are_deferred() {
    let mut rig = Rig::new(CoreConfig { pages: 2, ..config(1) });
    let first = rig.submit(request(20, 10));
    rig.launch();
    let pages = rig.core.pages(first).to_vec();
    assert!(rig.cancel(first));
    assert_eq!(rig.core.counters().pages, PageCounts { free: 0, leased: 0, deferred: 2, cached: 0 });
    assert_eq!(rig.core.pages(first), pages, "the batch in flight can still look");
    assert_eq!(rig.core.tokens(first).len(), 20);
    let second = rig.submit(request(20, 10));
    assert_eq!(rig.launch(), [], "no page is free before the batch has landed");
    assert_eq!(rig.core.counters().waiting, 1);
    assert_ne!(second.slot(), first.slot(), "the slot is not reused either");
    rig.complete(A, &[stay(5)]);
    assert_eq!(rig.core.counters().pages, PageCounts { free: 2, leased: 0, deferred: 0, cached: 0 });
    assert!(rig.core.tokens(first).is_empty());
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(second.slot(), 0, 20, true)]);
}

#[test]
fn pages_of_a_request_not_in_flight_are_free_at_once() {
    let mut rig = Rig::new(CoreConfig { pages: 4, ..config(2) });
    let first = rig.submit(request(20, 10));
    rig.submit(request(20, 10));
    rig.step(A, &[keep(5, B), stay(5)]);
    rig.launch();
    rig.complete(B, &[keep(5, A)]);
    // The first is ready at A, whose batch in flight does not name it.
    assert!(rig.core.batch(A).is_some());
    assert!(rig.cancel(first));
    assert_eq!(rig.core.counters().pages, PageCounts { free: 2, leased: 2, deferred: 0, cached: 0 });
}

#[test]
fn a_failed_step_fails_its_rows_and_nothing_else() {
    let mut rig = Rig::new(config(2));
    let ids: Vec<RequestId> = (0..4).map(|_| rig.submit(request(1, 5))).collect();
    rig.step(A, &[keep(5, B), stay(5), stay(5), stay(5)]);
    rig.launch();
    assert!(rig.cancel(ids[1]));
    rig.core.drain_effects();
    rig.core.complete_failed(rig.now, A, "device lost");
    rig.core.audit();
    let failed: Vec<Effect> = rig.core.drain_effects().collect();
    let why = FinishReason::Failed(FailKind::Step { model: A, why: "device lost".into() });
    for (effect, id) in failed.iter().zip([ids[2], ids[3]]) {
        assert!(matches!(effect, Effect::Terminal { request, reason, usage, .. }
            if (*request, reason, usage.steps[0]) == (id, &why, 1)));
    }
    assert_eq!(failed.len(), 2);
    rig.complete(B, &[keep(6, A)]);
    assert_eq!(rig.tokens(), [(6, B)], "the one at the peer goes on, also at A");
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(ids[0].slot(), 1, 2, true)]);
}

#[test]
fn a_faulty_row_fails_alone() {
    let mut rig = Rig::new(config(1));
    let ids: Vec<RequestId> = (0..3).map(|_| rig.submit(request(1, 5))).collect();
    rig.launch();
    let broken = RowResult { fault: Some(RowFault::NonFinite), ..stay(6) };
    rig.complete(A, &[stay(5), broken, stay(7)]);
    let effects: Vec<Effect> = rig.core.drain_effects().collect();
    let tokens = effects.iter().filter(|e| matches!(e, Effect::Token { token: 5 | 7, .. })).count();
    assert_eq!((effects.len(), tokens), (3, 2));
    let why = FailKind::Row { model: A, fault: RowFault::NonFinite };
    assert!(effects.iter().any(|e| matches!(e, Effect::Terminal { request, reason, usage, .. }
        if *request == ids[1] && *reason == FinishReason::Failed(why.clone()) && usage.completion_tokens == 0)));
    rig.launch();
    assert_eq!(rig.rows(A).len(), 2);
}

#[test]
fn a_cut_row_can_fail_too() {
    let mut rig = Rig::new(CoreConfig {
        models: vec![ModelLimits { max_batch_rows: 1, max_step_tokens: 4 }],
        ..config(1)
    });
    rig.submit(request(10, 5));
    rig.launch();
    rig.complete(A, &[RowResult { fault: Some(RowFault::Other("cache write failed")), ..stay(0) }]);
    let (_, reason, usage) = rig.terminal();
    assert!(matches!(reason, FinishReason::Failed(FailKind::Row { .. })), "{reason:?}");
    assert_eq!((usage.steps[0], usage.prefill[0]), (1, 4));
    rig.assert_empty();
}
