//! The invariants against planted bugs: each is found within a hundred seeds.

use super::check::check;
use super::random::Random;
use super::run::{SimError, drive, prepare};
use super::scenario::Scenario;
use crate::core::planted::{Bug, Planted};
use std::panic::{AssertUnwindSafe, catch_unwind};

const SEEDS: u64 = 100;

/// Runs the scenario of a seed with a bug armed, and says how it was found.
fn hunt(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let scenario = Scenario::random(seed);
    let passes = Random::new(seed ^ 0xb06).range(0, 7);
    let whole = || {
        let mut core = prepare(&scenario)?;
        core.planted = bug.map(|bug| Planted { bug, passes });
        check(&scenario, &drive(&scenario, core)?)
    };
    match catch_unwind(AssertUnwindSafe(whole)) {
        Ok(found) => found.map_err(|SimError(text)| text),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|&t| t.to_owned())).unwrap_or_default())
        }
    }
}

#[test]
fn every_planted_bug_is_caught_within_a_hundred_seeds() {
    for bug in Bug::ALL {
        let found = (0..SEEDS).find_map(|seed| Some((seed, hunt(seed, Some(bug)).err()?)));
        let (seed, how) = found.unwrap_or_else(|| panic!("{bug:?} was not caught by {SEEDS} seeds"));
        println!("{bug:?}: seed {seed}: {how}");
        assert_eq!(hunt(seed, None), Ok(()), "seed {seed} without the bug");
    }
    for seed in 0..SEEDS {
        assert_eq!(hunt(seed, None), Ok(()), "seed {seed}");
    }
}
