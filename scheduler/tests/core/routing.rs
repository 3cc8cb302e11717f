//! Handoffs: keep and drop, what ends a request and what does not, visits, the progress guard.

use crate::rig::*;
use tokenrouter_scheduler::*;

#[test]
fn a_dropped_candidate_leaves_no_trace_and_the_peer_writes_the_position() {
    let mut rig = Rig::new(config(2));
    let id = rig.submit(request(3, 9));
    rig.step(A, &[discard(50, B)]);
    assert_eq!(rig.tokens(), []);
    assert_eq!(rig.core.tokens(id), [100, 101, 102]);
    let counters = rig.core.counters();
    assert_eq!((counters.pending[0], counters.pending[1], counters.handoffs[0][1]), (1, 0, 1));
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B), [(0, 0, 3, true)], "the peer has seen nothing yet");
    rig.complete(B, &[keep(51, A)]);
    assert_eq!(rig.tokens(), [(51, B)]);
    let counters = rig.core.counters();
    assert_eq!((counters.pending[0], counters.pending[1], counters.handoffs[1][0]), (0, 1, 1));
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(0, 3, 1, true)], "a one-token return is a plain decode");
    assert!(rig.cancel(id));
    let (_, _, usage) = rig.terminal();
    assert_eq!(
        (usage.discarded[0], usage.committed[1], usage.completion_tokens, usage.handoffs),
        (1, 1, 1, 2)
    );
    assert_eq!((usage.steps[0], usage.prefill[0], usage.steps[1], usage.prefill[1]), (1, 2, 1, 2));
}

#[test]
fn a_dropped_end_of_sequence_does_not_end() {
    let mut rig = Rig::new(config(2));
    rig.submit(NewRequest { stop_ids: vec![40], ..request(1, 1) });
    rig.step(A, &[discard(EOS, B)]);
    rig.step(B, &[discard(40, A)]);
    rig.step(A, &[discard(7, B)]);
    assert_eq!(rig.tokens(), [], "nor does one that would have reached the length");
    rig.step(B, &[keep(8, A)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.completion_tokens, usage.discarded[0]), (FinishReason::Length, 1, 2));
    rig.assert_empty();
}

#[test]
fn the_end_comes_before_the_handover() {
    let stops = NewRequest { stop_ids: vec![40], ..request(2, 2) };
    let cases = [
        (keep(EOS, B), FinishReason::Eos(EOS)),
        (stay(EOS), FinishReason::Eos(EOS)),
        (keep(40, B), FinishReason::StopId(40)),
    ];
    for (result, expected) in cases {
        let mut rig = Rig::new(config(2));
        rig.submit(stops.clone());
        rig.step(A, &[result]);
        assert_eq!(rig.core.counters().handoffs, Counters::default().handoffs);
        assert!(rig.log.lock().unwrap().received.is_empty());
        let (_, reason, usage) = rig.terminal();
        assert_eq!((reason, usage.completion_tokens, usage.handoffs), (expected, 1, 0), "it is counted");
        rig.assert_empty();
    }
    let mut rig = Rig::new(config(2));
    rig.submit(stops);
    rig.step(A, &[stay(5)]);
    rig.step(A, &[keep(6, B)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.completion_tokens, usage.handoffs), (FinishReason::Length, 2, 0));
}

#[test]
fn ignore_eos_and_min_tokens() {
    let mut rig = Rig::new(config(1));
    rig.submit(NewRequest { ignore_eos: true, stop_ids: vec![40], ..request(1, 9) });
    rig.step(A, &[stay(EOS)]);
    rig.step(A, &[stay(40)]);
    assert_eq!(rig.terminal().1, FinishReason::StopId(40), "stop ids are not ignored");

    rig.submit(NewRequest { min_tokens: 2, stop_ids: vec![40], ..request(1, 9) });
    rig.step(A, &[stay(EOS)]);
    rig.step(A, &[stay(40)]);
    rig.step(A, &[stay(EOS)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.completion_tokens), (FinishReason::Eos(EOS), 3));
}

#[test]
fn two_delegations_in_a_row_resend_only_what_is_new() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(3, 20));
    rig.step(A, &[discard(50, B)]);
    rig.step(B, &[keep(51, A)]);
    rig.step(A, &[discard(52, B)]);
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B), [(0, 3, 1, true)], "its own last token, which it has not fed yet");
    rig.complete(B, &[keep(53, A)]);
    rig.step(A, &[stay(54)]);
    rig.step(A, &[stay(55)]);
    rig.step(A, &[discard(56, B)]);
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B), [(0, 4, 3, true)], "everything since its last visit");
}

#[test]
fn dropping_both_ways_feeds_the_last_token_again() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(3, 20));
    rig.step(A, &[discard(50, B)]);
    rig.step(B, &[discard(51, A)]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A), [(0, 2, 1, true)], "nothing is new, but a row feeds at least one token");
    rig.complete(A, &[stay(52)]);
    assert_eq!(rig.tokens(), [(52, A)]);
}

#[test]
fn circling_without_a_commit_fails_by_name() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(1, 20));
    rig.step(A, &[stay(5)]);
    for i in 0..63 {
        let (here, there) = if i % 2 == 0 { (A, B) } else { (B, A) };
        rig.step(here, &[discard(6, there)]);
    }
    // A kept token starts the count anew.
    rig.step(B, &[keep(7, A)]);
    assert_eq!(rig.tokens(), [(5, A), (7, B)]);
    for i in 0..64 {
        let (here, there) = if i % 2 == 0 { (A, B) } else { (B, A) };
        rig.step(here, &[discard(6, there)]);
    }
    let (_, reason, usage) = rig.terminal();
    assert_eq!(reason, FinishReason::Failed(FailKind::NoProgress { drops: 64 }));
    assert_eq!(usage.completion_tokens, 2);
    rig.assert_empty();
}

#[test]
fn a_destination_out_of_reach_fails_that_request_alone() {
    let mut rig = Rig::new(config(2));
    rig.submit(request(1, 20));
    rig.submit(request(1, 20));
    rig.step(A, &[keep(5, C), stay(6)]);
    let effects: Vec<Effect> = rig.core.drain_effects().collect();
    let out = FinishReason::Failed(FailKind::OutOfReach { from: A, to: C });
    assert!(
        matches!(&effects[..], [Effect::Terminal { reason, usage, .. }, Effect::Token { token: 6, .. }]
            if *reason == out && usage.completion_tokens == 0),
        "{effects:?}"
    );
    rig.step(A, &[stay(7)]);
}

#[test]
fn what_the_router_sees_and_what_a_visit_carries() {
    let mut rig = Rig::new(config(2));
    let threshold = Some(Threshold::Value(0.25));
    let id = rig.submit(NewRequest { seed: 4, choice: 3, threshold, ..request(3, 20) });
    rig.step(A, &[stay(5)]);
    rig.step(A, &[discard(6, B)]);
    rig.step(B, &[stay(7)]);
    rig.step(B, &[keep(8, A)]);
    rig.step(A, &[stay(9)]);
    let log = rig.log.lock().unwrap();
    let seen: Vec<_> = log
        .rows
        .iter()
        .map(|r| (r.model, r.position, r.generated, r.candidate, r.visit.committed, r.visit.limit))
        .collect();
    let expected = [
        (A, 3, 0, 5, 0, u32::MAX),
        (A, 4, 1, 6, 1, u32::MAX),
        (B, 4, 1, 7, 0, 7),
        (B, 5, 2, 8, 1, 7),
        (A, 6, 3, 9, 0, 8),
    ];
    assert_eq!(seen, expected);
    assert_eq!(log.rows[2].visit.scratch[0], 6, "the payload reached the visit");
    assert!(log.rows.iter().all(|r| (r.request, r.seed, r.choice, r.threshold) == (id, 4, 3, threshold)));
    let arrivals: Vec<_> = log.received.iter().map(|r| (r.model, r.position, r.generated)).collect();
    assert_eq!(arrivals, [(B, 4, 1), (A, 6, 3)]);
    assert!(log.received.iter().all(|r| (r.request, r.seed, r.choice, r.threshold) == (id, 4, 3, threshold)));
}

#[test]
fn each_router_is_asked_once_for_its_own_rows() {
    let router = |entry, reach| {
        let log = std::sync::Arc::default();
        (Scripted { entry, reach, log: std::sync::Arc::clone(&log) }, log)
    };
    let (first, first_log) = router(A, ModelSet::first(2));
    let (second, second_log) = router(A, ModelSet::of(A));
    let mut core = Core::new(config(2), vec![Box::new(first), Box::new(second)]).unwrap();
    let routes = [1, 0, 1, 0, 0];
    for route in routes {
        core.submit(0, NewRequest { route: RouteId(route), ..request(1, 9) }).unwrap();
    }
    core.launch(0);
    let results: Vec<RowResult> = (10..15).map(stay).collect();
    core.complete(1, A, &results).unwrap();
    core.audit();
    let candidates = |log: &std::sync::Mutex<Log>| {
        let log = log.lock().unwrap();
        (log.routed.clone(), log.rows.iter().map(|r| r.candidate).collect::<Vec<_>>())
    };
    assert_eq!(candidates(&first_log), (vec![(A, 3)], vec![11, 13, 14]));
    assert_eq!(candidates(&second_log), (vec![(A, 2)], vec![10, 12]));
    // The second route does not reach B, whatever the first one does.
    core.drain_effects();
    core.launch(2);
    let to_b: Vec<RowResult> = (20..25).map(|t| keep(t, B)).collect();
    core.complete(3, A, &to_b).unwrap();
    core.audit();
    let counters = core.counters();
    assert_eq!((counters.terminals.failed, counters.ready[1]), (2, 3));
    assert_eq!(core.signals(A), router::SignalSet::score(0));
}

#[test]
fn signals_are_the_union_over_the_routes_that_reach_the_model() {
    let routes: Vec<Box<dyn Router>> = vec![
        Box::new(router::Single::new(C)),
        Box::new(router::RStitch::new(A, B, Threshold::Never)),
        Box::new(Scripted { entry: B, reach: ModelSet::of(B), log: Default::default() }),
    ];
    let core = Core::new(config(3), routes).unwrap();
    assert_eq!(core.signals(A), router::SignalSet::ENTROPY);
    assert_eq!(core.signals(B), router::SignalSet::ENTROPY.union(router::SignalSet::score(0)));
    assert_eq!(core.signals(C), router::SignalSet::NONE);
}
