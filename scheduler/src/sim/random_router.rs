//! A router that does everything a router may do, at random.

use crate::ids::{ModelId, ModelSet};
use crate::router::{Payload, ReceiveRow, RouteRow, Router, SignalSet, StepView, Verdict, Visit, draw};

/// Candidates it drops in a row before it keeps one.
const PATIENCE: u8 = 3;

/// Purposes of its draws.
const MOVES: u32 = 1024;
const TARGET: u32 = 1025;
const DROPS: u32 = 1026;

/// Moves requests between any of its models and keeps or drops their candidates, by seeded draws. It makes
/// progress: how many candidates were dropped in a row travels in the payload, and after a few it keeps one.
#[derive(Clone, Copy, Debug)]
pub struct RandomRouter {
    seed: u64,
    models: u8,
    move_chance: f64,
    drop_chance: f64,
}

impl RandomRouter {
    /// A router over the first `models` models that moves a request with the one chance and, if it moves, drops
    /// the candidate with the other.
    pub fn new(seed: u64, models: usize, move_chance: f64, drop_chance: f64) -> Self {
        Self { seed, models: models as u8, move_chance, drop_chance }
    }

    /// Drops since the last token that was kept.
    fn drops(row: &RouteRow) -> u8 {
        if row.visit.committed == 0 { row.visit.scratch[0] } else { 0 }
    }

    /// The candidate, the signals and the drops so far are in the key: a second look may decide otherwise.
    fn draw(&self, row: &RouteRow, purpose: u32) -> f64 {
        let seen = u64::from(row.candidate) ^ (u64::from(row.signals.scores[0].to_bits()) << 8);
        let seed = row.seed ^ self.seed ^ (seen << 16) ^ (u64::from(Self::drops(row)) << 56);
        draw(seed, row.choice, row.position, purpose, row.model)
    }
}

impl Router for RandomRouter {
    fn name(&self) -> &str {
        "random"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::score(0)
    }

    fn entry(&self) -> ModelId {
        ModelId((self.seed % u64::from(self.models)) as u8)
    }

    fn reach(&self) -> ModelSet {
        ModelSet::first(usize::from(self.models))
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            let moves = self.draw(row, MOVES) < self.move_chance;
            let target = ModelId((self.draw(row, TARGET) * f64::from(self.models)) as u8);
            *to = if moves { target } else { row.model };
        }
    }

    fn send(&self, row: &RouteRow, _to: ModelId, payload: &mut Payload) -> Verdict {
        let drops = Self::drops(row);
        if drops < PATIENCE && self.draw(row, DROPS) < self.drop_chance {
            payload.0[0] = drops + 1;
            Verdict::Drop
        } else {
            Verdict::Keep
        }
    }

    fn receive(&self, _row: &ReceiveRow, _from: ModelId, payload: &Payload, visit: &mut Visit) {
        visit.scratch[0] = payload.0[0];
    }
}
