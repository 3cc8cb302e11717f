//! Who counts: under every policy a mix of pinned, budget-spent and routed requests makes progress, and the guard,
//! which is for faults, never has to step in.

use tokenrouter_scheduler::router::{ReachRow, RouteRow, Single, StepView};
use tokenrouter_scheduler::sim::{ClosedLoop, ClosedOutcome, MatrixRouter};
use tokenrouter_scheduler::*;

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

/// Routed until the large model has written `budget` tokens, then at the small model for good.
struct Budgeted {
    inner: MatrixRouter,
    budget: u32,
}

impl Budgeted {
    fn is_spent(&self, row: &RouteRow) -> bool {
        row.generated >= self.budget
    }
}

impl Router for Budgeted {
    fn name(&self) -> &str {
        "budgeted"
    }
    fn signals(&self) -> router::SignalSet {
        router::SignalSet::NONE
    }
    fn entry(&self) -> ModelId {
        A
    }
    fn reach(&self) -> ModelSet {
        self.inner.reach()
    }
    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        if row.generated >= self.budget { ModelSet::of(A) } else { self.reach() }
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        self.inner.route(step, to);
        for (row, to) in step.rows.iter().zip(to) {
            if self.is_spent(row) {
                *to = A;
            }
        }
    }
}

fn pair(p: f64) -> MatrixRouter {
    MatrixRouter::new(vec![vec![1.0 - p, p], vec![1.0, 0.0]], A)
}

const PINNED_SMALL: u16 = 0;
const PINNED_LARGE: u16 = 1;
const SPENT: u16 = 2;
const ROUTED: u16 = 3;

fn run(policy: Policy, requests: &[u16]) -> ClosedOutcome {
    let routes: Vec<Box<dyn Router>> = vec![
        Box::new(Single::new(A)),
        Box::new(Single::new(B)),
        Box::new(Budgeted { inner: pair(0.5), budget: 40 }),
        Box::new(pair(0.35)),
    ];
    let run = ClosedLoop {
        slowdown: Vec::new(),
        latency: [6_000_000, 27_900_000].map(LatencyTable::constant).to_vec(),
        requests: requests.iter().map(|&r| RouteId(r)).collect(),
        policy,
        inputs: None,
        guard: 100_000_000,
        warm_up: 2_000,
        rows: 40_000,
        seed: 3,
    };
    run.run(routes).unwrap()
}

fn policies() -> Vec<Policy> {
    let peers = |b| Thresholds::peers(CountTable::constant(b));
    let mut all = vec![Policy::StepSync, Policy::Eager, Policy::default()];
    for b in [1, 2, 3, 5, 8, u32::MAX] {
        all.push(Policy::Threshold(peers(b)));
        all.push(Policy::Exclusive(peers(b)));
        for h in [1, 3] {
            all.push(Policy::Hold { thresholds: peers(b), beside: CountTable::constant(h) });
        }
        // The small model waits too.
        let both = Thresholds::constants(&[b, b]);
        all.push(Policy::Threshold(both.clone()));
        all.push(Policy::Hold { thresholds: both, beside: CountTable::constant(1) });
    }
    all
}

#[test]
fn seven_pinned_requests_do_not_starve_the_routed_one() {
    for policy in policies() {
        let outcome = run(policy.clone(), &[0, 0, 0, 0, 0, 0, 0, ROUTED]);
        assert_eq!(outcome.guard_launches, 0, "{policy:?}");
        // One visit for every 1 / 0.35 steps of one request, however slow the rounds are.
        assert!(outcome.rows[1] > outcome.rows[0] / 60, "{policy:?}: {outcome:?}");
    }
}

/// The other way round: at the small model nobody stands but the routed one.
#[test]
fn seven_requests_pinned_to_the_large_model_do_not_starve_the_routed_one() {
    for policy in policies() {
        let outcome = run(policy.clone(), &[1, 1, 1, 1, 1, 1, 1, ROUTED]);
        assert_eq!(outcome.guard_launches, 0, "{policy:?}");
        assert!(outcome.rows[0] > outcome.rows[1] / 60, "{policy:?}: {outcome:?}");
    }
}

/// A constant threshold above the one request that may ever come is clipped to it.
#[test]
fn one_request_pinned_to_the_large_model_waits_for_nobody() {
    for others in [PINNED_SMALL, SPENT] {
        for policy in policies() {
            let mix = [[others; 7].as_slice(), &[PINNED_LARGE]].concat();
            let outcome = run(policy.clone(), &mix);
            assert_eq!(outcome.guard_launches, 0, "{policy:?}");
            // A step of 27.9 ms against one of 6 ms of seven rows, or of one row when they wait for each other.
            assert!(outcome.rows[1] > outcome.rows[0] / 60, "{policy:?}: {outcome:?}");
        }
    }
}

#[test]
fn requests_that_have_spent_their_budget_are_waited_for_by_nobody() {
    for policy in policies() {
        let outcome = run(policy.clone(), &[SPENT, SPENT, SPENT, SPENT, SPENT, SPENT, SPENT, ROUTED]);
        assert_eq!(outcome.guard_launches, 0, "{policy:?}");
        assert!(outcome.rows[1] > outcome.rows[0] / 60, "{policy:?}: {outcome:?}");
    }
}

#[test]
fn the_guard_never_fires_in_a_mix_without_faults() {
    let mix = [
        PINNED_SMALL,
        PINNED_SMALL,
        PINNED_SMALL,
        PINNED_LARGE,
        SPENT,
        SPENT,
        ROUTED,
        ROUTED,
        ROUTED,
        ROUTED,
    ];
    for policy in policies() {
        let outcome = run(policy.clone(), &mix);
        assert_eq!(outcome.guard_launches, 0, "{policy:?}");
        assert!(outcome.rows[0] > 0 && outcome.rows[1] > outcome.rows[0] / 20, "{policy:?}: {outcome:?}");
    }
}
