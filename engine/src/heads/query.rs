//! The classifier of query-level routing: `sigmoid(W2 silu(W1 m + b1) + b2)`, where `m` is the mean over the positions of
//! the prompt of the model's hidden state after the final norm.
//!
//! The mean is a sum in f64 in the order of the positions, divided once. It is taken when the row samples that has seen
//! the whole prompt, over states that lie beside keys and values in the same pages: whoever's row computed a position, in
//! whatever chunk, its state is the same to the bit (DESIGN rule 5), so that chunks, shared prefixes and preemption change
//! nothing, and a request whose prompt is cached skips it as any other does.

use tokenrouter_kernels::cpu::{Reduce, StepTokens};

use super::PromptEnd;
use super::file::QueryShape;
use super::tensors::Tensors;
use crate::error::LoadError;
use crate::ops::Ops;
use crate::weights::Linear;

/// The weights, named as in `nn.Sequential(Linear, SiLU, Linear)`.
#[derive(Clone, Debug)]
pub(crate) struct QueryWeights {
    first: Linear,
    second: Linear,
}

impl QueryWeights {
    pub(super) fn load(tensors: &mut Tensors, shape: &QueryShape, hidden: usize) -> Result<Self, LoadError> {
        let first = tensors.linear("mlp.0", shape.hidden_dim, hidden)?;
        Ok(Self { first, second: tensors.linear("mlp.2", 1, shape.hidden_dim)? })
    }

    /// The two layers, SiLU between them.
    #[cfg(feature = "cuda-host")]
    pub(super) fn layers(&self) -> (&Linear, &Linear) {
        (&self.first, &self.second)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.first.bytes() + self.second.bytes()
    }

    /// f32 values of all buffers for one row; must name what [`Query::new`] allocates.
    pub(super) fn row_values(&self) -> u64 {
        (self.first.weight.cols() + self.first.weight.rows()) as u64
    }
}

/// A classifier with its buffers.
pub(super) struct Query<O: Ops> {
    w: QueryWeights,
    mean: O::Buffer,
    inner: O::Buffer,
}

impl<O: Ops> Query<O> {
    pub(super) fn new(ops: &O, w: QueryWeights, rows: usize) -> Self {
        let buffer = |width: usize| ops.buffer(rows * width);
        Self { mean: buffer(w.first.weight.cols()), inner: buffer(w.first.weight.rows()), w }
    }

    /// The value before the sigmoid, one for each of `ends`. `states` are those of every cached position.
    pub(super) fn score(
        &mut self,
        ops: &mut O,
        step: &StepTokens<'_>,
        ends: &[PromptEnd],
        states: &O::Buffer,
        out: &mut O::Buffer,
    ) {
        let (rows, width) = (ends.len(), self.w.first.weight.rows());
        for (at, end) in ends.iter().enumerate() {
            ops.mean_kept(step, end.row, end.tokens, self.w.first.weight.cols(), states, at, &mut self.mean);
        }
        ops.linear(rows, &self.mean, &self.w.first, Reduce::Whole, &mut self.inner);
        ops.silu(rows * width, &mut self.inner);
        ops.linear(rows, &self.inner, &self.w.second, Reduce::Whole, out);
    }
}
