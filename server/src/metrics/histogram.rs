//! Counts of measured values in fixed buckets.

/// Counts by bucket, with the sum. Not shared: its one thread adds and reads.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    /// Upper bounds, ascending; a value belongs to the first bound that is not below it.
    bounds: &'static [f64],
    /// One more than bounds: the last holds everything above.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// One with counts from elsewhere, one per bound and one for everything above; missing ones are 0.
    pub(crate) fn with(bounds: &'static [f64], counts: impl IntoIterator<Item = u64>, sum: f64) -> Self {
        let mut this = Self { sum, ..Self::new(bounds) };
        this.counts.iter_mut().zip(counts).for_each(|(mine, count)| *mine = count);
        this
    }

    /// Adds a value.
    pub(crate) fn add(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }

    /// Bounds (`None` is infinity) with the number of values up to each.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (Option<f64>, u64)> + '_ {
        let bounds = self.bounds.iter().map(|bound| Some(*bound)).chain([None]);
        bounds.zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }

    /// Sum of the values.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// Number of values.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_where_they_belong() {
        let mut histogram = Histogram::new(&[1.0, 2.0, 5.0]);
        for value in [0.0, 1.0, 1.1, 2.0, 5.0, 5.1, 1e9] {
            histogram.add(value);
        }
        let seen: Vec<_> = histogram.cumulative().collect();
        assert_eq!(seen, [(Some(1.0), 2), (Some(2.0), 4), (Some(5.0), 5), (None, 7)]);
        assert_eq!((histogram.count(), histogram.sum()), (7, 1e9 + 14.2));
        let copied = Histogram::with(&[1.0, 2.0], [3, 4], 9.0);
        assert_eq!((copied.count(), copied.sum()), (7, 9.0));
    }
}
