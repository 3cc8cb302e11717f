//! The weights of a linear layer, in any form that products know.

use super::int8::block_at;
use super::{Int8Ref, WeightRef};

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

    /// Where a row begins; a row that is not there has an address too, for prefetches.
    #[inline(always)]
    pub(crate) fn address(&self, row: usize) -> *const u8 {
        match self {
            Matrix::Stored(w) => w.data().as_ptr().wrapping_add(row * w.cols() * w.dtype().size()),
            Matrix::Int8(w) => w.address(row),
        }
    }

    /// Bytes from one of eight rows to the next; the first of them is a multiple of eight.
    #[inline(always)]
    pub(crate) fn apart(&self) -> usize {
        match self {
            Matrix::Stored(w) => w.cols() * w.dtype().size(),
            Matrix::Int8(w) => w.plane(),
        }
    }

    /// Bytes from the start of a row to its element `k`, or to the block of it.
    pub(crate) fn offset(&self, k: usize) -> usize {
        match self {
            Matrix::Stored(w) => k * w.dtype().size(),
            Matrix::Int8(_) => block_at(k),
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
