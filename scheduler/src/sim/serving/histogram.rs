//! Many durations in little room: counts in buckets that are at most 1/128 of their value wide.

use crate::ids::Nanos;

/// Buckets per octave, as a power of two.
const FINE: u32 = 7;

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// By bucket, as far as there is something.
    counts: Vec<u64>,
    total: u64,
    sum: f64,
    most: Nanos,
}

/// Durations in short. Nanoseconds; percentiles are up to 0.4 % off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are not above this.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Histogram {
    /// Counts a duration.
    pub fn add(&mut self, value: Nanos) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.sum += value as f64;
        self.most = self.most.max(value);
    }

    /// The smallest value that a share of `q` is not above; 0 without values.
    fn quantile(&self, q: f64) -> f64 {
        let rank = ((q * self.total as f64).ceil() as u64).max(1);
        let mut below = 0;
        let found = self.counts.iter().position(|&n| {
            below += n;
            below >= rank
        });
        found.map_or(0.0, middle).min(self.most as f64)
    }

    /// What was counted, in short.
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.total,
            mean: self.sum / self.total.max(1) as f64,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.most as f64,
        }
    }
}

fn bucket(value: Nanos) -> usize {
    if value < 1 << FINE {
        return value as usize;
    }
    let shift = value.ilog2() - FINE;
    (((shift + 1) as usize) << FINE) + (value >> shift) as usize - (1 << FINE)
}

/// The middle of a bucket.
fn middle(bucket: usize) -> f64 {
    if bucket < 1 << FINE {
        return bucket as f64;
    }
    let (shift, rest) = ((bucket >> FINE) - 1, bucket & ((1 << FINE) - 1));
    let width = (1u64 << shift) as f64;
    ((1 << FINE) + rest) as f64 * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_narrow() {
        let mut last = 0;
        for value in
            (0..5_000).chain((13..63).flat_map(|s| [(1u64 << s) - 1, 1 << s, (1 << s) + (1 << (s - 3))]))
        {
            let at = bucket(value);
            assert!(at >= last, "{value}");
            assert!(
                (middle(at) - value as f64).abs() <= value as f64 / 200.0 + 0.5,
                "{value}: {}",
                middle(at)
            );
            last = at;
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.summary(), Summary::default());
        (1..=1_000u64).rev().for_each(|i| histogram.add(i * 1_000_000));
        let s = histogram.summary();
        let near = |found: f64, ms: f64| (found / 1e6 / ms - 1.0).abs() < 0.004;
        assert!(
            near(s.p50, 500.0) && near(s.p90, 900.0) && near(s.p99, 990.0) && near(s.p999, 999.0),
            "{s:?}"
        );
        assert_eq!((s.count, s.max), (1_000, 1e9));
        assert!((s.mean - 500.5e6).abs() < 1.0);
    }
}
