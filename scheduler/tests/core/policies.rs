//! Policies in the core: who counts, what a cut row does, when a plan takes effect.

use crate::rig::*;
use tokenrouter_scheduler::*;

fn peers(b: u32) -> Policy {
    Policy::Threshold(Thresholds::peers(CountTable::constant(b)))
}

fn rig(policy: Policy) -> Rig {
    Rig::new(CoreConfig { policy, ..config(2) })
}

#[test]
fn a_threshold_follows_the_number_of_requests() {
    let mut rig = rig(peers(3));
    let ids: Vec<RequestId> = (0..4).map(|_| rig.submit(request(1, 9))).collect();
    rig.step(A, &[keep(5, B), keep(5, B), stay(5), stay(5)]);
    assert_eq!(rig.launch(), [A], "two of three are ready at B");
    rig.complete(A, &[stay(6), stay(6)]);
    assert_eq!(rig.launch(), [A]);
    // Two of the four leave while they run: now two are all there are.
    rig.cancel(ids[2]);
    rig.cancel(ids[3]);
    assert_eq!(rig.launch(), [B]);
    assert_eq!(rig.rows(B).len(), 2);
}

#[test]
fn a_cut_row_waits_for_no_threshold() {
    let limits = ModelLimits { max_batch_rows: 8, max_step_tokens: 4 };
    let mut rig = Rig::new(CoreConfig { models: vec![limits; 2], policy: peers(2), ..config(2) });
    for _ in 0..3 {
        rig.submit(request(7, 9));
    }
    // The prompts in chunks at A, then two of the three to B.
    let mut launches = 0;
    while rig.core.counters().handoffs[0][1] < 2 {
        rig.launch();
        let rows = rig.rows(A);
        let results: Vec<RowResult> =
            rows.iter().map(|r| if r.0 < 2 { keep(5, B) } else { stay(5) }).collect();
        rig.complete(A, &results);
        launches += 1;
        assert!(launches < 20);
    }
    assert!(rig.launch().contains(&B), "two are ready");
    assert_eq!(rig.rows(B).iter().filter(|r| r.3).count(), 0, "both rows are cut");
    rig.cancel(rig.core.batch(B).unwrap().rows[1].request);
    rig.complete(B, &[stay(0), stay(0)]);
    assert_eq!(rig.core.counters().ready[1], 1);
    assert_eq!(rig.launch(), [B], "one is ready of two that may come, and it is in the middle of its prompt");
}

#[test]
fn nothing_is_decided_between_events_and_a_plan_is_an_event() {
    let mut rig = rig(peers(2));
    for _ in 0..3 {
        rig.submit(request(1, 9));
    }
    rig.step(A, &[keep(5, B), stay(5), stay(5)]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.launch(), []);
    let plan = |b| Plan { policy: peers(b), inputs: PolicyInputs::default() };
    rig.core.set_plan(plan(1)).unwrap();
    assert_eq!(rig.launch(), [B]);
}

#[test]
fn a_plan_that_does_not_fit_changes_nothing() {
    let mut rig = rig(peers(2));
    let bad = [
        Plan { policy: Policy::Lookahead { alpha: f64::NAN }, inputs: PolicyInputs::default() },
        Plan {
            policy: Policy::Eager,
            inputs: PolicyInputs { routing: vec![vec![0.5, 0.4]; 2], ..PolicyInputs::default() },
        },
        Plan {
            policy: Policy::Eager,
            inputs: PolicyInputs { latency: vec![LatencyTable::constant(5); 3], ..PolicyInputs::default() },
        },
    ];
    for plan in bad {
        assert!(rig.core.set_plan(plan.clone()).is_err(), "{plan:?}");
    }
    for _ in 0..3 {
        rig.submit(request(1, 9));
    }
    rig.step(A, &[keep(5, B), stay(5), stay(5)]);
    assert_eq!(rig.launch(), [A], "B still waits for two");
    let policy = Policy::Threshold(Thresholds::constants(&[1, 2, 3]));
    let refused = Core::new(CoreConfig { policy, ..config(2) }, vec![Box::new(router::Single::new(A))]);
    assert!(matches!(refused, Err(ConfigError::Policy(PolicyError::Thresholds { given: 3, models: 2 }))));
}

#[test]
fn the_base_learns_to_hold_for_a_batch_about_to_return() {
    let policy = Policy::Hold {
        thresholds: Thresholds::peers(CountTable::constant(5)),
        beside: CountTable::constant(1),
    };
    let mut rig = Rig::new(CoreConfig { guard: 1_000_000, policy, ..config(2) });
    for _ in 0..6 {
        rig.submit(request(1, 60));
    }
    // Steps of 10 and 100 ticks, seen a few times: five to B and back.
    let step = |rig: &mut Rig, model: ModelId, ticks: u64, results: &[RowResult]| {
        rig.now += ticks - 2;
        rig.complete(model, results);
    };
    for _ in 0..3 {
        assert_eq!(rig.launch(), [A]);
        step(&mut rig, A, 10, &[[keep(5, B); 5].as_slice(), &[keep(5, B)]].concat());
        assert_eq!(rig.launch(), [B]);
        step(&mut rig, B, 100, &[keep(6, A); 6]);
    }
    assert_eq!(rig.launch(), [A]);
    step(&mut rig, A, 10, &[[keep(5, B); 5].as_slice(), &[stay(5)]].concat());
    // B with five rows, A with one; A ends a step shortly before B does.
    assert_eq!(rig.launch(), [A, B]);
    rig.now += 94;
    rig.complete(A, &[stay(5)]);
    assert_eq!(rig.launch(), [], "five are about to return, one waits");
    rig.complete(B, &[keep(6, A); 5]);
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.rows(A).len(), 6);
    assert_eq!(rig.core.counters().guard_launches, 0);
}

/// Models that meet on several devices: one at a time whatever the policy wants, each in its turn.
#[test]
fn models_that_exclude_each_other_take_turns() {
    let pair: ModelSet = [A, C].into_iter().collect();
    for policy in [Policy::Eager, Policy::StepSync, Policy::default(), peers(1)] {
        let mut rig = Rig::new(CoreConfig { policy: policy.clone(), ..config(3) }).exclusive(&[pair]);
        for _ in 0..3 {
            rig.submit(request(1, 90));
        }
        // One request for each model, which stays there.
        rig.step(A, &[stay(5), keep(5, B), keep(5, C)]);
        let mut runs = [0; 3];
        for _ in 0..80 {
            rig.launch();
            let running: Vec<ModelId> =
                [A, B, C].into_iter().filter(|m| rig.core.batch(*m).is_some()).collect();
            assert!(!running.is_empty(), "{policy:?}: nothing runs");
            assert!(!(running.contains(&A) && running.contains(&C)), "{policy:?}: {running:?}");
            // One at a time, the oldest, so that others are decided about while one runs.
            let seq = |m: &&ModelId| rig.core.batch(**m).map(|b| b.seq);
            let model = *running.iter().min_by_key(seq).unwrap();
            runs[model.index()] += 1;
            rig.complete(model, &[stay(6)]);
        }
        assert!(runs.iter().all(|n| *n >= 15), "{policy:?}: {runs:?}");
    }
}

/// The guard time of a model does not run while one that excludes it does, and nothing is decided for it meanwhile.
#[test]
fn an_excluded_model_waits_without_a_guard() {
    let pair: ModelSet = [A, B].into_iter().collect();
    let mut rig = Rig::new(CoreConfig { policy: Policy::Eager, ..config(2) }).exclusive(&[pair]);
    rig.submit(request(1, 9));
    rig.submit(request(1, 9));
    rig.step(A, &[stay(5), keep(5, B)]);
    assert_eq!(rig.launch(), [B], "A had its turn");
    assert_eq!(rig.core.wake(), None, "A waits for B, however long");
    rig.now += 1_000_000;
    assert_eq!(rig.launch(), []);
    rig.complete(B, &[stay(6)]);
    assert!(rig.core.wake().is_some());
    assert_eq!(rig.launch(), [A]);
    assert_eq!(rig.core.counters().guard_launches, 0);
}

/// `tokenrouter profile` measures a model before it serves: the estimates begin with that.
#[test]
fn measured_step_times_are_there_before_the_first_step() {
    let steps = vec![(1, 60), (2, 62), (4, 80), (8, 140)];
    let large = Measured { steps, slowdown: 1.5, ..Measured::default() };
    let core = Rig::new(config(2)).core.measured(&[Measured::default(), large]);
    let status = core.planner_status();
    assert!(status.models[0].latency.is_empty());
    assert_eq!(status.models[1].latency, [(1, 60), (2, 62), (4, 80), (8, 140)]);
    assert!((status.models[1].slowdown - 1.5).abs() < 0.01, "{}", status.models[1].slowdown);
}
