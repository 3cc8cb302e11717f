use super::*;
use crate::ids::{MAX_MODELS, ModelId};

/// An idle model with `ready` requests, `visitors` of which may come, and a step of `step`.
fn idle(ready: usize, visitors: usize, step: u64) -> ModelView {
    ModelView { ready, visitors, step: Some(step), ends_in: Some(step), ..ModelView::default() }
}

/// A busy model whose batch ends in `rest` and sends `sends` to model 0.
fn busy(ready: usize, visitors: usize, step: u64, rest: u64, sends: f64) -> ModelView {
    let mut to = [0.0; MAX_MODELS];
    to[0] = sends;
    ModelView { busy: true, ends_in: Some(rest), sends: to, ..idle(ready, visitors, step) }
}

fn set(models: &[u8]) -> ModelSet {
    models.iter().map(|&m| ModelId(m)).collect()
}

fn launches(policy: &Policy, models: &[ModelView]) -> ModelSet {
    let decision = decide(policy, models);
    assert_eq!(decision.forced, ModelSet::EMPTY);
    decision.launch
}

fn peers(b: u32) -> Thresholds {
    Thresholds::peers(CountTable::constant(b))
}

fn hold(b: u32, h: u32) -> Policy {
    Policy::Hold { thresholds: peers(b), beside: CountTable::constant(h) }
}

#[test]
fn eager_launches_every_idle_model_with_work() {
    let models = [idle(1, 9, 6), busy(5, 9, 6, 6, 0.0), idle(0, 9, 6), idle(9, 9, 6)];
    assert_eq!(launches(&Policy::Eager, &models), set(&[0, 3]));
    assert_eq!(decide(&Policy::Eager, &[idle(0, 0, 6)]), Decision::default());
}

#[test]
fn step_sync_waits_for_everybody() {
    let running = busy(0, 8, 28, 20, 3.0);
    assert_eq!(launches(&Policy::StepSync, &[idle(3, 8, 6), running]), set(&[]));
    assert_eq!(launches(&Policy::StepSync, &[idle(3, 8, 6), idle(2, 8, 28)]), set(&[0, 1]));
}

#[test]
fn exclusive_runs_one_model_and_the_peer_at_k() {
    let k3 = Policy::Exclusive(peers(3));
    assert_eq!(launches(&k3, &[idle(6, 8, 6), idle(2, 8, 28)]), set(&[0]));
    assert_eq!(launches(&k3, &[idle(5, 8, 6), idle(3, 8, 28)]), set(&[1]));
    assert_eq!(launches(&k3, &[idle(0, 8, 6), idle(2, 8, 28)]), set(&[1]), "the base has nothing to do");
    assert_eq!(launches(&k3, &[idle(5, 8, 6), idle(1, 1, 28)]), set(&[1]), "K is clipped to who may come");
    assert_eq!(launches(&k3, &[idle(5, 8, 6), busy(0, 8, 28, 9, 3.0)]), set(&[]));
    assert_eq!(launches(&k3, &[idle(0, 0, 6), idle(0, 0, 28)]), set(&[]));
}

#[test]
fn under_exclusive_nobody_keeps_the_device_for_ever() {
    let k1 = Policy::Exclusive(peers(1));
    let after = |models: &mut [ModelView], seq: u64| {
        let launched = launches(&k1, models);
        let model = launched.iter().next().unwrap();
        assert_eq!(launched.len(), 1);
        models[model.index()].last_launch = seq;
        model.0
    };
    // Requests pinned to each of three models: every queue is always full.
    let mut models = [idle(3, 3, 6), idle(3, 3, 12), idle(3, 3, 28)];
    let turns: Vec<u8> = (1..=9).map(|seq| after(&mut models, seq)).collect();
    for model in 0..3 {
        assert_eq!(turns.iter().filter(|&&t| t == model).count(), 3, "{turns:?}");
    }
}

#[test]
fn a_threshold_is_clipped_to_the_requests_that_may_still_come() {
    let b5 = Policy::Threshold(peers(5));
    let small = busy(0, 8, 6, 3, 0.0);
    assert_eq!(launches(&b5, &[small, idle(4, 8, 28)]), set(&[]));
    assert_eq!(launches(&b5, &[small, idle(5, 8, 28)]), set(&[1]));
    // Seven requests are pinned to the small model: the only routed one waits for nobody.
    assert_eq!(launches(&b5, &[small, idle(1, 1, 28)]), set(&[1]));
    let table = Policy::Threshold(Thresholds::per_model(vec![
        CountTable::constant(1),
        CountTable::by_count(vec![1, 2, 2, 3]),
    ]));
    assert_eq!(launches(&table, &[small, idle(2, 3, 28)]), set(&[1]));
    assert_eq!(launches(&table, &[small, idle(2, 4, 28)]), set(&[]));
}

#[test]
fn cut_rows_and_full_batches_ignore_threshold_and_hold() {
    let running = busy(0, 8, 6, 3, 0.0);
    let large = busy(0, 8, 28, 1, 7.0);
    for mark in [ModelView { cut: true, ..idle(1, 8, 28) }, ModelView { full: true, ..idle(1, 8, 28) }] {
        assert_eq!(launches(&Policy::Threshold(peers(8)), &[running, mark]), set(&[1]));
        let small = ModelView { step: Some(6), ends_in: Some(6), ..mark };
        assert_eq!(launches(&hold(1, 8), &[small, large]), set(&[0]));
        assert_eq!(launches(&Policy::default(), &[small, large]), set(&[0]));
    }
}

#[test]
fn the_base_holds_for_a_batch_that_is_about_to_return() {
    // 5 return in 2 of 6: 5 * 4 = 20 against q * 2.
    let large = |rest| busy(0, 8, 28, rest, 5.0);
    for (q, rest, launch) in [(3, 2, false), (9, 2, false), (10, 2, true), (3, 5, true), (1, 6, true)] {
        let expected = if launch { set(&[0]) } else { set(&[]) };
        for policy in [hold(5, 1), Policy::default()] {
            assert_eq!(launches(&policy, &[idle(q, 20, 6), large(rest)]), expected, "{policy:?} {q} {rest}");
        }
        assert_eq!(launches(&Policy::Threshold(peers(5)), &[idle(q, 20, 6), large(rest)]), set(&[0]));
    }
    // A batch past its predicted end is still worth waiting for.
    assert_eq!(launches(&hold(5, 1), &[idle(3, 8, 6), large(0)]), set(&[]));
    // Without a prediction nobody waits.
    let blind = ModelView { ends_in: None, ..large(2) };
    assert_eq!(launches(&hold(5, 1), &[idle(3, 8, 6), blind]), set(&[0]));
}

#[test]
fn beside_a_peer_the_base_needs_h() {
    let large = busy(0, 8, 28, 20, 1.0);
    assert_eq!(launches(&hold(4, 3), &[idle(2, 8, 6), large]), set(&[]));
    assert_eq!(launches(&hold(4, 3), &[idle(3, 8, 6), large]), set(&[0]));
    assert_eq!(launches(&hold(4, 3), &[idle(2, 8, 6), idle(4, 8, 28)]), set(&[1]), "it is about to launch");
    assert_eq!(launches(&hold(4, 3), &[idle(2, 8, 6), idle(3, 8, 28)]), set(&[0]), "it is not");
}

#[test]
fn lookahead_makes_the_large_model_wait_for_a_batch_just_launched() {
    let mut small = idle(7, 8, 6);
    small.sends[1] = 0.35 * 7.0;
    // 2.45 * (28 - 6) = 53.9 against q * 6.
    assert_eq!(launches(&Policy::default(), &[small, idle(8, 8, 28)]), set(&[0]));
    assert_eq!(launches(&Policy::default(), &[small, idle(9, 9, 28)]), set(&[0, 1]));
    assert_eq!(launches(&Policy::Lookahead { alpha: 2.0 }, &[small, idle(9, 9, 28)]), set(&[0]));
}

#[test]
fn the_base_is_the_model_with_the_shortest_step() {
    let mut large = busy(0, 8, 28, 2, 0.0);
    large.sends[1] = 5.0;
    assert_eq!(launches(&hold(1, 1), &[large, idle(3, 8, 6)]), set(&[]), "model 1 is the fast one here");
    let unknown = ModelView { step: None, ..large };
    assert_eq!(launches(&hold(1, 1), &[unknown, idle(3, 8, 6)]), set(&[1]), "unknown: model 0 is the base");
}

#[test]
fn if_nothing_would_run_everything_launches() {
    let stuck = [idle(1, 8, 6), idle(0, 8, 9), idle(2, 8, 28)];
    assert_eq!(keep_alive(ModelSet::EMPTY, &stuck).launch, set(&[0, 2]));
    let absurd = Thresholds::constants(&[u32::MAX, u32::MAX, u32::MAX]);
    assert_eq!(launches(&Policy::Threshold(absurd), &stuck), set(&[0, 2]));
    let one_busy = [idle(1, 8, 6), busy(0, 8, 9, 1, 0.0)];
    assert_eq!(keep_alive(ModelSet::EMPTY, &one_busy).launch, ModelSet::EMPTY);
}

#[test]
fn past_the_guard_a_model_launches_and_is_counted() {
    let late = |m: ModelView| ModelView { overdue: true, ..m };
    let models = [late(idle(1, 8, 6)), late(busy(3, 8, 6, 1, 0.0)), late(idle(0, 8, 6))];
    assert_eq!(keep_alive(ModelSet::EMPTY, &models), Decision { launch: set(&[0]), forced: set(&[0]) });
    assert_eq!(keep_alive(set(&[0]), &models), Decision { launch: set(&[0]), forced: set(&[]) });
}

#[test]
fn parameters_are_checked() {
    assert_eq!(Policy::Threshold(Thresholds::constants(&[1, 5])).check(2), Ok(()));
    assert_eq!(
        Policy::Threshold(Thresholds::constants(&[1, 5, 2])).check(2),
        Err(PolicyError::Thresholds { given: 3, models: 2 })
    );
    assert_eq!(Policy::Threshold(peers(5)).check(1), Ok(()), "a deployment of one model has no peers");
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Policy::Lookahead { alpha }.check(2).is_err(), "{alpha}");
    }
}
