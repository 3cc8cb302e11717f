//! A router that follows a routing matrix, as the throughput model assumes.

use crate::ids::{ModelId, ModelSet};
use crate::router::{RouteRow, Router, SignalSet, StepView, draw};

/// Purpose of its draws.
const HOP: u32 = 1030;

/// After a step of model `i` a request goes to `j` with probability `P[i][j]`, independently of everything else;
/// every candidate is kept.
#[derive(Clone, Debug)]
pub struct MatrixRouter {
    matrix: Vec<Vec<f64>>,
    entry: ModelId,
}

impl MatrixRouter {
    /// A router over the models that the matrix has rows for.
    pub fn new(matrix: Vec<Vec<f64>>, entry: ModelId) -> Self {
        Self { matrix, entry }
    }

    fn hop(&self, row: &RouteRow) -> ModelId {
        let Some(chances) = self.matrix.get(row.model.index()) else { return row.model };
        let mut left = draw(row.seed, row.choice, row.position, HOP, row.model);
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
}
