//! The operations that the decoder is written against: one trait, one implementation per device.
//!
//! The decoder knows the layer order and the sizes; a device knows its buffers, its cache and its
//! kernels. A count of rows goes with every call because buffers are sized once for the largest step.

pub mod cpu;

use tokenrouter_kernels::cpu::{Reduce, StepTokens};

use crate::comm::Stopped;
use crate::weights::{Linear, Norm, Tensor};

/// Per-head norm, rotation and cache write of one layer: its place and its weights.
#[derive(Clone, Copy, Debug)]
pub struct QkvLayer<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Norm weights of queries and keys.
    pub qk_norm: Option<&'a (Tensor, Tensor)>,
    /// Epsilon of those norms.
    pub eps: f32,
}

/// A device's operations. Buffers hold f32, row-major; `rows` leading rows take part.
///
/// Every operation has one fixed reduction order per row: a row's result never depends on `rows`, on
/// the other rows or on the number of threads (DESIGN rule 5).
pub trait Ops {
    /// An f32 buffer on the device.
    type Buffer;

    /// A zeroed buffer of `len` values.
    fn buffer(&self, len: usize) -> Self::Buffer;

    /// Embedding rows of `ids`.
    fn embed(&mut self, table: &Tensor, ids: &[u32], out: &mut Self::Buffer);

    /// `out = norm(x) * weight`.
    fn rms_norm(&mut self, rows: usize, x: &Self::Buffer, weight: &Tensor, eps: f32, out: &mut Self::Buffer);

    /// `residual += delta; out = norm(residual) * weight`.
    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut Self::Buffer,
        delta: &Self::Buffer,
        weight: &Tensor,
        eps: f32,
        out: &mut Self::Buffer,
    );

    /// `out = x * weight^T + bias`.
    fn linear(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        layer: &Linear,
        reduce: Reduce,
        out: &mut Self::Buffer,
    );

    /// `out = x * weight^T + bias` where each part of the model holds some of the inputs (`o_proj`, `down_proj`): the
    /// products of all parts, summed in one fixed order, and the bias once. Every part gets the sum.
    ///
    /// # Errors
    /// [`Stopped`] when another part of the model has failed.
    fn linear_joined(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        layer: &Linear,
        out: &mut Self::Buffer,
    ) -> Result<(), Stopped>;

    /// The logits `[rows, vocab]` of hidden states, those of ids that no tokenizer produces at minus infinity. `lm_head` has
    /// the rows of this part of the model. The part that samples gets all logits, the others none.
    ///
    /// # Errors
    /// [`Stopped`] when another part of the model has failed.
    fn logits(
        &mut self,
        rows: usize,
        x: &Self::Buffer,
        lm_head: &Linear,
        out: &mut Self::Buffer,
    ) -> Result<(), Stopped>;

    /// Normalises queries and keys per head, rotates them, and writes keys and values to the cache.
    fn qk_norm_rope_kv(
        &mut self,
        step: &StepTokens<'_>,
        layer: QkvLayer<'_>,
        q: &mut Self::Buffer,
        k: &mut Self::Buffer,
        v: &Self::Buffer,
    );

    /// Causal attention of every fed token over its row's cache.
    fn attention(&mut self, step: &StepTokens<'_>, layer: usize, q: &Self::Buffer, out: &mut Self::Buffer);

    /// `gate = silu(gate) * up`, `rows` rows of `cols`.
    fn silu_mul(&mut self, rows: usize, cols: usize, gate: &mut Self::Buffer, up: &Self::Buffer);

    /// `out[i] = x[index[i]]`, rows of `cols`.
    fn gather(&mut self, cols: usize, x: &Self::Buffer, index: &[u32], out: &mut Self::Buffer);

    // What learned router heads need besides.

    /// The `k` largest values of each row of `cols` in descending order, `out` rows of `k`; NaN is passed over.
    fn top_values(&mut self, rows: usize, cols: usize, x: &Self::Buffer, k: usize, out: &mut Self::Buffer);

    /// `out = (x - mean) / sqrt(variance + eps) * weight + bias`.
    fn layer_norm(&mut self, rows: usize, x: &Self::Buffer, norm: &Norm, eps: f32, out: &mut Self::Buffer);

    /// `x = x * Phi(x)` of the first `len` values.
    fn gelu(&mut self, len: usize, x: &mut Self::Buffer);

    /// `x = max(x, 0)` of the first `len` values; NaN stays NaN.
    fn relu(&mut self, len: usize, x: &mut Self::Buffer);

    /// `x = x * sigmoid(x)` of the first `len` values.
    fn silu(&mut self, len: usize, x: &mut Self::Buffer);

    /// Puts row `i` of `x` (`cols` values, one row for each fed token) where token `i` stands in the cache: `kept` has a row
    /// for every position of every page.
    fn keep(&mut self, step: &StepTokens<'_>, cols: usize, x: &Self::Buffer, kept: &mut Self::Buffer);

    /// Row `at` of `out` becomes the mean of the kept rows of the first `tokens` positions of row `row` of the step, summed
    /// in f64 in the order of the positions.
    #[expect(clippy::too_many_arguments, reason = "one place read, one written")]
    fn mean_kept(
        &mut self,
        step: &StepTokens<'_>,
        row: usize,
        tokens: usize,
        cols: usize,
        kept: &Self::Buffer,
        at: usize,
        out: &mut Self::Buffer,
    );

    /// `x += delta` of the first `len` values.
    fn add(&mut self, len: usize, x: &mut Self::Buffer, delta: &Self::Buffer);

    /// Softmax of each row of `cols` values.
    fn softmax(&mut self, rows: usize, cols: usize, x: &mut Self::Buffer);

    /// Copies rows of `cols` values into columns `at..` of the rows of `out`, which have `out_cols`.
    fn place(
        &mut self,
        rows: usize,
        cols: usize,
        x: &Self::Buffer,
        out_cols: usize,
        at: usize,
        out: &mut Self::Buffer,
    );

    /// Brings the first `out.len()` values to the host: what a head says about its rows, never their hidden states.
    fn read(&self, x: &Self::Buffer, out: &mut [f32]);
}
