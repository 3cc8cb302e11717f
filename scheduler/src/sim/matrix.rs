//! A router that follows a routing matrix, as the throughput model assumes.

use crate::ids::{ModelId, ModelSet};
use crate::router::{Payload, ReceiveRow, RouteRow, Router, SignalSet, StepView, Verdict, Visit, draw};

/// Purpose of its draws.
const HOP: u32 = 1030;

/// After a step of model `i` a request goes to `j` with probability `P[i][j]`, independently of everything else.
/// Every candidate is kept, but for edges that are said to drop it.
#[derive(Clone, Debug)]
pub struct MatrixRouter {
    matrix: Vec<Vec<f64>>,
    entry: ModelId,
    keep: Vec<Vec<bool>>,
}

/// Keep, unless `keep[from][to]` says otherwise.
pub(super) fn verdict(keep: &[Vec<bool>], from: ModelId, to: ModelId) -> Verdict {
    match keep.get(from.index()).and_then(|row| row.get(to.index())) {
        Some(false) => Verdict::Drop,
        _ => Verdict::Keep,
    }
}

impl MatrixRouter {
    /// A router over the models that the matrix has rows for.
    pub fn new(matrix: Vec<Vec<f64>>, entry: ModelId) -> Self {
        Self { matrix, entry, keep: Vec::new() }
    }

    /// With a verdict for every edge: the matrix C of the paper (appendix D), `true` for a committed token. A request
    /// that stays commits in any case.
    pub fn keeping(self, keep: Vec<Vec<bool>>) -> Self {
        Self { keep, ..self }
    }

    fn hop(&self, row: &RouteRow) -> ModelId {
        let Some(chances) = self.matrix.get(row.model.index()) else { return row.model };
        // After a dropped candidate the position is the same, and the draw must not be.
        let drops = if row.visit.committed == 0 { row.visit.scratch[0] } else { 0 };
        let seed = row.seed ^ (u64::from(drops) << 56);
        let mut left = draw(seed, row.choice, row.position, HOP, row.model);
        let mut last = row.model;
        for (to, &p) in chances.iter().enumerate().filter(|&(_, &p)| p > 0.0) {
            last = ModelId(to as u8);
            if left < p {
                break;
            }
            left -= p;
        }
        last
    }
}

impl Router for MatrixRouter {
    fn name(&self) -> &str {
        "matrix"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        self.entry
    }

    fn reach(&self) -> ModelSet {
        ModelSet::first(self.matrix.len())
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        for (row, to) in step.rows.iter().zip(to) {
            *to = self.hop(row);
        }
    }

    fn send(&self, row: &RouteRow, to: ModelId, payload: &mut Payload) -> Verdict {
        let verdict = verdict(&self.keep, row.model, to);
        if verdict == Verdict::Drop {
            payload.0[0] = if row.visit.committed == 0 { row.visit.scratch[0].wrapping_add(1) } else { 1 };
        }
        verdict
    }

    fn receive(&self, _row: &ReceiveRow, _from: ModelId, payload: &Payload, visit: &mut Visit) {
        visit.scratch[0] = payload.0[0];
    }
}
