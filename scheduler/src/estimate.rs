//! Running estimates from the steps themselves, enough to predict with before any plan exists: how long a step of
//! so many fed tokens takes (L), and where a model's requests go (P).
//!
//! Plain arithmetic on what the core has seen, so equal events give equal estimates.

use crate::ids::{MAX_MODELS, ModelId, Nanos};

/// Fed tokens are sorted into exact buckets up to 8 and four per octave above.
const BUCKETS: usize = 64;
/// A mean follows the last so many samples.
const WINDOW: u32 = 32;
/// Routing counts are halved at this many decisions: the window is about 300 to 600.
const MOST_MOVES: u32 = 600;

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    samples: u32,
}

impl Mean {
    fn add(&mut self, sample: f64) {
        self.samples = (self.samples + 1).min(WINDOW);
        self.value += (sample - self.value) / f64::from(self.samples);
    }

    fn get(&self) -> Option<f64> {
        (self.samples > 0).then_some(self.value)
    }
}

#[derive(Clone, Debug)]
struct ModelEstimates {
    /// Step times by bucket of fed tokens.
    by_fed: [Mean; BUCKETS],
    /// Step times of all steps.
    step: Mean,
    /// Decisions by destination.
    moves: [u32; MAX_MODELS],
    decisions: u32,
}

/// The estimates of every model.
#[derive(Clone, Debug)]
pub(crate) struct Estimates(Vec<ModelEstimates>);

impl Estimates {
    pub(crate) fn new(models: usize) -> Self {
        let empty = ModelEstimates {
            by_fed: [Mean::default(); BUCKETS],
            step: Mean::default(),
            moves: [0; MAX_MODELS],
            decisions: 0,
        };
        Self(vec![empty; models])
    }

    /// A step of `fed` tokens took `time`.
    pub(crate) fn add_step(&mut self, model: ModelId, fed: usize, time: Nanos) {
        let estimates = &mut self.0[model.index()];
        estimates.by_fed[bucket(fed)].add(time as f64);
        estimates.step.add(time as f64);
    }

    /// A request that had the choice went from `from` to `to` (which may be the same).
    pub(crate) fn add_move(&mut self, from: ModelId, to: ModelId) {
        let estimates = &mut self.0[from.index()];
        estimates.moves[to.index()] += 1;
        estimates.decisions += 1;
        if estimates.decisions >= MOST_MOVES {
            estimates.moves.iter_mut().for_each(|n| *n /= 2);
            estimates.decisions = estimates.moves.iter().sum();
        }
    }

    /// The usual step time; none before the first step.
    pub(crate) fn step(&self, model: ModelId) -> Option<Nanos> {
        self.0[model.index()].step.get().map(|t| t as Nanos)
    }

    /// The time of a step of `fed` tokens: of its bucket, or between the nearest buckets that were seen (the nearest
    /// one beyond the first and last); none before the first step.
    pub(crate) fn latency(&self, model: ModelId, fed: usize) -> Option<Nanos> {
        let by_fed = &self.0[model.index()].by_fed;
        let at = bucket(fed);
        let seen = |i: usize| by_fed[i].get().map(|time| (lowest(i) as f64, time));
        let time = match (seen(at), (0..at).rev().find_map(seen), (at + 1..BUCKETS).find_map(seen)) {
            (Some((_, time)), _, _) => time,
            (None, Some((a, low)), Some((b, high))) => low + (high - low) * (fed as f64 - a) / (b - a),
            (None, Some((_, time)), None) | (None, None, Some((_, time))) => time,
            (None, None, None) => return None,
        };
        Some(time.max(0.0) as Nanos)
    }

    /// The share of the requests of `from` that go to `to`; 0 before the first decision.
    pub(crate) fn share(&self, from: ModelId, to: ModelId) -> f64 {
        let estimates = &self.0[from.index()];
        f64::from(estimates.moves[to.index()]) / f64::from(estimates.decisions.max(1))
    }
}

/// The bucket of a number of fed tokens.
fn bucket(fed: usize) -> usize {
    if fed < 8 {
        return fed;
    }
    let octave = fed.ilog2() as usize;
    (8 + (octave - 3) * 4 + ((fed >> (octave - 2)) & 3)).min(BUCKETS - 1)
}

/// The smallest number of fed tokens in a bucket.
fn lowest(bucket: usize) -> usize {
    if bucket < 8 {
        return bucket;
    }
    let (octave, quarter) = (3 + (bucket - 8) / 4, (bucket - 8) % 4);
    (4 + quarter) << (octave - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelId = ModelId(0);
    const B: ModelId = ModelId(1);

    #[test]
    fn buckets_are_ordered_and_know_their_lowest() {
        for fed in 0..100_000usize {
            let b = bucket(fed);
            assert!(lowest(b) <= fed && bucket(fed + 1) >= b, "{fed}");
            assert!(b + 1 >= BUCKETS || lowest(b + 1) > fed, "{fed}");
        }
        assert_eq!(bucket(usize::MAX), BUCKETS - 1);
    }

    #[test]
    fn step_times_are_found_between_the_buckets_seen() {
        let mut estimates = Estimates::new(2);
        assert_eq!((estimates.latency(A, 3), estimates.step(A)), (None, None));
        estimates.add_step(A, 2, 100);
        assert_eq!([1, 2, 9].map(|fed| estimates.latency(A, fed)), [Some(100); 3]);
        estimates.add_step(A, 6, 300);
        assert_eq!([1, 2, 4, 6, 7].map(|fed| estimates.latency(A, fed).unwrap()), [100, 100, 200, 300, 300]);
        assert_eq!((estimates.step(A), estimates.latency(B, 2)), (Some(200), None));
    }

    #[test]
    fn a_mean_follows_a_change() {
        let mut estimates = Estimates::new(1);
        for time in std::iter::repeat_n(100, 1_000).chain(std::iter::repeat_n(300, 200)) {
            estimates.add_step(A, 1, time);
        }
        assert!(estimates.latency(A, 1).unwrap() > 295);
    }

    #[test]
    fn shares_follow_the_last_few_hundred_decisions() {
        let mut estimates = Estimates::new(2);
        assert_eq!(estimates.share(A, B), 0.0);
        for i in 0..10_000 {
            estimates.add_move(A, if i % 4 == 0 { B } else { A });
        }
        assert!((estimates.share(A, B) - 0.25).abs() < 0.01);
        assert!((estimates.share(A, A) - 0.75).abs() < 0.01);
        (0..2_000).for_each(|_| estimates.add_move(A, B));
        assert!(estimates.share(A, B) > 0.95 && estimates.share(B, A) == 0.0);
    }
}
