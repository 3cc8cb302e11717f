//! Counts in fixed buckets that one thread writes and any other reads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tokenrouter_scheduler::Nanos;

/// Upper bounds of the buckets of times, in nanoseconds: 10 microseconds to 10 seconds. Longer ones are in a last bucket.
pub const TIME_BOUNDS: [Nanos; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Buckets of times.
pub const TIME_BUCKETS: usize = TIME_BOUNDS.len() + 1;

/// Buckets of row counts: bucket `i` holds those of at most `2^i`, the last one all larger ones.
pub const ROW_BUCKETS: usize = 12;

/// Counts by bucket, and the sum of the values.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    counts: [AtomicU64; N],
    sum: AtomicU64,
}

impl<const N: usize> Default for Tally<N> {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; N], sum: AtomicU64::new(0) }
    }
}

impl<const N: usize> Tally<N> {
    /// The counts, not cumulative. Read one after the other: with the sum they may be an event apart.
    pub fn counts(&self) -> [u64; N] {
        std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed))
    }

    /// The sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    fn add_to(&self, bucket: usize, value: u64) {
        self.counts[bucket.min(N - 1)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }
}

impl Tally<TIME_BUCKETS> {
    /// Adds a time.
    pub(crate) fn add_time(&self, time: Nanos) {
        self.add_to(TIME_BOUNDS.partition_point(|bound| *bound < time), time);
    }
}

impl Tally<ROW_BUCKETS> {
    /// Adds a number of rows.
    pub(crate) fn add_rows(&self, rows: usize) {
        self.add_to(rows.max(1).next_power_of_two().ilog2() as usize, rows as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_where_they_belong() {
        let times = Tally::<TIME_BUCKETS>::default();
        for time in [0, 10_000, 10_001, 25_000, 10_000_000_000, 10_000_000_001, u64::MAX >> 1] {
            times.add_time(time);
        }
        let counts = times.counts();
        assert_eq!((counts[0], counts[1], counts[18], counts[19]), (2, 2, 1, 2));
        let rows = Tally::<ROW_BUCKETS>::default();
        for count in [1, 2, 3, 4, 5, 1024, 1025, 1 << 40] {
            rows.add_rows(count);
        }
        assert_eq!(rows.counts(), [1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(rows.sum(), 15 + 2049 + (1 << 40));
    }
}
