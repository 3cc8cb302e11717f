//! Step times that are known before the first step: they count as a few steps of each size, and give way to what is
//! seen.

use super::{StepTimes, bucket};
use crate::measured::Measured;

/// A measured size counts as so many steps of it: a tenth of the window, so that a machine that has changed is
/// believed soon.
const SAMPLES: f64 = 3.0;
/// A measured slowdown counts as shares with this sum of squared deviations: a fifth of the window of the slope.
const SQUARE: f64 = 4.0;

impl StepTimes {
    /// Begins with what was measured; nothing when there is no time in it. To be called before the first step.
    pub(crate) fn seed(&mut self, measured: &Measured) {
        for &(fed, time) in measured.steps.iter().filter(|(fed, time)| *fed > 0 && *time > 0) {
            self.buckets[bucket(fed)].add(fed as f64, (time as f64).ln());
        }
        let seen = self.buckets.iter_mut().filter(|bucket| bucket.samples > 0.0);
        seen.for_each(|bucket| bucket.samples = SAMPLES);
        let Some(first) = measured.steps.iter().filter(|(_, time)| *time > 0).min() else { return };
        self.rows = measured.rows.iter().map(|&(rows, time)| (rows as f64, time as f64)).collect();
        (self.usual, self.steps) = (first.1 as f64, 1.0);
        let loss = 1.0 - 1.0 / measured.slowdown.clamp(1.0, 20.0);
        (self.cross, self.square, self.prior) = (-loss * SQUARE, SQUARE, loss);
        self.seeded = true;
    }

    /// What so many rows cost beside the tokens that they feed, in ns: between the measured points a straight line, and
    /// the nearest one outside.
    pub(super) fn of_rows(&self, rows: f64) -> f64 {
        let after = self.rows.partition_point(|&(at, _)| at <= rows);
        match (after.checked_sub(1).map(|i| self.rows[i]), self.rows.get(after)) {
            (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (rows - a.0) / (b.0 - a.0),
            (Some(only), None) => only.1,
            (None, Some(only)) => only.1,
            (None, None) => 0.0,
        }
    }

    /// Whether it began with measured times.
    pub(crate) fn is_seeded(&self) -> bool {
        self.seeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::overlap::Spent;

    fn measured() -> Measured {
        Measured {
            steps: vec![(1, 60), (2, 62), (4, 80), (8, 140), (64, 1_100)],
            rows: Vec::new(),
            slowdown: 1.5,
            ..Measured::default()
        }
    }

    #[test]
    fn what_was_measured_is_known_before_the_first_step() {
        let mut times = StepTimes::new();
        times.seed(&measured());
        assert_eq!([1, 2, 3, 4, 64].map(|fed| times.latency(fed)), [60, 62, 71, 80, 1_100].map(Some));
        assert_eq!((times.usual(), times.is_seeded(), times.total()), (Some(60), true, 0));
        assert!((times.slowdown() - 1.5).abs() < 0.01, "{}", times.slowdown());
        let by_rows = times.by_rows(8).expect("times");
        assert_eq!((by_rows[0], by_rows[3], by_rows[7]), (60, 80, 140));
    }

    /// Two rows of three tokens cost as six tokens and two rows, not as six rows.
    #[test]
    fn rows_cost_what_was_measured_beside_their_tokens() {
        let mut times = StepTimes::new();
        let steps = (1..=16).map(|fed| (fed, 1_000 + 10 * fed as u64)).collect();
        times.seed(&Measured { steps, rows: vec![(1, 0), (5, 2_000)], slowdown: 1.0, ..Measured::default() });
        for rows in [1, 2, 3, 5].repeat(100) {
            let time = 1_000 + 10 * 3 * rows as u64 + 500 * (rows as u64 - 1);
            times.add(rows, 3 * rows, 0, Spent { alone: time, beside: 0 });
        }
        let by_rows = times.by_rows(5).expect("times");
        for (rows, expected) in [(1, 1_030.0), (2, 1_560.0), (4, 2_620.0), (5, 3_150.0)] {
            let found = by_rows[rows - 1] as f64;
            assert!((found / expected - 1.0).abs() < 0.03, "{rows}: {found} for {expected}");
        }
        let found = times.latency(6).expect("a time") as f64;
        assert!((found / 1_560.0 - 1.0).abs() < 0.03, "{found}");
    }

    #[test]
    fn nothing_measured_changes_nothing() {
        let mut times = StepTimes::new();
        times.seed(&Measured::default());
        times.seed(&Measured { steps: vec![(1, 0)], slowdown: 3.0, ..Measured::default() });
        assert_eq!((times.latency(1), times.usual(), times.is_seeded()), (None, None, false));
        assert!(times.slowdown() < 1.01);
    }

    /// A profile of a machine that was twice as fast: a dozen steps say so, also of sizes that did not come.
    #[test]
    fn the_machine_is_believed_before_the_profile() {
        let mut times = StepTimes::new();
        times.seed(&Measured { slowdown: 1.0, ..measured() });
        for _ in 0..12 {
            times.add(2, 2, 0, Spent { alone: 124, beside: 0 });
        }
        for (fed, time) in [(2, 124.0), (8, 280.0)] {
            let found = times.latency(fed).expect("a time") as f64;
            assert!((found / time - 1.0).abs() < 0.2, "{fed}: {found}");
        }
    }
}
