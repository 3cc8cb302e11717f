//! How much of every step's time passed beside steps of other models.

use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos};
use crate::sharing::Parts;

/// The time of one step so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// While no other model ran.
    pub(crate) alone: Nanos,
    /// While at least one other model ran: the part of that time which counts, by what both steps feed. The rest is in
    /// `alone`.
    pub(crate) beside: Nanos,
}

impl Spent {
    /// All of it.
    pub(crate) fn total(self) -> Nanos {
        self.alone + self.beside
    }
}

/// A clock per model that runs while its step does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlap {
    running: ModelSet,
    since: Nanos,
    spent: [Spent; MAX_MODELS],
    parts: [Parts; MAX_MODELS],
}

impl Overlap {
    /// A step of an idle model starts that suffers and causes so much.
    pub(crate) fn start(&mut self, model: ModelId, parts: Parts, now: Nanos) {
        self.advance(now);
        self.running.insert(model);
        self.parts[model.index()] = parts;
        self.spent[model.index()] = Spent::default();
    }

    /// Its step ends: the time it took.
    pub(crate) fn end(&mut self, model: ModelId, now: Nanos) -> Spent {
        self.advance(now);
        self.running = self.running.without(ModelSet::of(model));
        self.spent[model.index()]
    }

    /// The time of a step in flight until now.
    pub(crate) fn spent(&self, model: ModelId, now: Nanos) -> Spent {
        let mut spent = self.spent[model.index()];
        if self.running.contains(model) {
            let passed = now.saturating_sub(self.since);
            let beside = (passed as f64 * self.weight(model)).round() as Nanos;
            spent.beside += beside;
            spent.alone += passed - beside;
        }
        spent
    }

    fn advance(&mut self, now: Nanos) {
        for model in self.running.iter() {
            self.spent[model.index()] = self.spent(model, now);
        }
        self.since = self.since.max(now);
    }

    /// How much of the time beside what runs now counts, 0 to 1.
    fn weight(&self, model: ModelId) -> f64 {
        let others = self.running.without(ModelSet::of(model));
        let imposed = others.iter().map(|other| self.parts[other.index()].imposed).fold(0.0, f64::max);
        (self.parts[model.index()].own * imposed).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_alone_and_beside_others_is_kept_apart() {
        let (a, b) = (ModelId(0), ModelId(1));
        let mut overlap = Overlap::default();
        overlap.start(b, Parts::default(), 100);
        overlap.start(a, Parts::default(), 130);
        assert_eq!(overlap.spent(b, 140), Spent { alone: 30, beside: 10 });
        assert_eq!(overlap.end(a, 150), Spent { alone: 0, beside: 20 });
        overlap.start(a, Parts::default(), 160);
        assert_eq!(overlap.end(b, 200), Spent { alone: 30 + 10, beside: 20 + 40 });
        assert_eq!(overlap.end(a, 210), Spent { alone: 10, beside: 40 });
        overlap.start(a, Parts::default(), 300);
        assert_eq!(overlap.spent(a, 310).total(), 10);
    }

    #[test]
    fn time_beside_others_counts_by_what_both_feed() {
        let (a, b) = (ModelId(0), ModelId(1));
        let mut overlap = Overlap::default();
        overlap.start(b, Parts { own: 0.25, imposed: 0.5 }, 0);
        overlap.start(a, Parts::default(), 100);
        assert_eq!(overlap.end(a, 300), Spent { alone: 100, beside: 100 });
        assert_eq!(overlap.end(b, 300), Spent { alone: 100 + 150, beside: 50 });
    }
}
