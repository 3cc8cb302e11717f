//! The weights of a linear layer, in any form that products know.

use super::{Int8Ref, WeightRef, int8};

/// A `[rows, cols]` matrix of weights.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// As a checkpoint stores it.
    Stored(WeightRef<'a>),
    /// Turned into 8-bit integers at load.
    Int8(Int8Ref<'a>),
}

impl<'a> From<WeightRef<'a>> for Matrix<'a> {
    fn from(w: WeightRef<'a>) -> Self {
        Matrix::Stored(w)
    }
}

impl<'a> From<Int8Ref<'a>> for Matrix<'a> {
    fn from(w: Int8Ref<'a>) -> Self {
        Matrix::Int8(w)
    }
}

impl<'a> Matrix<'a> {
    /// Outputs of the linear layer.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::Stored(w) => w.rows(),
            Matrix::Int8(w) => w.rows(),
        }
    }

    /// Inputs of the linear layer.
    pub fn cols(&self) -> usize {
        match self {
            Matrix::Stored(w) => w.cols(),
            Matrix::Int8(w) => w.cols(),
        }
    }

    /// The bytes.
    pub fn data(&self) -> &'a [u8] {
        match self {
            Matrix::Stored(w) => w.data(),
            Matrix::Int8(w) => w.data(),
        }
    }

    /// The weight in a place.
    pub(crate) fn get(&self, row: usize, col: usize) -> f32 {
        match self {
            Matrix::Stored(w) => w.get(row * w.cols() + col),
            Matrix::Int8(w) => w.get(row, col),
        }
    }

    /// Bytes from one row to the next.
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Matrix::Stored(w) => w.cols() * w.dtype().size(),
            Matrix::Int8(w) => int8::row_bytes(w.cols()),
        }
    }

    /// Bytes from the start of a row to its element `k`, or to the block of it.
    pub(crate) fn offset(&self, k: usize) -> usize {
        match self {
            Matrix::Stored(w) => k * w.dtype().size(),
            Matrix::Int8(_) => int8::block_at(k),
        }
    }

    /// Whole bytes of an element: what a prefetch goes by.
    pub(crate) fn size(&self) -> usize {
        match self {
            Matrix::Stored(w) => w.dtype().size(),
            Matrix::Int8(_) => 1,
        }
    }
}
