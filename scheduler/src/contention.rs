//! Steps in progress on devices that slow each other down: the clock of the simulator and of the planner's forecast.
//!
//! A step is an amount of work, in nanoseconds that it takes alone. While another step runs, model `i` progresses at
//! `1 / s_i` of its speed (scheduling study, F4 and section 6f), or of a speed between by what both steps feed
//! ([`sharing`](crate::sharing)). Plain arithmetic, so equal calls give equal times.

use crate::ids::{MAX_MODELS, Nanos};
use crate::sharing::{Parts, slowdown_beside};

/// The steps in progress, at most one per model.
#[derive(Clone, Debug)]
pub(crate) struct Contention {
    /// s, per model: how much longer work takes while another model runs.
    slowdown: [f64; MAX_MODELS],
    /// Of the step in progress.
    parts: [Parts; MAX_MODELS],
    /// Work left at `now`; none when idle.
    left: [Option<f64>; MAX_MODELS],
    /// When each step ends if nothing changes.
    ends: [Option<Nanos>; MAX_MODELS],
    now: Nanos,
}

impl Contention {
    /// Nothing runs. Models without an entry, and entries below 1, are not slowed down.
    pub(crate) fn new(slowdown: &[f64]) -> Self {
        let mut this = Self {
            slowdown: [1.0; MAX_MODELS],
            parts: [Parts::default(); MAX_MODELS],
            left: [None; MAX_MODELS],
            ends: [None; MAX_MODELS],
            now: 0,
        };
        this.set_slowdown(slowdown);
        this
    }

    /// From now on.
    pub(crate) fn set_slowdown(&mut self, slowdown: &[f64]) {
        for (own, &given) in self.slowdown.iter_mut().zip(slowdown) {
            *own = given.max(1.0);
        }
        self.renew();
    }

    /// A step of `work` starts on an idle model at `now`, which must not lie before the last call's.
    pub(crate) fn start(&mut self, model: usize, work: Nanos, parts: Parts, now: Nanos) {
        self.advance(now);
        self.parts[model] = parts;
        self.left[model] = Some(work as f64);
        self.renew();
    }

    /// The next end of a step.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.ends.iter().flatten().min().copied()
    }

    /// Whether a step runs.
    pub(crate) fn is_busy(&self, model: usize) -> bool {
        self.left[model].is_some()
    }

    /// Ends the step of `model` if it is over at `now`; at most [`Contention::next`]. Take every model that is over
    /// before the next step starts.
    pub(crate) fn finish(&mut self, model: usize, now: Nanos) -> bool {
        if self.ends[model] != Some(now) {
            return false;
        }
        self.advance(now);
        self.left[model] = None;
        self.ends[model] = None;
        // Whoever is over at this very time stays so, whatever the division left of its work.
        let due = self.ends.map(|end| end == Some(now));
        self.renew();
        for (end, due) in self.ends.iter_mut().zip(due) {
            if due {
                *end = Some(now);
            }
        }
        true
    }

    /// Work left on a running model at `now`.
    pub(crate) fn left(&self, model: usize, now: Nanos) -> Option<f64> {
        let passed = now.saturating_sub(self.now) as f64 / self.factor(model);
        self.left[model].map(|left| (left - passed).max(0.0))
    }

    fn factor(&self, model: usize) -> f64 {
        let others = (0..MAX_MODELS).filter(|&i| i != model && self.left[i].is_some());
        let imposed = others.map(|i| self.parts[i].imposed).reduce(f64::max);
        imposed.map_or(1.0, |imposed| slowdown_beside(self.slowdown[model], self.parts[model].own, imposed))
    }

    fn advance(&mut self, now: Nanos) {
        for model in 0..MAX_MODELS {
            if self.left[model].is_some() {
                self.left[model] = self.left(model, now);
            }
        }
        self.now = self.now.max(now);
    }

    fn renew(&mut self) {
        for model in 0..MAX_MODELS {
            // Rounded to a nanosecond, so that steps of equal length that start together end together.
            self.ends[model] =
                self.left[model].map(|left| self.now + (left * self.factor(model)).round() as Nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_a_step_takes_its_work() {
        let mut clock = Contention::new(&[1.5, 1.5]);
        clock.start(0, 100, Parts::default(), 5);
        assert_eq!((clock.next(), clock.is_busy(0), clock.is_busy(1)), (Some(105), true, false));
        assert_eq!((clock.finish(0, 104), clock.finish(1, 105), clock.finish(0, 105)), (false, false, true));
        assert_eq!(clock.next(), None);
    }

    #[test]
    fn together_each_is_slowed_by_its_own_factor() {
        let mut clock = Contention::new(&[2.0, 1.5]);
        clock.start(1, 90, Parts::default(), 0);
        clock.start(0, 20, Parts::default(), 30);
        // Model 0: 20 * 2. Model 1 had 60 left: 60 * 1.5.
        assert_eq!(clock.next(), Some(70));
        assert_eq!(clock.left(1, 60), Some(40.0));
        assert!(clock.finish(0, 70));
        // 40 / 1.5 of its work is done, the rest runs alone.
        assert_eq!(clock.next(), Some(70 + 33));
    }

    #[test]
    fn equal_ends_are_together() {
        let mut clock = Contention::new(&[1.3, 1.3, 1.3]);
        (0..3).for_each(|m| clock.start(m, 777, Parts::default(), 10));
        let end = clock.next().expect("an end");
        assert!((0..3).all(|m| clock.finish(m, end)));
        assert_eq!(clock.next(), None);
    }

    #[test]
    fn a_changed_slowdown_counts_from_now() {
        let mut clock = Contention::new(&[]);
        clock.start(0, 100, Parts::default(), 0);
        clock.start(1, 100, Parts::default(), 0);
        clock.start(2, 10, Parts::default(), 50);
        clock.set_slowdown(&[3.0]);
        assert_eq!(clock.ends[..3], [Some(50 + 150), Some(100), Some(60)]);
    }

    /// Two steps of many tokens hardly disturb one another; a step of few suffers from the reading of another such one.
    #[test]
    fn steps_suffer_by_what_both_feed() {
        let (few, many) = (Parts::default(), Parts { own: 0.2, imposed: 0.5 });
        for (a, b, ends) in [(few, few, 2_000), (few, many, 1_333), (many, few, 1_111), (many, many, 1_053)] {
            let mut clock = Contention::new(&[2.0, 2.0]);
            clock.start(1, 1_000_000, b, 0);
            clock.start(0, 1_000, a, 0);
            assert_eq!(clock.next(), Some(ends), "{a:?} {b:?}");
        }
    }
}
