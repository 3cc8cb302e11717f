//! Where a request's time went: in which queues, in which batches, away.
//!
//! An admitted request is at one model at a time, so two sums per model and one over all of them say everything: what
//! it was away from a model after its first visit is what it spent anywhere since then, less what it spent there.

use crate::ids::{MAX_MODELS, ModelId, Nanos};
use crate::request::State;

/// When things happened to a request, in nanoseconds after it was submitted; none for what did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// It got its pages, for the first time.
    pub admitted: Option<Nanos>,
    /// Its first token was committed.
    pub first_token: Option<Nanos>,
    /// It ended.
    pub finished: Option<Nanos>,
}

/// How long a request was where, per model in nanoseconds. While it is not admitted (at first, and after it lost its
/// pages) none of these grows: [`Spent::waiting`] is the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Ready in the model's queue.
    pub queue_ns: [Nanos; MAX_MODELS],
    /// At another model after it had visited this one.
    pub pending_ns: [Nanos; MAX_MODELS],
    /// In the model's batches.
    pub compute_ns: [Nanos; MAX_MODELS],
}

impl Spent {
    /// The part of `whole` nanoseconds in which the request was not admitted.
    pub fn waiting(&self, whole: Nanos) -> Nanos {
        let admitted: Nanos = self.queue_ns.iter().chain(&self.compute_ns).sum();
        whole.saturating_sub(admitted)
    }
}

/// Keeps the times of one request, at a constant cost per move.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    submitted: Nanos,
    /// The last move.
    since: Nanos,
    /// Time in queues and batches of all models, up to the last move.
    present: Nanos,
    /// `present` at the first visit of each model; [`NEVER`] before it.
    seen: [Nanos; MAX_MODELS],
}

const NEVER: Nanos = Nanos::MAX;

impl Stopwatch {
    pub(crate) fn new(submitted: Nanos) -> Self {
        Self { submitted, since: submitted, present: 0, seen: [NEVER; MAX_MODELS] }
    }

    /// Nanoseconds since the request was submitted.
    pub(crate) fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.submitted)
    }

    /// The request goes from one state to another.
    #[inline]
    pub(crate) fn moved(&mut self, now: Nanos, from: State, to: State, spent: &mut Spent) {
        let passed = now.saturating_sub(self.since);
        self.since = now;
        match from {
            State::Ready(model) => spent.queue_ns[model.index()] += passed,
            State::Running(model) => spent.compute_ns[model.index()] += passed,
            State::Waiting | State::Finished => {}
        }
        self.present += if from.owner().is_some() { passed } else { 0 };
        if let State::Ready(ModelId(model)) = to {
            let seen = &mut self.seen[usize::from(model)];
            *seen = (*seen).min(self.present);
        }
    }

    /// The request is over: what it was away from the models it has visited.
    pub(crate) fn stop(&self, spent: &mut Spent) {
        for (model, &seen) in self.seen.iter().enumerate().filter(|(_, seen)| **seen != NEVER) {
            let there = spent.queue_ns[model] + spent.compute_ns[model];
            spent.pending_ns[model] = self.present - seen - there;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nanosecond_is_at_one_model_or_waited() {
        let (a, b) = (ModelId(0), ModelId(1));
        let moves = [
            (10, State::Ready(a)),
            (15, State::Running(a)),
            (35, State::Ready(b)),
            (36, State::Running(b)),
            (136, State::Ready(a)),
            // Preempted, and admitted again.
            (139, State::Waiting),
            (200, State::Ready(a)),
            (204, State::Running(a)),
            (210, State::Ready(a)),
            (211, State::Finished),
        ];
        let (mut watch, mut spent, mut state) = (Stopwatch::new(7), Spent::default(), State::Waiting);
        for (now, next) in moves {
            watch.moved(now, state, next, &mut spent);
            state = next;
        }
        watch.stop(&mut spent);
        assert_eq!(spent.queue_ns[..3], [5 + 3 + 4 + 1, 1, 0]);
        assert_eq!(spent.compute_ns[..3], [20 + 6, 100, 0]);
        assert_eq!(spent.pending_ns[..3], [101, 3 + 4 + 6 + 1, 0]);
        assert_eq!((watch.age(211), spent.waiting(204)), (204, 3 + 61));
    }

    #[test]
    fn a_clock_that_goes_back_counts_nothing() {
        let (mut watch, mut spent) = (Stopwatch::new(100), Spent::default());
        watch.moved(90, State::Waiting, State::Ready(ModelId(0)), &mut spent);
        watch.moved(80, State::Ready(ModelId(0)), State::Finished, &mut spent);
        watch.stop(&mut spent);
        assert_eq!((spent, watch.age(50)), (Spent::default(), 0));
    }
}
