//! The threshold at which the models beside the entry would have written a wanted share of what was seen.

use super::sketch::{Sketch, edge};
use crate::router::{Direction, Gauge, Threshold};

/// Values of a model before it is listened to.
const LEAST: u32 = 1024;

/// Collects what a router compared with its threshold and chooses the threshold of the next requests.
///
/// Every candidate that was routed counts, at the entry model and, for a router whose peer compares too, at the peer,
/// whatever became of its request: what a score says about the models does not depend on how an answer ended. The
/// share of tokens by the peer at a threshold follows from the chain of algorithms 0.2: with `p` the chance that the
/// entry asks and `q` that the peer returns it is `p / (p + (1 - p) q)`, and `q` is 1 where one token is returned. Where one
/// candidate decides about its whole answer, `p` is the share of the requests, and that of the tokens as far as answers
/// are equally long.
#[derive(Clone, Debug)]
pub struct Calibrator {
    target: f64,
    gauge: Gauge,
    entry: Sketch,
    peer: Sketch,
}

impl Calibrator {
    /// For a share of tokens from 0 to 1 (clamped) and a router's comparison.
    pub fn new(target_share: f32, gauge: Gauge) -> Self {
        let target = f64::from(target_share).clamp(0.0, 1.0);
        Self { target, gauge, entry: Sketch::new(), peer: Sketch::new() }
    }

    /// A candidate was routed at the entry model, or at a peer.
    pub fn observe(&mut self, at_entry: bool, value: f32) {
        if at_entry {
            self.entry.add(value);
        } else if self.gauge.peer_stays {
            self.peer.add(value);
        }
    }

    /// The threshold with the largest share up to the target; `None` while too little was seen.
    pub fn threshold(&self) -> Option<Threshold> {
        if self.target == 0.0 {
            return Some(Threshold::Never);
        }
        if self.target == 1.0 {
            return Some(Threshold::Always);
        }
        let peer_known = !self.gauge.peer_stays || self.peer.total() >= LEAST;
        if self.entry.total() < LEAST || !peer_known {
            return None;
        }
        let below = self.gauge.direction == Direction::Below;
        // From the threshold at which nothing but odd values asks to the one at which all do, a bin at a time.
        let (mut asks, mut stays) = (self.entry.odd(), self.peer.odd());
        let mut best = Threshold::Never;
        for step in 0..=Sketch::BINS {
            if step > 0 {
                let bin = if below { step - 1 } else { Sketch::BINS - step };
                asks += self.entry.bins()[bin];
                stays += self.peer.bins()[bin];
            }
            if self.share(asks, stays) > self.target {
                break;
            }
            best = Threshold::Value(edge(if below { step } else { Sketch::BINS - step }));
        }
        Some(best)
    }

    /// The share of tokens by the peer when so many values ask.
    fn share(&self, asks: u32, stays: u32) -> f64 {
        let p = f64::from(asks) / f64::from(self.entry.total());
        let q = match self.peer.total() {
            0 => 1.0,
            total => 1.0 - f64::from(stays) / f64::from(total),
        };
        if asks == 0 { 0.0 } else { p / (p + (1.0 - p) * q) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::Measure;
    use crate::sim::Random;

    fn gauge(direction: Direction, peer_stays: bool) -> Gauge {
        Gauge { measure: Measure::Score(0), direction, peer_stays, once: false }
    }

    #[test]
    fn one_token_return_reaches_its_share_in_every_direction() {
        for direction in [Direction::AtLeast, Direction::Below, Direction::Above] {
            for target in [0.01, 0.1, 0.5, 0.9] {
                let mut calibrator = Calibrator::new(target, gauge(direction, false));
                let mut random = Random::new(7);
                // Scores crowd at one end, as those of real heads do.
                let mut score = || (random.unit() as f32).powi(6);
                for i in 0..20_000 {
                    assert_eq!(calibrator.threshold().is_some(), i >= LEAST, "{i}");
                    calibrator.observe(true, score());
                    if i == LEAST {
                        break;
                    }
                }
                (0..20_000).for_each(|_| calibrator.observe(true, score()));
                let threshold = calibrator.threshold().unwrap();
                let asks = (0..20_000).filter(|_| direction.asks(score(), threshold)).count() as f32;
                let reached = asks / 20_000.0;
                assert!((reached - target).abs() < 0.02, "{direction} {target}: {reached} at {threshold}");
            }
        }
    }

    /// R-Stitch's chain, played out with the threshold that was chosen.
    #[test]
    fn a_peer_that_stays_is_counted_with_its_runs() {
        let mut random = Random::new(9);
        let mut entropy = |at_entry: bool| (random.unit() as f32).powi(if at_entry { 8 } else { 3 });
        for target in [0.1, 0.3, 0.6] {
            let mut calibrator = Calibrator::new(target, gauge(Direction::Above, true));
            for at_entry in [true, false] {
                assert_eq!(calibrator.threshold(), None);
                (0..30_000).for_each(|_| calibrator.observe(at_entry, entropy(at_entry)));
            }
            let threshold = calibrator.threshold().unwrap();
            let (mut at_entry, mut by_peer, mut tokens) = (true, 0, 0);
            while tokens < 30_000 {
                let asks = Direction::Above.asks(entropy(at_entry), threshold);
                tokens += i32::from(!(at_entry && asks));
                by_peer += i32::from(!at_entry);
                at_entry = !asks;
            }
            let reached = by_peer as f32 / tokens as f32;
            assert!((reached - target).abs() < 0.03, "{target}: {reached} at {threshold}");
        }
    }

    #[test]
    fn ends_are_words_and_odd_values_count_as_asking() {
        let gauge = gauge(Direction::AtLeast, false);
        assert_eq!(Calibrator::new(0.0, gauge).threshold(), Some(Threshold::Never));
        assert_eq!(Calibrator::new(1.0, gauge).threshold(), Some(Threshold::Always));
        let mut calibrator = Calibrator::new(0.3, gauge);
        for i in 0..4_000 {
            calibrator.observe(true, if i % 2 == 0 { f32::NAN } else { 0.5 });
        }
        assert_eq!(calibrator.threshold(), Some(Threshold::Never), "half of them ask at any number");
    }
}
