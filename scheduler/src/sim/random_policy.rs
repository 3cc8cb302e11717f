//! Policies at random, absurd ones among them.

use super::random::Random;
use crate::policy::{CountTable, Policy, Thresholds};

/// Any policy with any parameters that a core for `models` models accepts.
pub fn random_policy(random: &mut Random, models: usize) -> Policy {
    match random.range(0, 8) {
        0 => Policy::StepSync,
        1 => Policy::Exclusive(thresholds(random, models)),
        2 | 3 => Policy::Threshold(thresholds(random, models)),
        4 | 5 => Policy::Hold { thresholds: thresholds(random, models), beside: table(random) },
        6 | 7 => Policy::Lookahead { alpha: 0.1 * random.range(1, 40) as f64 },
        _ => Policy::Eager,
    }
}

fn thresholds(random: &mut Random, models: usize) -> Thresholds {
    match random.range(0, 2) {
        0 => Thresholds::peers(table(random)),
        _ => Thresholds::per_model((0..random.size(0, models)).map(|_| table(random)).collect()),
    }
}

fn table(random: &mut Random) -> CountTable {
    match random.range(0, 3) {
        0 => CountTable::constant(u32::MAX - random.range(0, 1) as u32),
        1 => CountTable::by_count((0..random.range(0, 12)).map(|_| random.range(0, 30) as u32).collect()),
        _ => CountTable::constant(random.range(0, 12) as u32),
    }
}
