//! Where a request's time went: in which queues, in which batches, away.
//!
//! An admitted request is at one model at a time, so two sums per model and one over all of them say everything: what
//! it was away from a model after its first visit is what it spent anywhere since then, less what it spent there.

use crate::ids::{MAX_MODELS, Nanos};
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

/// Keeps the times of one request, at a constant cost per move. What a move touches lies close together.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    submitted: Nanos,
    /// The last move.
    since: Nanos,
    /// Time in queues and batches of all models, up to the last move.
    present: Nanos,
    stays: [Stay; MAX_MODELS],
}

/// A request at one model.
#[derive(Clone, Copy, Debug)]
struct Stay {
    queue: Nanos,
    compute: Nanos,
    /// [`Stopwatch::present`] at the first visit; [`NEVER`] before it.
    seen: Nanos,
}

const NEVER: Nanos = Nanos::MAX;

impl Stopwatch {
    pub(crate) fn new(submitted: Nanos) -> Self {
        let stays = [Stay { queue: 0, compute: 0, seen: NEVER }; MAX_MODELS];
        Self { submitted, since: submitted, present: 0, stays }
    }

    /// Nanoseconds since the request was submitted.
    pub(crate) fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.submitted)
    }

    /// The request goes from one state to another.
    #[inline]
    pub(crate) fn moved(&mut self, now: Nanos, from: State, to: State) {
        let passed = now.saturating_sub(self.since);
        self.since = now;
        match from {
            State::Ready(model) => {
                self.stays[model.index()].queue += passed;
                self.present += passed;
            }
            State::Running(model) => {
                self.stays[model.index()].compute += passed;
                self.present += passed;
            }
            State::Waiting | State::Finished => {}
        }
        if let State::Ready(model) = to {
            let seen = &mut self.stays[model.index()].seen;
            *seen = (*seen).min(self.present);
        }
    }

    /// Where the time went, up to the last move.
    pub(crate) fn spent(&self) -> Spent {
        let mut spent = Spent::default();
        for (model, stay) in self.stays.iter().enumerate().filter(|(_, stay)| stay.seen != NEVER) {
            spent.queue_ns[model] = stay.queue;
            spent.compute_ns[model] = stay.compute;
            spent.pending_ns[model] = self.present - stay.seen - stay.queue - stay.compute;
        }
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ModelId;

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
        let (mut watch, mut state) = (Stopwatch::new(7), State::Waiting);
        for (now, next) in moves {
            watch.moved(now, state, next);
            state = next;
        }
        let spent = watch.spent();
        assert_eq!(spent.queue_ns[..3], [5 + 3 + 4 + 1, 1, 0]);
        assert_eq!(spent.compute_ns[..3], [20 + 6, 100, 0]);
        assert_eq!(spent.pending_ns[..3], [101, 3 + 4 + 6 + 1, 0]);
        assert_eq!((watch.age(211), spent.waiting(204)), (204, 3 + 61));
    }

    #[test]
    fn a_clock_that_goes_back_counts_nothing() {
        let mut watch = Stopwatch::new(100);
        watch.moved(90, State::Waiting, State::Ready(ModelId(0)));
        watch.moved(80, State::Ready(ModelId(0)), State::Finished);
        assert_eq!((watch.spent(), watch.age(50)), (Spent::default(), 0));
    }
}
