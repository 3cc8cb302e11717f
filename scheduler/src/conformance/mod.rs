//! The conformance kit: every router must pass [`check`] and [`check_allocations`], the built-in ones and anyone's.
//!
//! It looks for what would make an answer depend on the schedule (hidden state, the order or grouping of rows, the
//! request's name), for destinations out of reach or outside of what `may_visit` had said, for routers that circle
//! without committing a token or do not finish when everything is routed one way, for budgets that are not kept, and
//! for calls that allocate.

mod allocations;
mod rows;
#[cfg(test)]
mod tests;
mod walks;

pub use allocations::check_allocations;

use crate::ids::{MAX_MODELS, ModelSet};
use crate::router::{RouteRow, Router, Threshold};
use crate::sim::Random;
use std::fmt;

/// Batches of random rows per check.
const BATCHES: usize = 60;

/// A rule of the router contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The entry is in the reach and the reach within the models; so is where a request starts.
    Reach,
    /// Every destination is in the reach.
    Destinations,
    /// Equal rows give equal answers, on one instance and on two.
    Determinism,
    /// A row's answer depends on no other row, on no order, no grouping and no request name.
    Independence,
    /// What `receive` needs is in the payload, it leaves the count of committed tokens alone, and the bytes of
    /// [`Budgeted`](crate::router::Budgeted) stay zero.
    Payload,
    /// Some candidate is kept before long, and every answer ends.
    Progress,
    /// A request is never sent where `may_visit` has said it cannot go.
    MayVisit,
    /// With a budget, other models write no more than it allows, at any token.
    Budget,
    /// Nothing that is asked per token allocates.
    Allocation,
}

/// A rule that a router breaks, with an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

impl std::error::Error for Violation {}

fn require(rule: Rule, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { rule, detail: detail() }) }
}

/// Checks the routers that `factory` builds, for a system of `models` models. Every call must build an equal,
/// fresh router. The checks are seeded: they find the same violation every time.
pub fn check(factory: impl Fn() -> Box<dyn Router>, models: usize) -> Result<(), Violation> {
    let router = factory();
    check_reach(&*router, models)?;
    let mut random = Random::new(0x7e57);
    for _ in 0..BATCHES {
        rows::check_entry(&mut random, &*router, &*factory())?;
        for model in router.reach().iter() {
            let rows: Vec<RouteRow> =
                (0..random.size(1, 12)).map(|_| rows::random_row(&mut random, &*router, model)).collect();
            let to = rows::route(&*router, model, &rows);
            let (twin, peer) = (factory(), factory());
            rows::check_batch(&*router, &*twin, model, &rows, &to)?;
            for (row, &to) in rows.iter().zip(&to).filter(|&(_, &to)| to != model) {
                rows::check_handoff([&*router, &*twin, &*peer], row, to)?;
            }
        }
    }
    walks::check_walks(&factory)?;
    walks::check_one_way(&factory)
}

fn check_reach(router: &dyn Router, models: usize) -> Result<(), Violation> {
    let (entry, reach) = (router.entry(), router.reach());
    let detail = || format!("entry {entry:?} and reach {reach:?} with {models} models");
    let fits = models <= MAX_MODELS && reach.is_subset(ModelSet::first(models)) && reach.contains(entry);
    require(Rule::Reach, fits, detail)
}

/// What requests bring, as far as the router accepts it.
fn thresholds(router: &dyn Router) -> Vec<Option<Threshold>> {
    let values = [f32::NEG_INFINITY, -1.0, 0.0, 0.03, 0.5, 1.0, 2.0, f32::INFINITY];
    let numbers = values.into_iter().map(Threshold::Value);
    let all = [Threshold::Always, Threshold::Never].into_iter().chain(numbers);
    [None].into_iter().chain(all.filter(|&t| router.accepts(t)).map(Some)).collect()
}
