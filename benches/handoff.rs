//! What a handoff costs in the scheduler: route, send, receive, ready at the peer, launch there.
//!
//! Beside it, in the same run, what a server does that treats the handoff as a new request: copy the tokens, hash
//! them block by block and look the blocks up (the prefix match of standard serving), and the floor of a message
//! between two threads. `cargo bench --bench handoff`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_scheduler::router::{Fixed, Router, Single};
use tokenrouter_scheduler::{
    Core, CoreConfig, ModelId, ModelLimits, NewRequest, PAGE_TOKENS, Policy, RouteId, RowResult,
};

const SMALL: ModelId = ModelId(0);
const LARGE: ModelId = ModelId(1);
/// Cycles per measured batch: long enough that the set-up does not show.
const CYCLES: u32 = 500;

/// A core with `requests` admitted requests, all in the small model's batch in flight.
fn running_core(requests: usize, context: usize, router: Box<dyn Router>) -> Core {
    let limits = ModelLimits { max_batch_rows: requests, max_step_tokens: requests * context };
    let lifetime = context + 2 * CYCLES as usize;
    let config = CoreConfig {
        models: vec![limits; 2],
        pages: requests * lifetime.div_ceil(PAGE_TOKENS),
        context_len: lifetime,
        max_waiting: requests,
        max_running: requests,
        eos_ids: vec![],
        guard: u64::MAX / 2,
        policy: Policy::Eager,
        prefix_cache: true,
        reserve_pages: 0,
        planner: None,
    };
    let mut core = Core::new(config, vec![router]).expect("a legal configuration");
    for client in 0..requests as u64 {
        let request = NewRequest {
            client,
            prompt: vec![7; context],
            max_new_tokens: 2 * CYCLES,
            route: RouteId(0),
            seed: client,
            ..NewRequest::default()
        };
        core.submit(0, request).expect("room for every request");
    }
    core.launch(0);
    core
}

/// One step of the small model whose rows all go to the large one, and one step there whose rows all return.
fn round_trip(core: &mut Core, results: &[RowResult], now: u64) {
    core.complete(now, SMALL, results).expect("a batch in flight");
    core.launch(now);
    core.complete(now, LARGE, results).expect("a batch in flight");
    core.launch(now);
    black_box(core.drain_effects().count());
}

fn handoff(c: &mut Criterion) {
    let mut group = c.benchmark_group("handoff");
    for requests in [1_usize, 16, 64] {
        let results = vec![RowResult { token: 3, ..RowResult::default() }; requests];
        group.throughput(Throughput::Elements(u64::from(2 * CYCLES) * requests as u64));
        group.bench_function(BenchmarkId::new("resume_from_pending", requests), |b| {
            b.iter_batched_ref(
                || running_core(requests, 128, Box::new(Fixed::new(SMALL, LARGE, 1.0))),
                |core| (0..CYCLES).for_each(|i| round_trip(core, &results, u64::from(i))),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn stay(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision_step");
    for requests in [1_usize, 16, 64] {
        let results = vec![RowResult { token: 3, ..RowResult::default() }; requests];
        group.throughput(Throughput::Elements(u64::from(CYCLES)));
        group.bench_function(BenchmarkId::new("complete_and_launch", requests), |b| {
            b.iter_batched_ref(
                || running_core(requests, 128, Box::new(Single::new(SMALL))),
                |core| {
                    for i in 0..u64::from(CYCLES) {
                        core.complete(i, SMALL, &results).expect("a batch in flight");
                        core.launch(i);
                        black_box(core.drain_effects().count());
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// The peer: a handoff as a new request with a block-hash prefix match over the whole context.
fn readmission(c: &mut Criterion) {
    let mut group = c.benchmark_group("handoff_as_new_request");
    for context in [128_usize, 1024, 4096] {
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
    targets = handoff, stay, readmission, channel
}
criterion_main!(benches);
