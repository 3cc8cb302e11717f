//! The search for the best thresholds where there are too many vectors to try them all: a climb.

use std::collections::BTreeMap;

use super::error::PlanError;
use super::rule::LaunchRule;
use super::system::System;
use super::thresholds::{Evaluated, Limits, Table, closed_form, evaluate};

/// Climbs from the closed form: one threshold at a time up or down, in steps of N/16, halved where nothing improves.
/// The rate had one hill in every case studied (section 7 of the study), which is no proof: the result is the best
/// of the vectors evaluated. They are the rows of the table, in lexicographic order.
///
/// # Errors
/// A vector that cannot be evaluated within `limits.states`, or more than `limits.vectors` evaluations.
pub fn search_climbing(system: &System, slowdown: f64, limits: Limits) -> Result<Table, PlanError> {
    let mut climb = Climb { system, slowdown, limits, seen: BTreeMap::new() };
    let mut at = start(system);
    let mut rate = climb.rate(&at)?;
    let mut step = (system.requests() / 16).max(1);
    loop {
        let mut moved = false;
        for next in neighbours(at.clone(), step, system.requests()) {
            let found = climb.rate(&next)?;
            if found > rate {
                (at, rate, moved) = (next, found, true);
                break;
            }
        }
        if moved {
            continue;
        }
        if step == 1 {
            break;
        }
        step /= 2;
    }
    Table::new(climb.seen.into_values().collect())
}

/// One for the entry model, the closed form for its peers, cut to a feasible vector.
fn start(system: &System) -> Vec<u32> {
    let (entry, n) = (system.entry(), system.requests());
    let mut slack = n - 1;
    let threshold = |i: usize| {
        if i == entry {
            return 1;
        }
        let (own, peer) = (f64::from(system.step(entry, 1)), f64::from(system.step(i, 1)));
        let wanted = closed_form(system.probability(entry, i), own, peer, n);
        let b = wanted.min(slack + 1);
        slack -= b - 1;
        b
    };
    (0..system.models()).map(threshold).collect()
}

fn neighbours(at: Vec<u32>, step: u32, requests: u32) -> impl Iterator<Item = Vec<u32>> {
    let used: u32 = at.iter().map(|b| b - 1).sum();
    (0..2 * at.len()).rev().filter_map(move |way| {
        let (i, up) = (way / 2, way % 2 == 1);
        let fits = if up { used + step < requests } else { at[i] > step };
        let mut next = at.clone();
        next[i] = if up { at[i] + step } else { at[i].saturating_sub(step) };
        fits.then_some(next)
    })
}

struct Climb<'a> {
    system: &'a System,
    slowdown: f64,
    limits: Limits,
    seen: BTreeMap<Vec<u32>, Evaluated>,
}

impl Climb<'_> {
    fn rate(&mut self, thresholds: &[u32]) -> Result<f64, PlanError> {
        if let Some(row) = self.seen.get(thresholds) {
            return Ok(row.performance.tokens_per_s);
        }
        let limit = self.limits.vectors;
        if self.seen.len() >= limit {
            return Err(PlanError::TooManyVectors { vectors: limit + 1, limit });
        }
        let rule = LaunchRule::Threshold(thresholds.to_vec());
        let performance = evaluate(self.system, &rule, self.slowdown, self.limits.states)?;
        let rate = performance.tokens_per_s;
        let thresholds = thresholds.to_vec();
        self.seen.insert(thresholds.clone(), Evaluated { thresholds, performance });
        Ok(rate)
    }
}
