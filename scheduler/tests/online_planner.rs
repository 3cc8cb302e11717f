//! The online planner in a loop whose setting changes: what it reaches, how soon it notices, how seldom it errs.

use tokenrouter_scheduler::planner::{Draws, ForecastSpec, SearchSpec, Setting, forecast, search_policy};
use tokenrouter_scheduler::sim::{ChangingLoop, ChangingOutcome, Moment, Phase};
use tokenrouter_scheduler::{LatencyTable, ModelId, PlannerConfig, Policy};

/// The paper's pair with what its Table 6 was fitted to: p = 0.276 and a slowdown of 1.5.
fn phase(p: f64, large_ms: f64, slowdown: f64, requests: usize, rows: u64) -> Phase {
    Phase {
        routing: vec![vec![1.0 - p, p], vec![1.0, 0.0]],
        latency: vec![LatencyTable::constant(6_000_000), LatencyTable::constant((large_ms * 1e6) as u64)],
        slowdown: vec![slowdown; 2],
        requests,
        rows,
    }
}

fn changing(phases: &[Phase], jitter: f64, seed: u64) -> ChangingLoop {
    ChangingLoop {
        phases: phases.to_vec(),
        jitter,
        policy: Policy::default(),
        planner: Some(PlannerConfig::default()),
        planning_time: 10_000_000,
        seed,
    }
}

fn run(phases: &[Phase], jitter: f64, seed: u64) -> ChangingOutcome {
    changing(phases, jitter, seed).run().expect("a run")
}

/// R2R: a step of the small model that stays commits a token, one that routes away does not, the large one commits.
fn per_row(phase: &Phase) -> [f64; 2] {
    [phase.routing[0][0], 1.0]
}

fn rate(phase: &Phase, from: &Moment, to: &Moment) -> f64 {
    to.tokens_per_second(from, &per_row(phase))
}

fn setting(phase: &Phase) -> Setting {
    Setting {
        routing: phase.routing.clone(),
        commit: vec![vec![1.0; 2]; 2],
        latency: phase.latency.clone(),
        slowdown: phase.slowdown.clone(),
        parts: vec![Vec::new(); 2],
        entry: ModelId(0),
        max_batch: vec![phase.requests; 2],
    }
}

/// The figure: it checks the planner on inputs that were fitted to the paper's table, nothing else.
#[test]
fn a_plan_reaches_what_a_shared_device_can_give() {
    for (requests, least) in [(8, 415.0), (4, 217.0)] {
        for (seed, jitter) in (0..).zip([0.0, 0.0, 0.0, 0.03, 0.03]) {
            let phase = phase(0.276, 27.9, 1.5, requests, 30_000);
            let outcome = run(std::slice::from_ref(&phase), jitter, seed);
            let moments = &outcome.moments[0];
            let planned = moments.iter().find(|m| m.planned).expect("a plan");
            let reached = rate(&phase, planned, moments.last().expect("moments"));
            println!("N={requests}: plan at decision {}, then {reached:.1} tokens/s", planned.decisions());
            assert!(planned.decisions() <= 600 && reached >= least, "N={requests}: {reached}");
            let slowdown = outcome.status.models[0].slowdown;
            assert!((slowdown - 1.5).abs() < 0.15, "{slowdown}");
        }
    }
}

struct Change {
    name: &'static str,
    before: Phase,
    after: Phase,
}

/// A step change in p, in a latency, or in N, on a shared device and on separate ones.
fn changes() -> Vec<Change> {
    let change = |name, before: (f64, f64, f64, usize), after: (f64, f64, f64, usize)| {
        let phase = |(p, large, s, n), rows| phase(p, large, s, n, rows);
        Change { name, before: phase(before, 4_000), after: phase(after, 9_000) }
    };
    vec![
        change("p up, shared", (0.276, 27.9, 1.5, 8), (0.6, 27.9, 1.5, 8)),
        change("p down, shared", (0.6, 27.9, 1.5, 8), (0.1, 27.9, 1.5, 8)),
        change("p up, apart", (0.1, 27.9, 1.0, 16), (0.5, 27.9, 1.0, 16)),
        change("slower large model, shared", (0.15, 27.9, 1.25, 16), (0.15, 90.0, 1.25, 16)),
        change("faster large model, shared", (0.3, 60.0, 1.5, 8), (0.3, 10.0, 1.5, 8)),
        change("slower large model, apart", (0.35, 27.9, 1.0, 8), (0.35, 80.0, 1.0, 8)),
        change("fewer requests, shared", (0.276, 27.9, 1.5, 16), (0.276, 27.9, 1.5, 4)),
        change("more requests, shared", (0.276, 27.9, 1.5, 3), (0.276, 27.9, 1.5, 16)),
        change("fewer requests, apart", (0.35, 27.9, 1.0, 16), (0.35, 27.9, 1.0, 5)),
    ]
}

/// Decisions in which a change must be planned for.
const SOON: u64 = 300;

/// The first moment at or after a decision.
fn at(moments: &[Moment], decisions: u64) -> &Moment {
    moments.iter().find(|m| m.decisions() >= decisions).expect("a moment")
}

/// The first moment that is 5,000 tokens after another.
fn after_tokens<'a>(phase: &Phase, moments: &'a [Moment], from: &Moment) -> &'a Moment {
    let per_row = per_row(phase);
    let tokens =
        |m: &Moment| (0..2).map(|i| (m.rows[i] as f64 - from.rows[i] as f64) * per_row[i]).sum::<f64>();
    moments.iter().find(|m| tokens(m) >= 5_000.0).expect("5,000 tokens")
}

/// The rate of a policy in a setting, over that of another.
fn worth(phase: &Phase, policy: &Policy, other: &Policy) -> f64 {
    let (setting, spec) = (setting(phase), ForecastSpec::default());
    let draws = Draws::new(&setting, spec.request_steps, 3).expect("draws");
    let rate = |policy| forecast(&setting, phase.requests, policy, &draws, spec).tokens_per_s;
    rate(policy) / rate(other)
}

#[test]
fn a_step_change_leads_to_a_new_plan_soon_and_to_a_good_one() {
    let mut replaced = 0;
    for Change { name, before, after } in changes() {
        for seed in 0..3 {
            let phases = [before.clone(), after.clone()];
            let outcome = run(&phases, 0.02, seed);
            let (old, moments) = (outcome.moments[0].last().expect("moments"), &outcome.moments[1]);
            let start = old.decisions();
            let soon = at(moments, start + SOON);
            assert!(soon.rounds > old.rounds, "{name}: no plan for what is new");

            let best = search_policy(&setting(&after), after.requests, &SearchSpec::default());
            let best = best.expect("a plan").policy;
            let loss = 1.0 - worth(&after, &old.policy, &best);
            let new = moments.iter().find(|m| m.policy != old.policy);
            let changed = new.is_some_and(|m| m.decisions() <= soon.decisions());
            // Where the old policy is as good as the best, it is rightly kept.
            assert!(changed || loss < 0.03, "{name}: {:?} loses {loss:.3} and is kept", old.policy);
            replaced += usize::from(changed);

            let fixed = ChangingLoop { policy: best, planner: None, ..changing(&phases, 0.02, seed) };
            let peers = &fixed.run().expect("a run").moments[1];
            let end = after_tokens(&after, moments, soon);
            let reached = rate(&after, soon, end);
            let possible = rate(&after, at(peers, soon.decisions()), at(peers, end.decisions()));
            println!(
                "{name}, seed {seed}: policy changed after {:?} decisions, {reached:.1} of {possible:.1} tokens/s",
                new.map(|m| m.decisions() - start)
            );
            assert!(reached >= 0.97 * possible, "{name}, seed {seed}: {reached} of {possible}");
        }
    }
    assert!(replaced >= 12, "only {replaced} plans were replaced soon");
}

#[test]
fn stationary_inputs_hardly_change_the_plan() {
    // The last one is near the slowdown at which sharing and taking turns are equally good.
    for (p, slowdown, requests) in [(0.276, 1.5, 8), (0.35, 1.0, 16), (0.15, 1.25, 8)] {
        let mut most = 0;
        for seed in 0..20 {
            let outcome = run(&[phase(p, 27.9, slowdown, requests, 21_000)], 0.03, seed);
            let moments = &outcome.moments[0];
            let changes = moments.last().expect("moments").changes - at(moments, 1_000).changes;
            most = most.max(changes);
        }
        println!("p={p} s={slowdown} N={requests}: at most {most} changes in 20,000 decisions");
        assert!(most <= 1, "p={p} s={slowdown} N={requests}: {most} changes");
    }
}

/// A limit on the tail is obeyed by the plan that is made for it.
#[test]
fn a_limit_on_the_tail_is_planned_for() {
    let phase = phase(0.35, 27.9, 1.0, 8, 6_000);
    let limited = PlannerConfig { p99_limit: Some(57_000_000), ..PlannerConfig::default() };
    let run = ChangingLoop { planner: Some(limited), ..changing(&[phase], 0.0, 1) };
    let status = run.run().expect("a run").status;
    println!("{status:?}");
    assert!(status.planned && status.predicted_p99.is_some_and(|p99| p99 <= 57_000_000), "{status:?}");
}

/// Requests that do not go where the matrix says: the plan's promise is not kept, and it is given up.
#[test]
fn a_plan_that_does_not_keep_its_promise_is_given_up() {
    let phase = phase(0.276, 27.9, 1.5, 8, 20_000);
    let distrustful = PlannerConfig { fall_back_below: 1.2, ..PlannerConfig::default() };
    let run = ChangingLoop { planner: Some(distrustful), ..changing(&[phase], 0.0, 1) };
    let outcome = run.run().expect("a run");
    let status = outcome.status;
    // 20,000 decisions hold pauses of 1,000, 2,000, 4,000 and 8,000.
    assert!((2..=4).contains(&status.fallbacks), "{status:?}");
    let unplanned = outcome.moments[0].iter().filter(|m| !m.planned && m.policy == Policy::default());
    assert!(unplanned.count() > 1_000);
}

/// A round that breaks down is not the end of planning.
#[test]
fn after_a_round_that_breaks_down_another_one_comes() {
    use tokenrouter_scheduler::router::Router;
    use tokenrouter_scheduler::sim::MatrixRouter;
    use tokenrouter_scheduler::{Core, CoreConfig, Handoff, ModelLimits, NewRequest, RowResult};

    let config = CoreConfig {
        models: vec![ModelLimits { max_batch_rows: 8, max_step_tokens: 64 }; 2],
        pages: 4_096,
        context_len: 8_000,
        max_waiting: 8,
        max_running: 8,
        eos_ids: Vec::new(),
        guard: u64::MAX / 2,
        policy: Policy::default(),
        prefix_cache: false,
        reserve_pages: 0,
        planner: Some(PlannerConfig::default()),
        handoff: Handoff::default(),
    };
    let router: Box<dyn Router> =
        Box::new(MatrixRouter::new(vec![vec![0.5, 0.5], vec![1.0, 0.0]], ModelId(0)));
    let mut core = Core::new(config, vec![router]).expect("a core");
    for client in 0..8 {
        let request = NewRequest { client, prompt: vec![1], max_new_tokens: 7_900, ..NewRequest::default() };
        core.submit(0, request).expect("room");
    }
    let (mut now, mut rounds) = (0, 0);
    while now < 60_000 && rounds < 2 {
        core.launch(now);
        if core.plan_due().is_some() {
            rounds += 1;
            core.plan_failed();
            assert!(core.planner_status().error.is_some());
        }
        now += 1;
        for model in [ModelId(1), ModelId(0)] {
            let rows = core.batch(model).map_or(0, |batch| batch.rows.len());
            if rows > 0 {
                core.complete(now, model, &vec![RowResult::default(); rows]).expect("a batch");
            }
        }
        core.drain_effects().for_each(drop);
    }
    assert_eq!(rounds, 2, "no round after the one that broke down");
}

/// Steps that take half as long or half as long again, by chance: the plan is not restless, and never worse than none.
#[test]
fn noisy_steps_do_no_harm() {
    for (p, slowdown) in [(0.276, 1.5), (0.1, 1.0)] {
        for seed in 0..2 {
            let phase = phase(p, 27.9, slowdown, 8, 21_000);
            let phases = std::slice::from_ref(&phase);
            let unplanned = ChangingLoop { planner: None, ..changing(phases, 0.5, seed) };
            let [with, without] = [changing(phases, 0.5, seed), unplanned].map(|run| {
                let moments = run.run().expect("a run").moments.remove(0);
                let (early, late) = (at(&moments, 1_000).clone(), moments.last().expect("moments"));
                (rate(&phase, &early, late), late.changes - early.changes)
            });
            println!("p={p} s={slowdown} seed {seed}: {with:?} with the planner, {without:?} without");
            assert!(with.0 >= 0.98 * without.0, "p={p}: {} of {}", with.0, without.0);
            assert!(with.1 <= 8, "p={p}: {} changes", with.1);
        }
    }
}
