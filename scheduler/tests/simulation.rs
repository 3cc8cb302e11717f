//! The core under random weather, against the sequential truth.
//!
//! `TOKENROUTER_SIM_SEEDS=N` runs N seeds, `TOKENROUTER_SIM_FIRST=S` starts at seed S: a failure prints its seed.

use tokenrouter_scheduler::Handoff;
use tokenrouter_scheduler::sim::{Coverage, Outcome, Scenario, Seen, check, run};

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
        total.add_all(&outcome.coverage);
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
        for &seen in Seen::ALL {
            let least = match seen {
                Seen::Turn => 10_000,
                Seen::Cached | Seen::Preemption | Seen::PreemptedTwice | Seen::CachedToken => 100,
                Seen::VanishedPreempted | Seen::StoppedPreempted => 10,
                Seen::ClaimantEndedRead => 5,
                Seen::ClaimantPreempted => 2,
                _ => 20,
            };
            assert!(total.of(seen) >= least, "the weather is too quiet for {seen:?}: {total:?}");
        }
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
