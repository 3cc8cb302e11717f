//! The scheduler's conformance kit on the router. Alone in its binary, because it replaces the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use margin_router::Margin;
use tokenrouter_scheduler::router::Threshold;
use tokenrouter_scheduler::{ModelId, Router, conformance};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system allocator unchanged; a constant thread-local cell allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from the system allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn it_keeps_every_rule_of_the_router_contract() {
    let thresholds = [Threshold::Always, Threshold::Never, Threshold::Value(0.0), Threshold::Value(0.5)];
    for threshold in thresholds {
        for (patience, max_stay) in [(0, 1), (4, 8), (255, 255)] {
            let build = || -> Box<dyn Router> {
                Box::new(Margin::new(ModelId(0), ModelId(1), threshold).with_stays(patience, max_stay))
            };
            conformance::check(build, 2).unwrap_or_else(|broken| panic!("{threshold}: {broken}"));
            conformance::check_allocations(build, &|| ALLOCATIONS.get())
                .unwrap_or_else(|broken| panic!("{threshold}: {broken}"));
        }
    }
    // The counter counts.
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1_u64)));
    assert_eq!(ALLOCATIONS.get(), before + 1);
}
