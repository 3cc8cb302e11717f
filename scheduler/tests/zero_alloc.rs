//! A request that returns from Pending allocates nothing: no copy, no page, no prefix match.
//!
//! Alone in its binary, because it replaces the global allocator; one test, so that no other thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenrouter_scheduler::router::{Fixed, RStitch, Single};
use tokenrouter_scheduler::*;

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator with the same arguments; counting has no other effect.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls to the allocator (either way) and bytes allocated by `work`.
fn counted(work: impl FnOnce()) -> (usize, usize) {
    let before = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    work();
    (CALLS.load(Ordering::Relaxed) - before.0, BYTES.load(Ordering::Relaxed) - before.1)
}

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

fn core(rows: usize) -> Core {
    let config = CoreConfig {
        models: vec![ModelLimits { max_batch_rows: rows, max_step_tokens: 64 }; 2],
        pages: 256,
        context_len: 256,
        max_waiting: rows,
        max_running: rows,
        eos_ids: vec![2],
        guard: 1_000_000,
        policy: Policy::Eager,
        prefix_cache: true,
        reserve_pages: 2,
        planner: None,
        handoff: Handoff::default(),
    };
    let routes: Vec<Box<dyn Router>> = vec![
        Box::new(RStitch::new(A, B, Threshold::Value(0.03))),
        Box::new(Fixed::new(A, B, 1.0)),
        Box::new(Single::new(A)),
    ];
    Core::new(config, routes).unwrap()
}

fn results(rows: usize, entropy_norm: f32) -> Vec<RowResult> {
    let signals = Signals { entropy_norm, ..Signals::default() };
    vec![RowResult { token: 9, signals, fault: None }; rows]
}

/// Away to B with a dropped candidate and back with a kept one.
fn round_trip(core: &mut Core, rows: usize, certain: &[RowResult], uncertain: &[RowResult]) {
    for (model, results) in [(A, uncertain), (B, certain)] {
        assert!(core.launch(1).contains(model));
        assert_eq!(core.batch(model).map(|b| b.rows.len()), Some(rows));
        core.complete(2, model, results).unwrap();
        core.drain_effects().for_each(drop);
    }
}

#[test]
fn a_return_from_pending_allocates_nothing() {
    for route in [0, 1] {
        for rows in [1, 16] {
            let (certain, uncertain) = (results(rows, 0.0), results(rows, 0.5));
            let mut core = core(rows);
            for client in 0..rows as u64 {
                let new = NewRequest {
                    client,
                    prompt: vec![1; 3],
                    max_new_tokens: 100,
                    route: RouteId(route),
                    ..NewRequest::default()
                };
                core.submit(0, new).unwrap();
            }
            round_trip(&mut core, rows, &certain, &uncertain);
            let used = counted(|| {
                for _ in 0..20 {
                    round_trip(&mut core, rows, &certain, &uncertain);
                }
            });
            assert_eq!(used, (0, 0), "route {route}, {rows} rows: calls and bytes");
            // Not for the handoffs: for the tokens, at launch. 3 of the prompt, 21 of the answer, the last not fed.
            assert_eq!(core.counters().pages.leased, rows * 23_usize.div_ceil(PAGE_TOKENS));
            assert_eq!(core.counters().handoffs[1][0], 21 * rows as u64);
            core.audit();
        }
    }
    // The counter itself works.
    let (calls, bytes) = counted(|| drop(std::hint::black_box(vec![0u8; 100])));
    assert_eq!((calls, bytes), (2, 100));
}
