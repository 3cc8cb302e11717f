//! Where the requests of one model go (a row of P) and what they commit on the way (a row of C), over two windows.
//!
//! The short window holds the last decisions, the long one those before it. When they differ by three standard errors,
//! and still by two and a half after all of the short one was replaced, the routing has changed and everything before
//! the short window is forgotten. Asked again and again, three standard errors alone would find a change that is none about once
//! in a few thousand decisions. The estimate is from all decisions since the last change, up to a few thousand: a plan
//! from the long window alone would move with its noise. A change too small for the short window shows as a distance
//! of both windows from that estimate.

use crate::ids::{MAX_MODELS, ModelId};

/// Decisions in the short window.
const SHORT: usize = 60;
/// The long window is halved when it holds this many decisions, so that both hold 220 to 380, 300 on average.
const MOST: f64 = 320.0;
/// The short window is compared with the long one every so many decisions.
const COMPARED_EVERY: u32 = 10;
/// Decisions between a suspicion and its confirmation.
const CONFIRMED_AFTER: u64 = SHORT as u64;
const SUSPECTED_AT: f64 = 3.0;
const CONFIRMED_AT: f64 = 2.5;
const APART_AT: f64 = 3.5;
/// The estimate is from at most so many decisions, and at least half of that once there were so many.
const MOST_OF_ALL: f64 = 4_000.0;
/// Decisions before both windows are compared with the estimate.
const APART_AFTER: u64 = 900;

/// Counts of decisions.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    total: f64,
    to: [f64; MAX_MODELS],
    committed: [f64; MAX_MODELS],
}

impl Counts {
    #[inline]
    fn add(&mut self, decision: Decision) {
        self.total += 1.0;
        self.to[decision.to()] += 1.0;
        self.committed[decision.to()] += f64::from(decision.committed());
    }

    fn plus(&self, other: &Self) -> Self {
        let sum = |a: &[f64; MAX_MODELS], b: &[f64; MAX_MODELS]| std::array::from_fn(|i| a[i] + b[i]);
        Self {
            total: self.total + other.total,
            to: sum(&self.to, &other.to),
            committed: sum(&self.committed, &other.committed),
        }
    }

    fn halve(&mut self) {
        self.total /= 2.0;
        self.to.iter_mut().chain(&mut self.committed).for_each(|n| *n /= 2.0);
    }
}

/// Where a request went, and whether its candidate was committed, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Decision(u8);

impl Decision {
    fn new(to: ModelId, committed: bool) -> Self {
        Self((to.index() % MAX_MODELS) as u8 * 2 + u8::from(committed))
    }

    /// The destination's index.
    fn to(self) -> usize {
        usize::from(self.0 / 2) % MAX_MODELS
    }

    fn committed(self) -> u8 {
        self.0 % 2
    }
}

/// The last decisions: each of them, and how many there are of each kind.
#[derive(Clone, Debug)]
struct Window {
    ring: [Decision; SHORT],
    /// Where the next one goes.
    at: usize,
    full: bool,
    kinds: [u8; 2 * MAX_MODELS],
}

impl Window {
    /// Takes a decision in the place of the oldest; that one, once the window is full.
    #[inline]
    fn add(&mut self, decision: Decision) -> Option<Decision> {
        let oldest = std::mem::replace(&mut self.ring[self.at], decision);
        self.kinds[usize::from(decision.0)] += 1;
        let was_full = self.full;
        if was_full {
            self.kinds[usize::from(oldest.0)] -= 1;
        }
        self.at += 1;
        if self.at == SHORT {
            (self.at, self.full) = (0, true);
        }
        was_full.then_some(oldest)
    }

    fn counts(&self) -> Counts {
        let kind = |i: usize| f64::from(self.kinds[i]);
        Counts {
            total: self.kinds.iter().map(|&n| f64::from(n)).sum(),
            to: std::array::from_fn(|model| kind(2 * model) + kind(2 * model + 1)),
            committed: std::array::from_fn(|model| kind(2 * model + 1)),
        }
    }
}

/// Whether some share in the recent counts is so many standard errors from that in the older ones.
fn differ(recent: &Counts, older: &Counts, standard_errors: f64) -> bool {
    recent.to.iter().zip(&older.to).any(|(recent_to, older_to)| {
        let (p, q) = (recent_to / recent.total, older_to / older.total);
        // At the edges of the unit interval one decision in the window is allowed for.
        let spread = (q * (1.0 - q)).max(1.0 / recent.total);
        let error = (spread * (1.0 / recent.total + 1.0 / older.total)).sqrt();
        (p - q).abs() > standard_errors * error
    })
}

/// The windows of one model.
#[derive(Clone, Debug)]
pub(crate) struct Moves {
    all: Counts,
    long: Counts,
    short: Window,
    decisions: u64,
    /// Decisions until the windows are compared.
    until_compared: u32,
    /// The windows differed at this decision.
    suspected: Option<u64>,
    /// Decisions since the long window started (again).
    age: u64,
}

impl Moves {
    pub(crate) fn new() -> Self {
        let (ring, kinds) = ([Decision::default(); SHORT], [0; 2 * MAX_MODELS]);
        Self {
            all: Counts::default(),
            long: Counts::default(),
            short: Window { ring, at: 0, full: false, kinds },
            decisions: 0,
            until_compared: COMPARED_EVERY,
            suspected: None,
            age: 0,
        }
    }

    /// A request that had the choice went to `to`; its candidate was committed or dropped. True when the routing has
    /// changed and the long window starts again.
    pub(crate) fn add(&mut self, to: ModelId, committed: bool) -> bool {
        let decision = Decision::new(to, committed);
        self.all.add(decision);
        if self.all.total >= MOST_OF_ALL {
            self.all.halve();
        }
        // What may belong to the time after the change is kept out of the time before.
        if let Some(oldest) = self.short.add(decision).filter(|_| self.suspected.is_none()) {
            self.long.add(oldest);
        }
        if self.long.total >= MOST {
            self.long.halve();
        }
        self.decisions += 1;
        self.age += 1;
        self.until_compared -= 1;
        if self.until_compared > 0 {
            return false;
        }
        self.until_compared = COMPARED_EVERY;
        self.compare()
    }

    fn compare(&mut self) -> bool {
        if self.age < 2 * SHORT as u64 {
            return false;
        }
        let Some(since) = self.suspected else {
            let short = self.short.counts();
            self.suspected = differ(&short, &self.long, SUSPECTED_AT).then_some(self.decisions);
            return self.suspected.is_none() && self.drift_apart(&short);
        };
        if self.decisions < since + CONFIRMED_AFTER {
            return false;
        }
        self.suspected = None;
        let short = self.short.counts();
        let changed = differ(&short, &self.long, CONFIRMED_AT);
        if changed {
            self.long = Counts::default();
            self.all = short;
            self.age = SHORT as u64;
        }
        changed
    }

    /// Goes on from both windows when they are too far from the estimate.
    fn drift_apart(&mut self, short: &Counts) -> bool {
        let recent = self.long.plus(short);
        let apart = self.age >= APART_AFTER && differ(&recent, &self.all, APART_AT);
        if apart {
            (self.all, self.age) = (recent, recent.total as u64);
        }
        apart
    }

    /// The share of the requests that go to `to`; 0 before the first decision.
    pub(crate) fn share(&self, to: ModelId) -> f64 {
        self.all.to[to.index()] / self.all.total.max(1.0)
    }

    /// The standard error of [`Moves::share`].
    pub(crate) fn share_error(&self, to: ModelId) -> f64 {
        let p = self.share(to);
        (p * (1.0 - p) / self.all.total.max(1.0)).sqrt()
    }

    /// Tokens that a request commits which goes to `to`; none before one did.
    pub(crate) fn commits(&self, to: ModelId) -> Option<f64> {
        let all = &self.all;
        (all.to[to.index()] > 0.0).then(|| all.committed[to.index()] / all.to[to.index()])
    }

    /// Decisions since the start, or since the routing changed.
    pub(crate) fn age(&self) -> u64 {
        self.age
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    const STAY: ModelId = ModelId(0);
    const GO: ModelId = ModelId(1);

    fn feed(moves: &mut Moves, random: &mut Random, p: f64, decisions: usize) -> Option<usize> {
        (0..decisions)
            .filter(|_| {
                let goes = random.chance(p);
                moves.add(if goes { GO } else { STAY }, !goes)
            })
            .last()
    }

    #[test]
    fn shares_and_commits_are_of_the_decisions_since_the_last_change() {
        let mut moves = Moves::new();
        assert_eq!((moves.share(GO), moves.commits(GO)), (0.0, None));
        for i in 0..10_000 {
            let goes = i % 4 == 0;
            moves.add(if goes { GO } else { STAY }, !goes);
        }
        assert!((moves.share(GO) - 0.25).abs() < 0.01 && (moves.share(STAY) - 0.75).abs() < 0.01);
        assert_eq!((moves.commits(GO), moves.commits(STAY)), (Some(0.0), Some(1.0)));
        assert!(moves.share_error(GO) > 0.005 && moves.share_error(GO) < 0.012);
    }

    #[test]
    fn a_change_is_found_within_two_short_windows() {
        let (mut runs, mut found) = (0, 0);
        for (seed, (from, to)) in
            (0..).zip([(0.276, 0.55), (0.6, 0.25), (0.05, 0.3), (0.35, 0.0), (0.0, 0.35)])
        {
            for run in 0..20 {
                let (mut moves, mut random) = (Moves::new(), Random::new(100 * seed + run));
                feed(&mut moves, &mut random, from, 2_000);
                runs += 1;
                if feed(&mut moves, &mut random, to, 180).is_some() {
                    found += 1;
                    assert!((moves.share(GO) - to).abs() < 0.2, "{from} to {to}: {}", moves.share(GO));
                }
            }
        }
        assert!(found * 100 >= runs * 95, "{found} of {runs}");
    }

    /// A small change is hidden from 60 decisions; both windows find it.
    #[test]
    fn a_small_change_is_followed() {
        let followed = |seed: &u64| {
            let (mut moves, mut random) = (Moves::new(), Random::new(*seed));
            feed(&mut moves, &mut random, 0.3, 6_000);
            feed(&mut moves, &mut random, 0.42, 2_000);
            (moves.share(GO) - 0.42).abs() < 0.05
        };
        let count = (0..20).filter(followed).count();
        assert!(count >= 18, "{count} of 20");
    }

    #[test]
    fn chance_is_hardly_ever_taken_for_a_change() {
        let mut found = 0;
        for (seed, p) in (0..).zip([0.02, 0.1, 0.276, 0.5, 0.9]) {
            let (mut moves, mut random) = (Moves::new(), Random::new(seed));
            found += (0..100_000)
                .filter(|_| {
                    let goes = random.chance(p);
                    moves.add(if goes { GO } else { STAY }, !goes)
                })
                .count();
        }
        assert!(found <= 50, "{found} in 500,000 decisions");
    }
}
