//! A model is lost and comes back: who fails, who goes on, and what is left of the step in flight.

use crate::rig::*;
use tokenrouter_scheduler::router::Budget;
use tokenrouter_scheduler::*;

fn lost(model: ModelId) -> FinishReason {
    FinishReason::Failed(FailKind::ModelLost { model })
}

impl Rig {
    fn continuing(mut self) -> Self {
        self.core = self.core.on_peer_loss(PeerLoss::Continue);
        self
    }

    fn lose(&mut self, model: ModelId) -> Vec<ModelId> {
        self.now += 1;
        let taken = self.core.lose(self.now, model);
        self.core.audit();
        taken.iter().collect()
    }

    fn regain(&mut self, model: ModelId) -> bool {
        self.now += 1;
        let regained = self.core.regain(self.now, model);
        self.core.audit();
        regained
    }

    /// Everything that ended since the last call, in order.
    fn ended(&mut self) -> Vec<(RequestId, FinishReason, bool)> {
        let ended = |effect| match effect {
            Effect::Terminal { request, reason, usage, .. } => Some((request, reason, usage.degraded)),
            Effect::Token { .. } => None,
        };
        self.core.drain_effects().filter_map(ended).collect()
    }
}

/// Eight requests: two that run at B, two that are ready there (one cut), one pending at B and running at A, one that has
/// never left A, and two that wait.
fn eight(continues: bool) -> (Rig, Vec<RequestId>) {
    let mut limits = config(2);
    limits.max_running = 6;
    limits.models[1] = ModelLimits { max_batch_rows: 2, max_step_tokens: 4 };
    let mut rig = Rig::new(limits);
    if continues {
        rig = rig.continuing();
    }
    let ids: Vec<RequestId> = (0..8).map(|_| rig.submit(request(3, 20))).collect();
    let first = [keep(50, B), keep(51, B), keep(52, B), keep(53, B), keep(54, B), stay(55)];
    rig.step(A, &first);
    // Of the five at B, two run; the limit of four tokens cuts the second of them after one.
    assert_eq!(rig.launch(), [A, B]);
    let cut = rig.rows(B).iter().filter(|row| !row.3).count();
    assert_eq!((rig.rows(B).len(), cut), (2, 2));
    rig.complete(B, &[stay(1), stay(1)]);
    rig.core.drain_effects();
    assert_eq!(rig.launch(), [B]);
    (rig, ids)
}

#[test]
fn who_is_at_a_lost_model_fails_and_nobody_else() {
    let (mut rig, ids) = eight(false);
    let at_b: Vec<RequestId> = ids[..5].to_vec();
    assert_eq!(rig.lose(B), [B]);
    let ended = rig.ended();
    assert_eq!(ended, at_b.iter().map(|&id| (id, lost(B), false)).collect::<Vec<_>>(), "in order, by name");
    assert_eq!(rig.lose(B), [], "it is lost already");
    assert!(rig.ended().is_empty());
    assert_eq!(rig.core.counters().pages.deferred, 0, "a hung device keeps no pages from the others");
    // The one at A, and the two that waited, do not notice.
    rig.complete(A, &[stay(7)]);
    for _ in 0..18 {
        let rows = match rig.launch().as_slice() {
            [] => break,
            launched => {
                assert_eq!(launched, [A]);
                rig.rows(A).len()
            }
        };
        rig.complete(A, &vec![stay(8); rows]);
    }
    while let [A] = rig.launch()[..] {
        let rows = rig.rows(A).len();
        rig.complete(A, &vec![stay(8); rows]);
    }
    let mut ended = rig.ended();
    ended.sort_by_key(|(id, ..)| ids.iter().position(|other| other == id));
    let well = |&id: &RequestId| (id, FinishReason::Length, false);
    assert_eq!(ended, ids[5..].iter().map(well).collect::<Vec<_>>());
    assert!(rig.core.idle(), "nothing is left, though the device of B still works");
    assert!(rig.core.is_abandoned(B) && !rig.regain(B), "not before its step has ended");
    rig.complete(B, &[stay(9), stay(9)]);
    assert!(rig.ended().is_empty() && rig.tokens().is_empty(), "late results are dropped");
    assert!(rig.regain(B) && !rig.regain(B));
    rig.assert_empty();
}

#[test]
fn others_write_in_its_place_and_the_account_says_so() {
    let (mut rig, ids) = eight(true);
    assert_eq!(rig.lose(B), [B]);
    assert!(rig.ended().is_empty());
    let counters = rig.core.counters();
    assert_eq!((counters.ready[0], counters.ready[1], counters.running[1]), (5, 0, 0));
    rig.complete(A, &[stay(7)]);
    let mut turns = 0;
    while let [A] = rig.launch()[..] {
        let rows = rig.rows(A);
        // What A had in its cache is still there.
        assert!(turns > 0 || rows.iter().filter(|row| row.0 < 5).all(|row| (row.1, row.2) == (3, 1)));
        turns += 1;
        // One that never left goes on to another model as well: it stays, and keeps its candidate.
        let result = |row: &(usize, u32, u32, bool)| if row.0 == 5 { discard(8, B) } else { stay(8) };
        let results: Vec<RowResult> = rows.iter().map(result).collect();
        rig.complete(A, &results);
    }
    let ended = rig.ended();
    assert_eq!(ended.len(), 8);
    for (id, reason, degraded) in ended {
        assert_eq!(reason, FinishReason::Length);
        let at = ids.iter().position(|&other| other == id).unwrap();
        assert_eq!(degraded, at < 6, "request {at}");
    }
    rig.core.complete_failed(rig.now, B, "late");
    assert!(rig.regain(B));
    rig.assert_empty();
}

#[test]
fn who_would_go_to_a_lost_model_fails_when_it_would() {
    let mut rig = Rig::new(config(2));
    rig.lose(B);
    let id = rig.submit(request(3, 9));
    rig.step(A, &[stay(5)]);
    rig.step(A, &[keep(6, B)]);
    let (request_id, reason, usage) = rig.terminal();
    assert_eq!((request_id, reason, usage.completion_tokens), (id, lost(B), 2), "a kept candidate counts");
    rig.submit(request(3, 9));
    rig.step(A, &[discard(6, B)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.completion_tokens, usage.discarded[0]), (lost(B), 0, 1));
    rig.submit(request(3, 9));
    rig.step(A, &[keep(EOS, B)]);
    assert_eq!(rig.terminal().1, FinishReason::Eos(EOS), "it has ended before it would go");
    rig.assert_empty();
}

#[test]
fn a_lost_entry_refuses_or_is_stood_in_for() {
    let mut rig = Rig::new(config(2));
    rig.lose(A);
    let refused = rig.core.submit(rig.now, request(3, 9));
    assert_eq!(refused, Err(SubmitError::ModelLost { model: A }));
    let mut rig = Rig::new(config(2)).continuing();
    rig.lose(A);
    rig.submit(request(3, 2));
    rig.step(B, &[stay(5)]);
    rig.step(B, &[discard(6, A)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.degraded, usage.committed[1]), (FinishReason::Length, true, 2));
    // All models of the route.
    rig.submit(request(3, 2));
    rig.lose(B);
    assert_eq!(rig.terminal().1, lost(B));
    assert_eq!(rig.core.submit(rig.now, request(3, 9)), Err(SubmitError::ModelLost { model: A }));
    rig.assert_empty();
}

#[test]
fn a_budget_holds_without_the_entry() {
    let mut rig = Rig::new(config(2)).continuing();
    let half = |prompt| NewRequest { max_llm_fraction: Some(0.5), ..request(prompt, 20) };
    rig.submit(half(3));
    rig.step(A, &[stay(5)]);
    rig.step(A, &[stay(6)]);
    rig.lose(A);
    // Two by A: two by B.
    rig.step(B, &[stay(7)]);
    rig.step(B, &[stay(8)]);
    let (_, reason, usage) = rig.terminal();
    assert_eq!((reason, usage.committed[..2].to_vec()), (lost(A), vec![2, 2]));
    assert_eq!(usage.terms.budget, Budget::new(0.5));
    let refused = rig.core.submit(rig.now, half(3));
    assert_eq!(refused, Err(SubmitError::ModelLost { model: A }), "B may not write the first token");
    rig.assert_empty();
}

/// What it had computed is gone, and the count that budgets are kept by is not.
#[test]
fn a_model_comes_back_with_an_empty_cache() {
    let mut limits = config(2);
    limits.prefix_cache = true;
    let mut rig = Rig::new(limits).continuing();
    rig.submit(NewRequest { max_llm_fraction: Some(0.5), ..request(20, 30) });
    rig.step(A, &[stay(5)]);
    rig.step(A, &[keep(6, B)]);
    rig.step(B, &[stay(7)]);
    rig.lose(B);
    rig.step(A, &[stay(8)]);
    assert!(rig.regain(B));
    rig.step(A, &[keep(9, B)]);
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B)[0].1, 0, "fed from the start");
    rig.complete(B, &[stay(10)]);
    // 5, 6, 8, 9 by A and 7, 10 by B: two more by B would be four of eight, and then it is over.
    rig.step(B, &[stay(11)]);
    rig.step(B, &[stay(12)]);
    rig.step(A, &[stay(13)]);
    let by: Vec<ModelId> = rig.tokens().iter().map(|t| t.1).collect();
    assert_eq!(by, [A, A, B, A, A, B, B, B, A]);
}

#[test]
fn a_hung_device_takes_those_with_it_that_never_run_beside_it() {
    let both = [ModelSet::of(A).union(ModelSet::of(B))];
    let mut rig = Rig::new(config(3)).exclusive(&both).continuing();
    rig.submit(request(3, 9));
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.lose(A), [A, B], "B could never launch beside it");
    assert!(!rig.regain(B));
    rig.step(C, &[stay(5)]);
    rig.complete(A, &[]);
    assert!(rig.regain(A) && rig.regain(B));
    assert_eq!(rig.lose(A), [A], "nothing of it is on the device");
}

/// Two models that hang and recover in turn handed a request back and forth for ever.
#[test]
fn a_request_is_handed_on_a_few_times_only() {
    let mut rig = Rig::new(config(2)).continuing();
    rig.submit(request(3, 9));
    for turn in 0.. {
        let [model] = rig.launch()[..] else { break };
        rig.lose(model);
        rig.complete(model, &[]);
        assert!(rig.regain(model) && turn < 10);
    }
    assert!(matches!(rig.terminal().1, FinishReason::Failed(FailKind::ModelLost { .. })));
    rig.assert_empty();
}

/// A threshold counts those who may still come: nobody comes back from a lost model.
#[test]
fn no_policy_waits_for_a_lost_model() {
    let mut limits = config(2);
    limits.policy = Policy::Threshold(Thresholds::constants(&[2, 1]));
    let mut rig = Rig::new(limits);
    for _ in 0..2 {
        rig.submit(request(3, 9));
    }
    rig.step(A, &[keep(5, B), stay(5)]);
    assert_eq!(rig.launch(), [B], "A has one of two");
    rig.lose(B);
    assert_eq!(rig.launch(), [A], "and nobody will come");
}
