//! What the scheduler costs: a decision step, a handoff, an admission.
//!
//! Beside them, in the same run, what a server does that treats the handoff as a new request (in the real `Core` as an
//! ablation, and the bare prefix match: copy the tokens, hash them block by block, look the blocks up), and the floor
//! of a message between two threads. `cargo bench --bench handoff`; `docs/scheduling-costs.md` has the figures.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_scheduler::router::{Fixed, Router, SignalSet, Single, StepView};
use tokenrouter_scheduler::{
    Core, CoreConfig, Handoff, ModelId, ModelLimits, ModelSet, NewRequest, PAGE_TOKENS, Policy, RouteId,
    RowResult,
};

const SMALL: ModelId = ModelId(0);
const LARGE: ModelId = ModelId(1);
/// Cycles per measured batch: long enough that the set-up does not show.
const CYCLES: u32 = 500;
/// Cycles over long contexts, which shall not grow much.
const FEW_CYCLES: u32 = 50;
const CONTEXTS: [usize; 3] = [128, 1024, 4096];

/// Sends every request to the other model after every token, or none; the candidate is kept. Its own work is next to
/// nothing, so what is measured is the scheduler.
struct Shuttle {
    moves: bool,
}

impl Router for Shuttle {
    fn name(&self) -> &str {
        "shuttle"
    }
    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }
    fn entry(&self) -> ModelId {
        SMALL
    }
    fn reach(&self) -> ModelSet {
        ModelSet::first(2)
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        if self.moves {
            to.fill(if step.model == SMALL { LARGE } else { SMALL });
        }
    }
}

/// What a measured core looks like.
#[derive(Clone, Copy)]
struct Shape {
    requests: usize,
    context: usize,
    cycles: u32,
    handoff: Handoff,
}

impl Shape {
    fn of(requests: usize) -> Self {
        Self { requests, context: 128, cycles: CYCLES, handoff: Handoff::Resume }
    }

    fn results(&self) -> Vec<RowResult> {
        vec![RowResult { token: 3, ..RowResult::default() }; self.requests]
    }

    /// The requests are admitted, and all are in the small model's batch in flight.
    fn running(&self, router: Box<dyn Router>, policy: Policy) -> Core {
        let Shape { requests, context, .. } = *self;
        let limits = ModelLimits { max_batch_rows: requests, max_step_tokens: requests * 2 * context };
        let lifetime = context + 2 * self.cycles as usize;
        let config = CoreConfig {
            models: vec![limits; 2],
            pages: requests * lifetime.div_ceil(PAGE_TOKENS),
            context_len: lifetime,
            max_waiting: requests,
            max_running: requests,
            eos_ids: vec![],
            guard: u64::MAX / 2,
            policy,
            prefix_cache: true,
            reserve_pages: 0,
            planner: None,
            handoff: self.handoff,
        };
        let mut core = Core::new(config, vec![router]).expect("a legal configuration");
        for client in 0..requests as u64 {
            let request = NewRequest {
                client,
                prompt: prompt(client as u32, context),
                max_new_tokens: 2 * self.cycles,
                route: RouteId(0),
                seed: client,
                ..NewRequest::default()
            };
            core.submit(0, request).expect("room for every request");
        }
        core.launch(0);
        core
    }
}

/// A prompt that shares nothing with another client's.
fn prompt(client: u32, context: usize) -> Vec<u32> {
    (0..context as u32).map(|i| i ^ (client << 16)).collect()
}

/// The end of every batch in flight at once, and the launches after it: a decision step of the whole system.
fn decide(core: &mut Core, results: &[RowResult], now: u64) {
    for model in [LARGE, SMALL] {
        let rows = core.batch(model).map_or(0, |batch| batch.rows.len());
        if rows > 0 {
            core.complete(now, model, &results[..rows]).expect("a batch in flight");
        }
    }
    core.launch(now);
    black_box(core.drain_effects().count());
}

fn decision_step(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision_step");
    for requests in [1_usize, 16, 64, 256] {
        let shape = Shape::of(requests);
        let results = shape.results();
        group.throughput(Throughput::Elements(u64::from(CYCLES)));
        let mut run = |name: &str, build: &dyn Fn() -> Core| {
            group.bench_function(BenchmarkId::new(name, requests), |b| {
                b.iter_batched_ref(
                    build,
                    |core| (1..=u64::from(CYCLES)).for_each(|i| decide(core, &results, 1_000 * i)),
                    BatchSize::PerIteration,
                );
            });
        };
        // One model, and the pair under the default policy with a third of the requests on the move.
        run("complete_and_launch", &|| shape.running(Box::new(Single::new(SMALL)), Policy::Eager));
        run("pair_lookahead", &|| shape.running(Box::new(Fixed::new(SMALL, LARGE, 0.35)), Policy::default()));
    }
    group.finish();
}

/// One step of the small model whose rows all go to the large one, and one step there whose rows all return.
fn round_trip(core: &mut Core, results: &[RowResult], now: u64) {
    core.complete(now, SMALL, results).expect("a batch in flight");
    core.launch(now);
    core.complete(now, LARGE, results).expect("a batch in flight");
    core.launch(now);
    black_box(core.drain_effects().count());
}

/// A handoff with everything around it: the completion that it is a part of, and the launch at the peer.
fn handoff(c: &mut Criterion) {
    let mut group = c.benchmark_group("handoff");
    for requests in [1_usize, 16, 64] {
        let shape = Shape::of(requests);
        let results = shape.results();
        group.throughput(Throughput::Elements(u64::from(2 * CYCLES) * requests as u64));
        group.bench_function(BenchmarkId::new("resume_from_pending", requests), |b| {
            b.iter_batched_ref(
                || shape.running(Box::new(Fixed::new(SMALL, LARGE, 1.0)), Policy::Eager),
                |core| (0..CYCLES).for_each(|i| round_trip(core, &results, u64::from(i))),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// The shortest times of two alternatives in ns, run in turns: the machine's noise hits both.
fn fastest(mut run: impl FnMut(usize) -> Duration) -> [f64; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..50 {
        for (which, best) in best.iter_mut().enumerate() {
            *best = run(which).min(*best);
        }
    }
    best.map(|time| time.as_nanos() as f64)
}

/// Time spent in `Core::complete` alone, summed over `steps` steps, all of whose rows move or stay.
fn completing(requests: usize, moves: bool, steps: u64) -> Duration {
    let shape = Shape::of(requests);
    let results = shape.results();
    let (mut total, mut done) = (Duration::ZERO, 0);
    while done < steps {
        let mut core = shape.running(Box::new(Shuttle { moves }), Policy::Eager);
        let batch = (steps - done).min(u64::from(2 * CYCLES) - 1);
        for i in 1..=batch {
            let model = if core.batch(SMALL).is_some() { SMALL } else { LARGE };
            let start = Instant::now();
            core.complete(i, model, &results).expect("a batch in flight");
            total += start.elapsed();
            core.launch(i);
            black_box(core.drain_effects().count());
        }
        done += batch;
    }
    total
}

/// The completion of a step whose rows all stay, and of one whose rows all move on. The difference divided by the
/// rows is the handoff itself, from the verdict to ready at the peer; it is printed from interleaved runs, the
/// fastest of each.
fn verdict_to_ready(c: &mut Criterion) {
    let mut group = c.benchmark_group("verdict_to_ready");
    for requests in [1_usize, 16, 64] {
        for (name, moves) in [("all_stay", false), ("all_move", true)] {
            group.throughput(Throughput::Elements(requests as u64));
            group.bench_function(BenchmarkId::new(name, requests), |b| {
                b.iter_custom(|steps| completing(requests, moves, steps));
            });
        }
        let steps = u64::from(2 * CYCLES) - 1;
        let rows = (steps * requests as u64) as f64;
        let [stay, go] = fastest(|which| completing(requests, which == 1, steps)).map(|ns| ns / rows);
        let more = go - stay;
        println!(
            "verdict_to_ready/{requests}: {stay:.1} ns a row stays, {go:.1} ns moves, handoff {more:.1} ns"
        );
    }
    group.finish();
}

/// A request whose context is in both models' caches.
fn there_and_back(context: usize, handoff: Handoff) -> (Core, Vec<RowResult>) {
    let shape = Shape { requests: 1, context, cycles: FEW_CYCLES, handoff };
    let results = shape.results();
    let mut core = shape.running(Box::new(Shuttle { moves: true }), Policy::Eager);
    round_trip(&mut core, &results, 0);
    (core, results)
}

fn go_on((core, results): &mut (Core, Vec<RowResult>)) {
    (1..FEW_CYCLES).for_each(|i| round_trip(core, results, u64::from(i)));
}

/// The ablation in the real core: the same handoff by resume and as a new request, from the verdict to the batch at
/// the peer. The fastest of each, run in turns, are printed beside the statistics.
fn ablation(c: &mut Criterion) {
    let mut group = c.benchmark_group("handoff_by_context");
    let handoffs = 2 * u64::from(FEW_CYCLES - 1);
    let ways = [("resume", Handoff::Resume), ("readmit", Handoff::Readmit)];
    for context in CONTEXTS {
        for (name, handoff) in ways {
            group.throughput(Throughput::Elements(handoffs));
            group.bench_function(BenchmarkId::new(name, context), |b| {
                b.iter_batched_ref(|| there_and_back(context, handoff), go_on, BatchSize::PerIteration);
            });
        }
        let [resume, readmit] = fastest(|which| {
            let mut state = there_and_back(context, ways[which].1);
            let start = Instant::now();
            go_on(&mut state);
            start.elapsed()
        })
        .map(|ns| ns / handoffs as f64);
        let ratio = readmit / resume;
        println!(
            "handoff_by_context/{context}: resume {resume:.0} ns, readmit {readmit:.0} ns, ratio {ratio:.1}"
        );
    }
    group.finish();
}

/// From `submit` to a batch with the request in it, when the whole prompt is in the cache but its last page.
fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("admission");
    for context in CONTEXTS {
        let shape = Shape { requests: 1, context, cycles: 2, handoff: Handoff::Resume };
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("submit_to_launch", context), |b| {
            b.iter_custom(|times| {
                let mut core = shape.running(Box::new(Single::new(SMALL)), Policy::Eager);
                let results = shape.results();
                let mut total = Duration::ZERO;
                for now in 0..times {
                    while core.batch(SMALL).is_some() {
                        core.complete(now, SMALL, &results).expect("a batch in flight");
                        core.launch(now);
                    }
                    black_box(core.drain_effects().count());
                    let request =
                        NewRequest { prompt: prompt(0, context), max_new_tokens: 1, ..NewRequest::default() };
                    let start = Instant::now();
                    black_box(core.submit(now, request).expect("room for one"));
                    black_box(core.launch(now));
                    total += start.elapsed();
                }
                total
            });
        });
    }
    group.finish();
}

/// The bare prefix match of such a server over the whole context, without a scheduler around it.
fn readmission(c: &mut Criterion) {
    let mut group = c.benchmark_group("handoff_as_new_request");
    for context in CONTEXTS {
        let tokens: Vec<u32> = (0..context as u32).collect();
        let mut cache = HashMap::new();
        match_prefix(&tokens, |hash| {
            cache.insert(hash, ());
            true
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("copy_and_prefix_match", context), |b| {
            b.iter(|| {
                let copy = black_box(&tokens).clone();
                black_box(match_prefix(&copy, |hash| cache.contains_key(&hash)))
            });
        });
    }
    group.finish();
}

/// How many leading blocks are known, by a chain of block hashes.
fn match_prefix(tokens: &[u32], mut known: impl FnMut(u64) -> bool) -> usize {
    let mut chain = 0_u64;
    tokens
        .chunks_exact(PAGE_TOKENS)
        .take_while(|block| {
            let mut hasher = DefaultHasher::new();
            chain.hash(&mut hasher);
            block.hash(&mut hasher);
            chain = hasher.finish();
            known(chain)
        })
        .count()
}

/// The floor of moving anything between two threads that are awake.
fn channel(c: &mut Criterion) {
    let mut group = c.benchmark_group("message_between_threads");
    group.throughput(Throughput::Elements(2));
    group.bench_function("round_trip_spinning", |b| {
        let (to, there) = std::sync::mpsc::sync_channel::<u64>(1);
        let (back, here) = std::sync::mpsc::sync_channel::<u64>(1);
        let echo = std::thread::spawn(move || {
            while let Ok(message) = there.recv() {
                if back.send(message).is_err() {
                    break;
                }
            }
        });
        b.iter(|| {
            to.send(1_u64).expect("the echo thread lives");
            loop {
                match here.try_recv() {
                    Ok(message) => break black_box(message),
                    Err(_) => std::hint::spin_loop(),
                }
            }
        });
        drop(to);
        echo.join().expect("the echo thread ends");
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = decision_step, handoff, verdict_to_ready, ablation, admission, readmission, channel
}
criterion_main!(benches);
