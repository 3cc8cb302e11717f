//! Nothing that the core asks per token may allocate.

use super::rows::{arrival, random_row};
use super::{BATCHES, Rule, Violation, require};
use crate::event::Usage;
use crate::ids::ModelId;
use crate::router::{EntryRow, Payload, ReachRow, RouteRow, Router, StepView, Verdict, Visit};
use crate::sim::Random;

/// Checks that the routers of `factory` allocate nothing in what is asked per request or per token. `allocations`
/// returns how many allocations this thread has made so far: this crate cannot count them, a test with a counting
/// allocator can. While the router works nothing else happens on the thread.
pub fn check_allocations(
    factory: impl Fn() -> Box<dyn Router>,
    allocations: &dyn Fn() -> u64,
) -> Result<(), Violation> {
    let router = factory();
    let mut random = Random::new(0xa110c);
    for _ in 0..BATCHES {
        for model in router.reach().iter() {
            let rows: Vec<RouteRow> =
                (0..random.size(1, 12)).map(|_| random_row(&mut random, &*router, model)).collect();
            let mut to = vec![model; rows.len()];
            let before = allocations();
            ask(&*router, model, &rows, &mut to);
            let made = allocations() - before;
            require(Rule::Allocation, made == 0, || format!("{made} allocations for {rows:?}"))?;
        }
    }
    Ok(())
}

/// All that a core asks about the rows of a step.
fn ask(router: &dyn Router, model: ModelId, rows: &[RouteRow], to: &mut [ModelId]) {
    let usage = Usage::default();
    router.route(&StepView { model, rows }, to);
    for (row, &to) in rows.iter().zip(&*to) {
        let mut payload = Payload::default();
        let verdict = match to == model {
            true => Verdict::Keep,
            false => router.send(row, to, &mut payload),
        };
        let mut visit = Visit::default();
        router.receive(&arrival(row, to, verdict), model, &payload, &mut visit);
        router.may_visit(&ReachRow {
            model: to,
            generated: row.generated,
            threshold: row.threshold,
            budget: row.budget,
            max_new_tokens: 300,
            visit,
            usage: &usage,
        });
        router.entry_for(&EntryRow {
            position: row.position,
            threshold: row.threshold,
            budget: row.budget,
            query_score: Some(row.signals.scores[0]),
            seed: row.seed,
            choice: row.choice,
        });
    }
}
