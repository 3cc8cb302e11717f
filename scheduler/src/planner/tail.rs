//! Times between the tokens of one request: the simulation with identities, for the 99th percentile.

use crate::ids::{MAX_MODELS, Nanos};

/// Who waits where, in order of arrival, and when each last got a token.
pub(super) struct Tail {
    queues: Vec<Ring>,
    requests: Vec<Request>,
    /// Times between two tokens, in nanoseconds; tokens that come together are counted apart.
    gaps: Vec<f64>,
    together: u64,
    counts: bool,
}

/// What is known of a request.
#[derive(Clone, Copy, Default)]
struct Request {
    /// When it last got a token.
    last: f64,
    /// Parts of tokens that it is owed: commits are means.
    credit: f64,
}

/// A queue of request numbers with room for all of them; the requests in flight come first.
struct Ring {
    /// A power of two.
    slots: Vec<u32>,
    first: usize,
    end: usize,
}

impl Ring {
    fn push(&mut self, id: u32) {
        let mask = self.slots.len() - 1;
        self.slots[self.end & mask] = id;
        self.end = self.end.wrapping_add(1);
    }

    fn pop(&mut self) -> u32 {
        let mask = self.slots.len() - 1;
        let id = self.slots[self.first & mask];
        self.first = self.first.wrapping_add(1);
        id
    }
}

/// Rounding of sums of commits must not cost a token.
const WHOLE: f64 = 1.0 - 1e-9;
/// Tokens per row beyond this are no longer told apart.
const MOST_TOKENS: f64 = 1e6;

impl Tail {
    /// `waiting[i]` requests wait at model `i`.
    pub(super) fn new(waiting: &[usize]) -> Self {
        let requests: usize = waiting.iter().sum();
        let mut ids = 0..requests as u32;
        let ring = |&count: &usize| {
            let mut ring = Ring { slots: vec![0; requests.next_power_of_two()], first: 0, end: 0 };
            ids.by_ref().take(count).for_each(|id| ring.push(id));
            ring
        };
        Self {
            queues: waiting.iter().map(ring).collect(),
            requests: vec![Request::default(); requests],
            gaps: Vec::new(),
            together: 0,
            counts: false,
        }
    }

    /// Whether times count from now on.
    pub(super) fn count(&mut self, counts: bool) {
        self.counts = counts;
    }

    /// The first requests in flight at `model` finish at `now` and go to `to`.
    pub(super) fn deliver(&mut self, model: usize, to: &[u8], commit: &[f64; MAX_MODELS], now: f64) {
        for &to in to {
            let to = usize::from(to);
            let id = self.queues[model].pop();
            self.queues[to].push(id);
            let tokens = commit[to];
            if tokens > 0.0 {
                self.commit(id as usize, tokens, now);
            }
        }
    }

    fn commit(&mut self, id: usize, tokens: f64, now: f64) {
        let request = &mut self.requests[id];
        let credit = request.credit + tokens.min(MOST_TOKENS);
        if credit < WHOLE {
            request.credit = credit;
            return;
        }
        // One token is the common case.
        let whole = if credit < 2.0 * WHOLE { 1.0 } else { (credit + 1.0 - WHOLE).floor() };
        request.credit = credit - whole;
        if self.counts {
            self.gaps.push(now - request.last);
            self.together += whole as u64 - 1;
        }
        request.last = now;
    }

    /// The 99th percentile; none before the first token.
    pub(super) fn p99(&mut self) -> Option<Nanos> {
        if self.gaps.is_empty() {
            return None;
        }
        let above = (self.gaps.len() as u64 + self.together) / 100;
        let at = self.gaps.len() - 1 - (above as usize).min(self.gaps.len() - 1);
        let (_, gap, _) = self.gaps.select_nth_unstable_by(at, f64::total_cmp);
        Some(gap.round() as Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests at one model whose steps commit `tokens`; a step ends every 10.
    fn steps(tokens: f64, steps: usize) -> Tail {
        let mut tail = Tail::new(&[2, 0]);
        tail.count(true);
        for i in 1..=steps {
            tail.deliver(0, &[0, 0], &[tokens; MAX_MODELS], 10.0 * i as f64);
        }
        tail
    }

    #[test]
    fn a_time_lies_between_two_tokens() {
        assert_eq!(steps(1.0, 50).p99(), Some(10));
        // A token is there when its parts are.
        assert_eq!(steps(0.25, 400).p99(), Some(40));
        assert_eq!(steps(0.1, 400).p99(), Some(100));
        assert_eq!(steps(0.0, 50).p99(), None);
    }

    #[test]
    fn tokens_that_come_together_are_no_time_apart() {
        let mut tail = steps(4.0, 100);
        assert_eq!((tail.gaps.len(), tail.together), (200, 600));
        // 8 of 800 are above the 99th percentile, all of them 10.
        assert_eq!(tail.p99(), Some(10));
    }

    #[test]
    fn the_percentile_is_that_of_the_times_that_count() {
        let mut tail = Tail::new(&[1]);
        for i in 1..=1_000 {
            tail.count(i > 800);
            // Every tenth step is late by 20.
            let now = 10.0 * f64::from(i) + if i % 10 == 0 { 20.0 } else { 0.0 };
            tail.deliver(0, &[0], &[1.0; MAX_MODELS], now);
        }
        assert_eq!((tail.gaps.len(), tail.p99()), (200, Some(30)));
    }

    #[test]
    fn requests_leave_in_the_order_in_which_they_came() {
        let mut tail = Tail::new(&[3, 1]);
        tail.deliver(0, &[1, 0], &[1.0; MAX_MODELS], 1.0);
        let at = |tail: &mut Tail, model: usize, count: usize| {
            (0..count).map(|_| tail.queues[model].pop()).collect::<Vec<_>>()
        };
        assert_eq!((at(&mut tail, 0, 2), at(&mut tail, 1, 2)), (vec![2, 1], vec![3, 0]));
    }
}
