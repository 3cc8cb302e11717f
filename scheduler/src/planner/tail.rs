//! Times between the tokens of one request: the simulation with identities, for the 99th percentile.

use std::collections::VecDeque;

use crate::ids::{MAX_MODELS, Nanos};

/// Who waits where, in order of arrival, and when each last got a token.
pub(super) struct Tail {
    /// Per model; the requests in flight come first.
    queues: Vec<VecDeque<u32>>,
    /// Per request.
    last: Vec<f64>,
    /// Parts of tokens that are committed on average, per request.
    credit: Vec<f64>,
    /// Times between two tokens; tokens that come together are counted apart.
    gaps: Vec<f64>,
    together: u64,
    counts: bool,
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
        let queues = waiting.iter().map(|&count| ids.by_ref().take(count).collect()).collect();
        Self {
            queues,
            last: vec![0.0; requests],
            credit: vec![0.0; requests],
            gaps: Vec::new(),
            together: 0,
            counts: false,
        }
    }

    /// Counts from now on.
    pub(super) fn start(&mut self) {
        self.counts = true;
    }

    /// The first requests in flight finish at `now` and go to `to`.
    pub(super) fn deliver(&mut self, model: usize, to: &[u8], commit: &[f64; MAX_MODELS], now: f64) {
        for &to in to {
            let to = usize::from(to);
            // The queue holds what was launched: nothing is missing.
            let Some(id) = self.queues[model].pop_front() else { return };
            self.commit(id as usize, commit[to], now);
            self.queues[to].push_back(id);
        }
    }

    fn commit(&mut self, id: usize, tokens: f64, now: f64) {
        let credit = self.credit[id] + tokens.min(MOST_TOKENS);
        if credit < WHOLE {
            self.credit[id] = credit;
            return;
        }
        let whole = (credit + 1.0 - WHOLE).floor();
        self.credit[id] = credit - whole;
        if self.counts {
            self.gaps.push(now - self.last[id]);
            self.together += whole as u64 - 1;
        }
        self.last[id] = now;
    }

    /// The 99th percentile; none before the first token.
    pub(super) fn p99(&mut self) -> Option<Nanos> {
        let all = self.gaps.len() as u64 + self.together;
        if self.gaps.is_empty() {
            return None;
        }
        let above = (all / 100) as usize;
        let at = self.gaps.len().saturating_sub(1 + above);
        let (_, gap, _) = self.gaps.select_nth_unstable_by(at, f64::total_cmp);
        Some(gap.round() as Nanos)
    }
}
