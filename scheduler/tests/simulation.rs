//! The core under random weather, against the sequential truth.
//!
//! `TOKENROUTER_SIM_SEEDS=N` runs N seeds, `TOKENROUTER_SIM_FIRST=S` starts at seed S: a failure prints its seed.

use tokenrouter_scheduler::Handoff;
use tokenrouter_scheduler::sim::{Coverage, Outcome, Scenario, check, run};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn seeds() -> std::ops::Range<u64> {
    let first = number("TOKENROUTER_SIM_FIRST", 0);
    first..first + number("TOKENROUTER_SIM_SEEDS", 1_000)
}

/// Names the seed if the core panics under it.
struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with TOKENROUTER_SIM_FIRST={} TOKENROUTER_SIM_SEEDS=1", self.0);
        }
    }
}

fn checked_run(seed: u64, scenario: &Scenario) -> Outcome {
    let _naming = Naming(seed);
    let outcome = run(scenario).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    check(scenario, &outcome).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    outcome
}

#[test]
fn every_invariant_holds_under_random_weather() {
    let mut total = Coverage::default();
    let mut tokens = 0;
    let mut terminals = [0; 6];
    let (mut handoffs, mut readmitted) = (0, 0);
    for seed in seeds() {
        let scenario = Scenario::random(seed);
        let outcome = checked_run(seed, &scenario);
        let Coverage { refused, simultaneous, cut_rows, deferred, .. } = outcome.coverage;
        total.refused += refused;
        total.simultaneous += simultaneous;
        total.cut_rows += cut_rows;
        total.deferred += deferred;
        total.cached += outcome.coverage.cached;
        total.preemptions += outcome.coverage.preemptions;
        total.preempted_twice += outcome.coverage.preempted_twice;
        total.ended_preempted += outcome.coverage.ended_preempted;
        total.cached_tokens += outcome.coverage.cached_tokens;
        total.ended_running += outcome.coverage.ended_running;
        total.ended_ready += outcome.coverage.ended_ready;
        total.ended_waiting += outcome.coverage.ended_waiting;
        total.ended_nothing += outcome.coverage.ended_nothing;
        total.failed_steps += outcome.coverage.failed_steps;
        total.turns += outcome.coverage.turns;
        let t = outcome.counters.terminals;
        for (sum, n) in terminals.iter_mut().zip([t.eos, t.stop_id, t.length, t.stop, t.cancelled, t.failed])
        {
            *sum += n;
        }
        let moved = outcome.counters.handoffs.iter().flatten().sum::<u64>();
        handoffs += moved;
        readmitted += if scenario.config.handoff == Handoff::Readmit { moved } else { 0 };
        tokens += outcome.streams.iter().map(|s| s.tokens.len()).sum::<usize>();
    }
    println!("{tokens} tokens, {handoffs} handoffs, terminals {terminals:?}, {total:?}");
    if seeds().count() >= 1_000 {
        let Coverage { refused, simultaneous, cut_rows, deferred, .. } = total;
        let Coverage {
            ended_running, ended_ready, ended_waiting, ended_nothing, failed_steps, turns, ..
        } = total;
        let memory = [total.cached, total.preemptions, total.preempted_twice, total.cached_tokens];
        assert!(memory.iter().all(|&n| n >= 100), "there is too much room: {total:?}");
        assert!(total.ended_preempted >= 10, "nobody leaves while preempted: {total:?}");
        let seen = [refused, simultaneous, cut_rows, deferred, ended_running, ended_ready, ended_waiting];
        assert!(seen.iter().all(|&n| n >= 20), "the weather is too quiet: {total:?}");
        assert!(ended_nothing >= 20 && failed_steps >= 20 && turns >= 10_000, "too quiet: {total:?}");
        assert!(terminals.iter().all(|&n| n >= 20), "an ending is missing: {terminals:?}");
        assert!(
            handoffs >= 1_000 && readmitted >= 1_000,
            "{handoffs} handoffs, {readmitted} as new requests"
        );
    }
}

#[test]
fn streams_do_not_depend_on_the_schedule() {
    for seed in seeds().take(300) {
        let scenario = Scenario::random(seed);
        let (a, b) = (scenario.undisturbed(2 * seed), scenario.undisturbed(2 * seed + 1));
        let (a, b) = (checked_run(seed, &a), checked_run(seed, &b));
        for (client, (a, b)) in a.streams.iter().zip(&b.streams).enumerate() {
            let same = (&a.tokens, &a.writers, &a.reason) == (&b.tokens, &b.writers, &b.reason);
            assert!(same && a.reason.is_some(), "seed {seed}, client {client}: {a:?} is not {b:?}");
            assert_eq!(a.usage.discarded, b.usage.discarded, "seed {seed}, client {client}");
        }
    }
}

#[test]
fn a_seed_replays_its_run() {
    for seed in seeds().take(20) {
        let scenario = Scenario::random(seed);
        assert_eq!(scenario, Scenario::random(seed));
        assert_eq!(checked_run(seed, &scenario), checked_run(seed, &scenario), "seed {seed}");
    }
}
