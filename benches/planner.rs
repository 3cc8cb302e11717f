//! What a plan costs: the search for the best launch rule for one number of requests, and a whole table.
//!
//! The target is a plan for N <= 64 in under 10 ms of one slow core. `cargo bench --bench planner`.

#[path = "support/setup.rs"]
mod setup;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokenrouter_scheduler::planner::{
    Draws, ForecastSpec, PlanTable, SearchSpec, Setting, forecast, search_policy,
};
use tokenrouter_scheduler::{LatencyTable, ModelId, Policy};

/// The paper's pair.
fn pair(slowdown: f64) -> Setting {
    Setting {
        routing: vec![vec![0.65, 0.35], vec![1.0, 0.0]],
        commit: vec![vec![1.0, 0.0]; 2],
        latency: [6_000_000, 27_900_000].map(LatencyTable::constant).to_vec(),
        slowdown: vec![slowdown; 2],
        parts: vec![Vec::new(); 2],
        entry: ModelId(0),
        max_batch: vec![64; 2],
    }
}

/// The paper's three models.
fn three(slowdown: f64) -> Setting {
    Setting {
        routing: vec![vec![0.5, 0.3, 0.2]; 3],
        commit: vec![vec![1.0; 3]; 3],
        latency: [6_000_000, 12_000_000, 27_900_000].map(LatencyTable::constant).to_vec(),
        slowdown: vec![slowdown; 3],
        parts: vec![Vec::new(); 3],
        entry: ModelId(0),
        max_batch: vec![64; 3],
    }
}

fn settings() -> [(&'static str, Setting); 4] {
    [("2", pair(1.0)), ("2-shared", pair(1.5)), ("3", three(1.0)), ("3-shared", three(1.5))]
}

fn search(c: &mut Criterion) {
    for (limit, group) in [(None, "plan"), (Some(75_000_000), "plan_with_p99_limit")] {
        let spec = SearchSpec { p99_limit: limit, ..SearchSpec::default() };
        let mut group = c.benchmark_group(group);
        for (name, setting) in settings() {
            for requests in [8, 16, 64] {
                let id = BenchmarkId::new(name, requests);
                group.bench_function(id, |b| b.iter(|| search_policy(black_box(&setting), requests, &spec)));
            }
        }
        group.finish();
    }
}

fn table(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan_table_64");
    for (name, setting) in settings() {
        let spec = SearchSpec::default();
        group.bench_function(name, |b| b.iter(|| PlanTable::fill(black_box(&setting), 8, 64, &spec)));
    }
    group.finish();
}

fn one_forecast(c: &mut Criterion) {
    let mut group = c.benchmark_group("forecast_30k_rows");
    let setting = pair(1.5);
    let spec = ForecastSpec::default();
    let Ok(draws) = Draws::new(&setting, spec.request_steps, 1) else { return };
    for requests in [8, 64] {
        let run = || forecast(black_box(&setting), requests, &Policy::default(), &draws, spec);
        group.bench_function(BenchmarkId::from_parameter(requests), |b| b.iter(run));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = setup::samples(20);
    targets = search, table, one_forecast
}
criterion_main!(benches);
