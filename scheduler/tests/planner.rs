//! The throughput model: what it refuses, and laws that hold without golden values.

use tokenrouter_scheduler::planner::*;
use tokenrouter_scheduler::sim::Random;

const STATES: usize = 200_000;

fn spec(routing: Vec<Vec<f64>>, steps: Vec<u32>, requests: u32) -> SystemSpec {
    let models = routing.len();
    SystemSpec {
        routing,
        commit: vec![vec![1.0; models]; models],
        steps: StepQuanta::Constant(steps),
        quantum_ms: 0.5,
        requests,
        entry: 0,
    }
}

fn system(routing: Vec<Vec<f64>>, steps: Vec<u32>, requests: u32) -> System {
    System::new(spec(routing, steps, requests)).expect("a good system")
}

fn pair(p: f64, requests: u32) -> System {
    system(vec![vec![1.0 - p, p], vec![1.0, 0.0]], vec![20, 93], requests)
}

/// Visit ratios of P by plain iteration of its lazy version.
fn visits(system: &System) -> Vec<f64> {
    let models = system.models();
    let mut v = vec![1.0 / models as f64; models];
    for _ in 0..2000 {
        let next = |j| (0..models).map(|i| v[i] * system.probability(i, j)).sum::<f64>();
        v = (0..models).map(|j| 0.5 * (v[j] + next(j))).collect();
    }
    v
}

/// Flow balance and conservation of time: request-steps are proportional to the visit ratios, and every request is
/// always in a batch or in a queue.
fn check_laws(what: &str, system: &System, rule: &LaunchRule) {
    let found = evaluate(system, rule, 1.0, STATES).unwrap_or_else(|e| panic!("{what}: {e}"));
    let total: f64 = found.steps_per_s.iter().sum();
    for (steps, v) in found.steps_per_s.iter().zip(visits(system)) {
        assert!((steps / total - v).abs() < 1e-9, "{what}: {found:?}");
    }
    let busy: f64 = (0..system.models())
        .map(|i| found.steps_per_s[i] * f64::from(system.step(i, 1)) * system.quantum_ms())
        .sum();
    let waiting = found.wait_ms_per_token * found.tokens_per_s;
    let all = 1000.0 * f64::from(system.requests());
    assert!((busy + waiting - all).abs() < 1e-9 * all, "{what}: {busy} + {waiting}, {found:?}");
}

#[test]
fn flow_balances_and_time_is_conserved_under_every_rule() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let models = random.size(1, 4);
        let requests = random.range(1, [9, 7, 4, 3][models - 1]) as u32;
        let routing: Vec<Vec<f64>> = (0..models)
            .map(|_| {
                let weights: Vec<f64> = (0..models).map(|_| random.range(1, 100) as f64).collect();
                let sum: f64 = weights.iter().sum();
                weights.iter().map(|w| w / sum).collect()
            })
            .collect();
        let steps = (0..models).map(|_| random.range(1, 6) as u32).collect();
        let system = system(routing, steps, requests);
        let all = feasible(models, requests, 1000).expect("few vectors");
        let thresholds = all[random.size(0, all.len() - 1)].clone();
        let beside = random.range(1, u64::from(requests) + 1) as u32;
        let alpha = random.range(0, 20) as f64 / 10.0;
        let mut rules = vec![
            LaunchRule::Threshold(thresholds.clone()),
            LaunchRule::Hold { thresholds, beside },
            LaunchRule::Lookahead { alpha },
        ];
        if models == 2 {
            rules.push(LaunchRule::Exclusive { at_least: beside.min(requests) });
        }
        for rule in &rules {
            check_laws(&format!("seed {seed}, {rule:?}"), &system, rule);
        }
    }
}

#[test]
fn chains_that_hardly_mix_are_solved() {
    // Almost every token is routed: the chain is nearly periodic in many phases, and sweeps alone never settle.
    for p in [0.7, 0.97, 0.999] {
        check_laws(&format!("p = {p}"), &pair(p, 8), &LaunchRule::Threshold(vec![1, 1]));
    }
    // Requests hardly ever move: a nearly decomposable chain.
    for p in [1e-3, 1e-6] {
        let ring = vec![vec![1.0 - p, p, 0.0], vec![0.0, 1.0 - p, p], vec![p, 0.0, 1.0 - p]];
        let system = system(ring, vec![2, 3, 5], 4);
        check_laws(&format!("ring, p = {p}"), &system, &LaunchRule::Threshold(vec![1, 1, 1]));
    }
}

#[test]
fn the_climb_finds_the_best_of_all() {
    for (p, requests) in [(0.05, 8), (0.35, 8), (0.6, 8), (0.35, 16)] {
        let system = pair(p, requests);
        let all = search_all(&system, 1.0, Limits::default()).expect("a table");
        let climbed = search_climbing(&system, 1.0, Limits::default()).expect("a table");
        assert_eq!(climbed.best(), all.best(), "p = {p}, N = {requests}");
        assert!(climbed.rows.len() * 3 < all.rows.len(), "{} of {}", climbed.rows.len(), all.rows.len());
    }
}

#[test]
fn feasible_vectors_are_counted_and_listed_once() {
    for (models, requests) in [(1, 5), (2, 1), (2, 8), (3, 6), (4, 4)] {
        let all = feasible(models, requests, 1000).expect("few vectors");
        assert_eq!(Some(all.len() as u64), count_feasible(models, requests));
        assert!(all.is_sorted() && all.windows(2).all(|w| w[0] != w[1]));
        assert!(all.iter().all(|b| b.iter().map(|x| x - 1).sum::<u32>() < requests));
    }
    let refused = feasible(4, 64, 1000);
    assert_eq!(refused, Err(PlanError::TooManyVectors { vectors: 766_480, limit: 1000 }));
    assert_eq!(
        feasible(60, 4_000_000_000, 10),
        Err(PlanError::TooManyVectors { vectors: usize::MAX, limit: 10 })
    );
}

/// Breaks a good system.
type Change = fn(&mut SystemSpec);

#[test]
fn systems_that_make_no_sense_are_refused_by_value() {
    let good = || spec(vec![vec![0.65, 0.35], vec![1.0, 0.0]], vec![2, 9], 4);
    let refusal = |change: Change| {
        let mut spec = good();
        change(&mut spec);
        System::new(spec).expect_err("a refusal").to_string()
    };
    assert!(System::new(good()).is_ok());
    let cases: [(Change, &str); 15] = [
        (|s| s.routing[0][1] = 0.3, "row 0 of the routing matrix sums to 0.95"),
        (|s| s.routing[1] = vec![1.1, -0.1], "P[1][0] is 1.1"),
        (|s| s.routing[0] = vec![-0.25, 1.25], "P[0][0] is -0.25"),
        (|s| s.routing[0][0] = f64::NAN, "P[0][0] is NaN"),
        (|s| s.routing[0].push(0.0), "3 entries; 2 are needed"),
        (|s| s.routing.clear(), "at least one model"),
        (|s| s.commit[1][0] = -1.0, "C[1][0] is -1"),
        (|s| s.commit.truncate(1), "commit matrix has 1 entries"),
        (|s| s.steps = StepQuanta::Constant(vec![2, 0]), "model 1 with 1 requests takes no time"),
        (|s| s.steps = StepQuanta::Constant(vec![2]), "step times has 1 entries"),
        (|s| s.steps = StepQuanta::ByBatch(vec![vec![1; 4], vec![1; 3]]), "3 entries; 4 are needed"),
        (|s| s.quantum_ms = 0.0, "quantum is 0 ms"),
        (|s| s.requests = 0, "one request"),
        (|s| s.requests = u32::MAX, "N is 4294967295"),
        (|s| s.entry = 2, "entry model 2 of 2"),
    ];
    for (change, expected) in cases {
        let said = refusal(change);
        assert!(said.contains(expected), "{said}, not {expected}");
    }
}

#[test]
fn rules_that_do_not_fit_are_refused_by_value() {
    let system = pair(0.35, 4);
    let refusal =
        |rule: LaunchRule| evaluate(&system, &rule, 1.0, STATES).expect_err("a refusal").to_string();
    for (rule, expected) in [
        (LaunchRule::Threshold(vec![2, 4]), "[2, 4] can wait for ever with 4 requests"),
        (LaunchRule::Threshold(vec![1]), "threshold vector has 1 entries"),
        (LaunchRule::Threshold(vec![0, 1]), "threshold 0 of model 0"),
        (LaunchRule::Hold { thresholds: vec![1, 5], beside: 1 }, "threshold 5 of model 1"),
        (LaunchRule::Hold { thresholds: vec![1, 4], beside: 0 }, "H is 0"),
        (LaunchRule::Lookahead { alpha: f64::NAN }, "alpha is NaN"),
        (LaunchRule::Exclusive { at_least: 0 }, "K is 0"),
        (LaunchRule::Exclusive { at_least: 5 }, "K is 5"),
    ] {
        let said = refusal(rule);
        assert!(said.contains(expected), "{said}, not {expected}");
    }
    let slowdown = evaluate(&system, &LaunchRule::Threshold(vec![1, 1]), 0.0, STATES);
    assert!(slowdown.expect_err("a refusal").to_string().contains("slowdown is 0"));
    let three = self::system(vec![vec![0.5, 0.3, 0.2]; 3], vec![1, 2, 3], 2);
    let exclusive = evaluate(&three, &LaunchRule::Exclusive { at_least: 1 }, 1.0, STATES);
    assert_eq!(exclusive, Err(PlanError::TwoModelsOnly { rule: "exclusive", models: 3 }));
}

#[test]
fn several_closed_classes_and_silent_systems_are_refused() {
    // From model 0 every request ends at model 1 or at model 2 for ever: eleven ways to split ten requests.
    let split = vec![vec![0.0, 0.5, 0.5], vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 1.0]];
    let ends =
        evaluate(&system(split, vec![1, 1, 1], 10), &LaunchRule::Threshold(vec![1, 1, 1]), 1.0, STATES);
    assert_eq!(ends, Err(PlanError::SeveralClosedClasses { classes: 11 }));
    // One absorbing model is fine: the states before it are transient.
    let drain = system(vec![vec![0.5, 0.5], vec![0.0, 1.0]], vec![1, 2], 3);
    let found = evaluate(&drain, &LaunchRule::Threshold(vec![1, 1]), 1.0, STATES).expect("a rate");
    assert!((found.tokens_per_s - 3.0 / 0.001).abs() < 1e-6 && found.recurrent < found.states, "{found:?}");
    let mut silent = spec(vec![vec![0.5, 0.5], vec![1.0, 0.0]], vec![1, 2], 3);
    silent.commit = vec![vec![0.0; 2]; 2];
    let silent = System::new(silent).expect("a system");
    let refused = evaluate(&silent, &LaunchRule::Threshold(vec![1, 1]), 1.0, STATES);
    assert_eq!(refused, Err(PlanError::NothingCommitted));
}

#[test]
fn a_chain_past_the_limit_is_refused() {
    let system = pair(0.35, 8);
    let eager = LaunchRule::Threshold(vec![1, 1]);
    assert_eq!(evaluate(&system, &eager, 1.0, 3452), Err(PlanError::TooManyStates { limit: 3452 }));
    assert_eq!(evaluate(&system, &eager, 1.0, 3453).expect("it fits").states, 3453);
    let many = self::system(vec![vec![0.125; 8]; 8], vec![1; 8], 4000);
    assert_eq!(
        evaluate(&many, &LaunchRule::Lookahead { alpha: 1.0 }, 1.0, 10),
        Err(PlanError::TooManyStates { limit: 10 })
    );
}

#[test]
fn another_number_of_requests_gives_the_same_system() {
    let found = pair(0.35, 4).with_requests(8).expect("constant step times");
    assert_eq!(found, pair(0.35, 8));
    let mut table = spec(vec![vec![0.5, 0.5], vec![1.0, 0.0]], vec![1, 2], 2);
    table.steps = StepQuanta::ByBatch(vec![vec![1, 2], vec![3, 3]]);
    let table = System::new(table).expect("a system");
    assert!(matches!(table.with_requests(3), Err(PlanError::Shape { found: 2, needed: 3, .. })));
    assert!(table.with_requests(1).is_ok());
}
