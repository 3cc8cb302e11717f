//! What will happen when, apart from the ends of steps.

use crate::ids::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// The n-th change of the spec.
    Change(usize),
    /// The n-th conversation of an open workload starts.
    Open(u64),
    /// Request n of the trace arrives.
    Traced(usize),
    /// The client sends its next request.
    Ask(usize),
    /// The client of the request has waited long enough for its first token.
    Impatient(usize),
}

/// Items by time; those of one time in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Nanos, u64, Item)>>,
    added: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Nanos, item: Item) {
        self.added += 1;
        self.heap.push(Reverse((at, self.added, item)));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Forgets items at the front that will make no difference.
    pub(super) fn skip_while(&mut self, stale: impl Fn(Item) -> bool) {
        while self.heap.peek().is_some_and(|Reverse((.., item))| stale(*item)) {
            self.heap.pop();
        }
    }

    /// Takes the next item that is due.
    pub(super) fn take(&mut self, now: Nanos) -> Option<Item> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., item))| item)
    }
}
