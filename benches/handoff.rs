//! What the scheduler costs: a decision step, a handoff, an admission.
//!
//! Beside them, in the same run, what a server does that treats the handoff as a new request (in the real `Core` as an
//! ablation, and the bare prefix match: copy the tokens, hash them block by block, look the blocks up), and the floor
//! of a message between two threads. `cargo bench --bench handoff`; `docs/scheduling-costs.md` has the figures.

#[path = "support/cores.rs"]
mod cores;
#[path = "support/setup.rs"]
mod setup;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_scheduler::router::{Fixed, Single};
use tokenrouter_scheduler::{Core, Handoff, NewRequest, PAGE_TOKENS, Policy, RowResult};

use crate::cores::{CYCLES, LARGE, SMALL, Shape, Shuttle, decide, prompt, round_trip};

/// Cycles over long contexts, which shall not grow much.
const FEW_CYCLES: u32 = 50;
const CONTEXTS: [usize; 3] = [128, 1024, 4096];

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
    config = setup::samples(20);
    targets = decision_step, handoff, verdict_to_ready, ablation, admission, readmission, channel
}
criterion_main!(benches);
