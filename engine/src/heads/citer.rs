//! CITER's network, `sigmoid(w . (W2 relu(BN(W1 h + b1)) + b2) + c)` with the running statistics of the batch norm.
//!
//! There is no activation after `W2`, so what is computed is one hidden layer: the batch norm is folded into `W1` and
//! `b1`, and `w W2` into one vector, both in f64 at load. Tensor names are those of the official state dict, without
//! `mlp.1.num_batches_tracked`, which only training reads.

use tokenrouter_kernels::cpu::Reduce;

use super::file::CiterShape;
use super::tensors::Tensors;
use crate::error::LoadError;
use crate::ops::Ops;
use crate::weights::{Linear, Tensor};

/// The folded weights.
#[derive(Clone, Debug)]
pub(crate) struct CiterWeights {
    /// `W1` and `b1` with the batch norm in them.
    first: Linear,
    /// `w W2` and `w . b2 + c`.
    second: Linear,
}

impl CiterWeights {
    pub(super) fn load(tensors: &mut Tensors, shape: &CiterShape, hidden: usize) -> Result<Self, LoadError> {
        let [inner, outer] = shape.hidden_dims;
        let first = tensors.linear("mlp.0", inner, hidden)?;
        let norm = tensors.norm("mlp.1", inner)?;
        let mean = values(&tensors.tensor("mlp.1.running_mean", &[inner])?);
        let variance = values(&tensors.tensor("mlp.1.running_var", &[inner])?);
        if let Some(at) = variance.iter().position(|v| *v < 0.0) {
            let problem = format!("value {at} is {}, a variance is not below 0", variance[at]);
            return Err(tensors.error("mlp.1.running_var", problem));
        }
        let (second, last) = (tensors.linear("mlp.4", outer, inner)?, tensors.linear("linear", 1, outer)?);
        let eps = f64::from(shape.batch_norm_eps);
        let scale: Vec<f64> =
            values(&norm.weight).iter().zip(&variance).map(|(g, v)| g / (v + eps).sqrt()).collect();
        let shift = values(&norm.bias);
        let first = fold_norm(&first, &scale, &mean, &shift);
        Self { first, second: fold_last(&second, &last) }.checked(tensors)
    }

    /// Finite weights can fold to something that is not: a variance near zero under a large factor.
    fn checked(self, tensors: &Tensors) -> Result<Self, LoadError> {
        let parts = [("mlp.1", &self.first), ("mlp.4", &self.second)];
        for (name, linear) in parts {
            let bias = linear.bias.as_ref().and_then(Tensor::first_not_finite);
            if linear.weight.first_not_finite().or(bias).is_some() {
                return Err(tensors.error(name, "folds to numbers that a single cannot hold"));
            }
        }
        Ok(self)
    }

    /// The two layers, ReLU between them.
    #[cfg(feature = "cuda-host")]
    pub(super) fn layers(&self) -> (&Linear, &Linear) {
        (&self.first, &self.second)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.first.bytes() + self.second.bytes()
    }

    /// f32 values of all buffers for one row.
    pub(super) fn row_values(&self) -> u64 {
        self.first.weight.rows() as u64
    }
}

/// All values of a matrix.
fn values(tensor: &Tensor) -> Vec<f64> {
    let view = tensor.view();
    (0..view.rows() * view.cols()).map(|i| f64::from(view.dtype().read(view.data(), i))).collect()
}

fn linear(weight: &[f64], cols: usize, bias: &[f64]) -> Linear {
    let single = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<f32>>();
    let bias = Tensor::computed(&single(bias), bias.len());
    Linear::new(Tensor::computed(&single(weight), cols), Some(bias))
}

fn bias(layer: &Linear) -> Vec<f64> {
    layer.bias.as_ref().map_or_else(|| vec![0.0; layer.weight.rows()], values)
}

/// `BN(W h + b)` as one matrix: row `i` times `scale[i]`, bias `(b[i] - mean[i]) scale[i] + shift[i]`.
fn fold_norm(layer: &Linear, scale: &[f64], mean: &[f64], shift: &[f64]) -> Linear {
    let cols = layer.weight.cols();
    let mut weight = values(&layer.weight);
    for (row, scale) in weight.chunks_exact_mut(cols).zip(scale) {
        row.iter_mut().for_each(|x| *x *= scale);
    }
    let mut shifted = bias(layer);
    for (i, b) in shifted.iter_mut().enumerate() {
        *b = (*b - mean[i]) * scale[i] + shift[i];
    }
    linear(&weight, cols, &shifted)
}

/// `w (W2 y + b2) + c` as one row.
fn fold_last(second: &Linear, last: &Linear) -> Linear {
    let cols = second.weight.cols();
    let (matrix, w) = (values(&second.weight), values(&last.weight));
    let mut row = vec![0.0; cols];
    for (from, w) in matrix.chunks_exact(cols).zip(&w) {
        for (sum, x) in row.iter_mut().zip(from) {
            *sum += w * x;
        }
    }
    let constant = bias(second).iter().zip(&w).map(|(b, w)| b * w).sum::<f64>() + bias(last)[0];
    linear(&row, cols, &[constant])
}

/// A network with its buffer.
pub(super) struct Citer<O: Ops> {
    w: CiterWeights,
    inner: O::Buffer,
}

impl<O: Ops> Citer<O> {
    pub(super) fn new(ops: &O, w: CiterWeights, rows: usize) -> Self {
        Self { inner: ops.buffer(rows * w.first.weight.rows()), w }
    }

    /// The value before the sigmoid, one for each row.
    pub(super) fn score(&mut self, ops: &mut O, rows: usize, hidden: &O::Buffer, out: &mut O::Buffer) {
        ops.linear(rows, hidden, &self.w.first, Reduce::Whole, &mut self.inner);
        ops.relu(rows * self.w.first.weight.rows(), &mut self.inner);
        ops.linear(rows, &self.inner, &self.w.second, Reduce::Whole, out);
    }
}
