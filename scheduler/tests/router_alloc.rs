//! No built-in router allocates per token, within a budget or without.
//!
//! Alone in its binary, because it replaces the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tokenrouter_scheduler::Router;
use tokenrouter_scheduler::conformance::{Rule, check_allocations};
use tokenrouter_scheduler::router::{ParamValue, Registry, RouterSpec};

struct Counting;

thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });

// SAFETY: every call is passed on to the system allocator with the same arguments; counting has no other effect, and
// a thread-local cell that needs no destructor and no lazy start allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn build(name: &str, budget: Option<f64>) -> Box<dyn Router> {
    let mut params: Vec<(&str, ParamValue)> = match name {
        "fixed" | "query" => vec![("fraction", ParamValue::Float(0.5))],
        "single" | "me" => vec![],
        _ => vec![("threshold", ParamValue::Float(0.5))],
    };
    params.extend(budget.map(|share| ("max_llm_fraction", ParamValue::Float(share))));
    let params = params.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Registry::builtin().build(name, &RouterSpec { models: 2, params, ..RouterSpec::default() }).unwrap()
}

#[test]
fn no_builtin_router_allocates() {
    let names: Vec<String> = Registry::builtin().names().map(str::to_owned).collect();
    for name in &names {
        for budget in [None, Some(0.3)] {
            check_allocations(|| build(name, budget), &|| CALLS.get())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[test]
fn a_router_that_allocates_is_found() {
    use tokenrouter_scheduler::router::{SignalSet, StepView};
    use tokenrouter_scheduler::{ModelId, ModelSet};
    struct Boxing;
    impl Router for Boxing {
        fn name(&self) -> &str {
            "boxing"
        }
        fn signals(&self) -> SignalSet {
            SignalSet::NONE
        }
        fn entry(&self) -> ModelId {
            ModelId(0)
        }
        fn reach(&self) -> ModelSet {
            ModelSet::first(2)
        }
        fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
            let copy = std::hint::black_box(step.rows.to_vec());
            to.fill(ModelId((copy.len() % 2) as u8));
        }
    }
    let found = check_allocations(|| Box::new(Boxing), &|| CALLS.get());
    assert_eq!(found.err().map(|v| v.rule), Some(Rule::Allocation));
}
