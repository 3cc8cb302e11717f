//! A decision step, a handoff, an admission, in cores like those of `benches/handoff.rs`.

use std::hint::black_box;

use tokenrouter_scheduler::router::{Fixed, Router, Single};
use tokenrouter_scheduler::{Handoff, NewRequest, Policy};

use crate::cores::{CYCLES, LARGE, SMALL, Shape, Shuttle, decide, prompt, round_trip};
use crate::{tokenrouter_counted, tokenrouter_scenario_ends};

/// Steps before the count starts, in which every buffer finds its size.
const WARM: u64 = 20;
const STEPS: u64 = 200;

/// Counts every scenario.
pub(crate) fn run() {
    for rows in [1, 16, 64] {
        step("one model", rows, Box::new(Single::new(SMALL)), Policy::Eager);
        step("pair, lookahead", rows, Box::new(Fixed::new(SMALL, LARGE, 0.35)), Policy::default());
        handoffs(rows);
    }
    for context in [128, 1024, 4096] {
        admissions(context);
    }
}

fn step(name: &str, rows: usize, router: Box<dyn Router>, policy: Policy) {
    let shape = Shape::of(rows);
    let results = shape.results();
    let mut core = shape.running(router, policy);
    (1..=WARM).for_each(|i| decide(&mut core, &results, 1_000 * i));
    tokenrouter_counted(&mut || {
        (WARM + 1..=WARM + STEPS).for_each(|i| decide(&mut core, &results, 1_000 * i));
    });
    tokenrouter_scenario_ends(&format!("decision step, {name}, {rows} rows"), "step", STEPS);
}

fn handoffs(rows: usize) {
    let shape = Shape::of(rows);
    let results = shape.results();
    let mut core = shape.running(Box::new(Shuttle { moves: true }), Policy::Eager);
    (0..WARM).for_each(|i| round_trip(&mut core, &results, i));
    let cycles = STEPS.min(u64::from(CYCLES) - WARM);
    tokenrouter_counted(&mut || (WARM..WARM + cycles).for_each(|i| round_trip(&mut core, &results, i)));
    tokenrouter_scenario_ends(&format!("handoff, {rows} rows"), "handoff", 2 * cycles * rows as u64);
}

/// From `submit` to a batch with the request in it; its prompt is in the cache but for the last page.
fn admissions(context: usize) {
    const TIMES: u64 = 20;
    let shape = Shape { requests: 1, context, cycles: 2, handoff: Handoff::Resume };
    let results = shape.results();
    let mut core = shape.running(Box::new(Single::new(SMALL)), Policy::Eager);
    for now in 0..TIMES {
        while core.batch(SMALL).is_some() {
            core.complete(now, SMALL, &results).expect("a batch in flight");
            core.launch(now);
        }
        black_box(core.drain_effects().count());
        let request = NewRequest { prompt: prompt(0, context), max_new_tokens: 1, ..NewRequest::default() };
        let mut request = Some(request);
        tokenrouter_counted(&mut || {
            let request = request.take().expect("counted once");
            black_box(core.submit(now, request).expect("room for one"));
            black_box(core.launch(now));
        });
    }
    tokenrouter_scenario_ends(&format!("admission, {context} tokens"), "request", TIMES);
}
