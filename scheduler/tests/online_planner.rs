//! The online planner in a loop whose setting changes: what it reaches, how soon it notices, how seldom it errs.

use tokenrouter_scheduler::sim::{ChangingLoop, ChangingOutcome, Moment, Phase};
use tokenrouter_scheduler::{LatencyTable, PlannerConfig, Policy};

/// The paper's pair with what its Table 6 was fitted to: p = 0.276 and a slowdown of 1.5.
fn phase(p: f64, large_ms: f64, slowdown: f64, requests: usize, rows: u64) -> Phase {
    Phase {
        routing: vec![vec![1.0 - p, p], vec![1.0, 0.0]],
        latency: vec![
            LatencyTable::constant(6_000_000),
            LatencyTable::constant((large_ms * 1e6) as u64),
        ],
        slowdown: vec![slowdown; 2],
        requests,
        rows,
    }
}

fn run(phases: &[Phase], jitter: f64, seed: u64) -> ChangingOutcome {
    let run = ChangingLoop {
        phases: phases.to_vec(),
        jitter,
        policy: Policy::default(),
        planner: Some(PlannerConfig::default()),
        planning_time: 10_000_000,
        seed,
    };
    run.run().expect("a run")
}

/// R2R: a step of the small model that stays commits a token, one that routes away does not, the large one commits.
fn per_row(phase: &Phase) -> [f64; 2] {
    [phase.routing[0][0], 1.0]
}

fn rate(phase: &Phase, moments: &[Moment], from: usize, to: usize) -> f64 {
    moments[to].tokens_per_second(&moments[from], &per_row(phase))
}

#[test]
fn explore() {
    for (n, s) in [(8, 1.5), (4, 1.5), (8, 1.0), (16, 1.5), (2, 1.5)] {
        for jitter in [0.0, 0.05] {
            for seed in 0..3 {
            let phase = phase(0.276, 27.9, s, n, 30_000);
            let outcome = run(&[phase.clone()], jitter, seed);
            let moments = &outcome.moments[0];
            let first = moments.iter().position(|m| m.planned).unwrap_or(0);
            let changes: Vec<_> = moments.windows(2).filter(|w| w[0].changes != w[1].changes).map(|w| (w[1].decisions(), w[1].policy.clone())).collect();
            println!("N={n} s={s} jitter={jitter}: first plan at {} rate {:.1} status {:?} slow {:?}", moments[first].decisions(), rate(&phase, moments, first, moments.len()-1), (&outcome.status.policy, outcome.status.predicted, outcome.status.measured, outcome.status.rounds, outcome.status.plans, outcome.status.fallbacks), outcome.status.models.iter().map(|m| (m.slowdown, m.latency[0])).collect::<Vec<_>>());
            for c in &changes { println!("     {c:?}"); }
            }
        }
    }
}
