//! Means over repeats with 95 % confidence intervals, and what a histogram of buckets says.

use serde_json::{Value, json};

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The 95 % quantile for `freedom` degrees; beyond the table by Cornish and Fisher's expansion around the normal one.
pub(super) fn student(freedom: usize) -> f64 {
    match freedom {
        0 => f64::INFINITY,
        n if n <= STUDENT.len() => STUDENT[n - 1],
        n => {
            let (z, n): (f64, f64) = (1.959_964, n as f64);
            z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        }
    }
}

/// One measure over the repeats of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    /// How many repeats had it.
    pub(super) repeats: usize,
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Half the width of the 95 % confidence interval of the mean; none with one repeat.
    pub(super) ci95: Option<f64>,
}

impl Spread {
    /// Of some values; none without any.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (count, middle) = (values.len(), values.len() / 2);
        let (&low, &high) = (values.first()?, values.last()?);
        let mean = values.iter().sum::<f64>() / count as f64;
        let median =
            if count % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        let ci95 = (count > 1).then(|| {
            let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            student(count - 1) * (squares / (count - 1) as f64 / count as f64).sqrt()
        });
        Some(Spread { repeats: count, mean, median, low, high, ci95 })
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "mean": self.mean, "ci95": self.ci95, "median": self.median,
            "min": self.low, "max": self.high, "repeats": self.repeats,
        })
    }
}

/// Counts by upper bound, as Prometheus has them: what came between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Buckets {
    /// Upper bound (infinity at last) and how many values were not above it, ascending.
    pub(super) upto: Vec<(f64, f64)>,
    pub(super) sum: f64,
}

impl Buckets {
    /// How many values.
    pub(super) fn count(&self) -> f64 {
        self.upto.last().map_or(0.0, |(_, n)| *n)
    }

    /// Their mean; none without values.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// A quantile by a straight line within its bucket, the last bucket by its lower bound.
    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count();
        let mut below = (0.0, 0.0);
        for &(bound, count) in &self.upto {
            if count >= rank && count > below.1 {
                let share = (rank - below.1) / (count - below.1);
                return Some(if bound.is_finite() { below.0 + share * (bound - below.0) } else { below.0 });
            }
            below = (bound, count);
        }
        None
    }

    /// This and another of the same bounds; one that is empty adds nothing.
    pub(super) fn and(mut self, other: &Buckets) -> Self {
        if self.upto.is_empty() {
            return other.clone();
        }
        self.upto.iter_mut().zip(&other.upto).for_each(|(mine, theirs)| mine.1 += theirs.1);
        self.sum += other.sum;
        self
    }

    /// In the form of the simulator's summaries, times `scale`; the percentiles are as good as the buckets are narrow.
    pub(super) fn json(&self, scale: f64) -> Value {
        let q = |q: f64| self.quantile(q).map(|v| v * scale);
        json!({
            "count": self.count(), "mean": self.mean().map(|v| v * scale),
            "p50": q(0.5), "p90": q(0.9), "p95": q(0.95), "p99": q(0.99),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Table values, and the expansion where the table ends: t(40) = 2.0211, t(120) = 1.9799.
        assert_eq!((student(1), student(4), student(30)), (12.706, 2.776, 2.042));
        assert!((student(40) - 2.0211).abs() < 2e-4 && (student(120) - 1.9799).abs() < 2e-4);
        let spread = Spread::of([10.0, 14.0, 12.0, 9.0, 15.0]).expect("values");
        assert_eq!((spread.mean, spread.median, spread.low, spread.high), (12.0, 12.0, 9.0, 15.0));
        // s = sqrt(26 / 4), half width = 2.776 s / sqrt(5).
        let half = 2.776 * (6.5f64 / 5.0).sqrt();
        assert!((spread.ci95.expect("five") - half).abs() < 1e-9);
        assert_eq!(Spread::of([7.0]).expect("one").ci95, None);
        assert_eq!(Spread::of([3.0, f64::NAN, 1.0]).map(|s| (s.repeats, s.median)), Some((2, 2.0)));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn buckets_give_means_exactly_and_quantiles_by_a_line() {
        let buckets =
            Buckets { upto: vec![(1.0, 10.0), (2.0, 10.0), (4.0, 20.0), (f64::INFINITY, 21.0)], sum: 42.0 };
        assert_eq!(buckets.mean(), Some(2.0));
        assert_eq!(buckets.quantile(5.0 / 21.0), Some(0.5));
        assert_eq!(buckets.quantile(15.0 / 21.0), Some(3.0));
        assert_eq!(buckets.quantile(1.0), Some(4.0), "beyond the last bound nothing is known but that bound");
        assert_eq!(Buckets::default().quantile(0.5), None);
        let both = buckets.clone().and(&buckets);
        assert_eq!((both.count(), both.mean()), (42.0, Some(2.0)));
    }
}
