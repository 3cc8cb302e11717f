//! A matrix of weights, as it lies in a memory-mapped checkpoint.

use super::Lanes;
use super::pair::Pair;
use crate::DType;
use half::{bf16, f16};

/// A row-major `[rows, cols]` matrix in little-endian bytes of any alignment.
#[derive(Clone, Copy, Debug)]
pub struct WeightRef<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    data: &'a [u8],
}

/// The bytes do not fit the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightError {
    /// Bytes that the shape needs; `None` when that number does not fit a usize.
    pub expected: Option<usize>,
    /// Bytes given.
    pub found: usize,
}

impl std::fmt::Display for WeightError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.expected {
            Some(expected) => write!(f, "weights need {expected} bytes, found {}", self.found),
            None => write!(f, "the shape overflows, found {} bytes", self.found),
        }
    }
}

impl std::error::Error for WeightError {}

impl<'a> WeightRef<'a> {
    /// Checks that `data` holds exactly `rows * cols` elements.
    ///
    /// # Errors
    /// [`WeightError`] when it does not.
    pub fn new(dtype: DType, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self, WeightError> {
        let expected = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.size()));
        if expected == Some(data.len()) {
            Ok(WeightRef { dtype, rows, cols, data })
        } else {
            Err(WeightError { expected, found: data.len() })
        }
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows: outputs of a linear layer, ids of an embedding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of a linear layer.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Rows `range` as a matrix of their own.
    ///
    /// # Panics
    /// When the range leaves the matrix.
    pub fn row_range(&self, range: std::ops::Range<usize>) -> WeightRef<'a> {
        let row_bytes = self.cols * self.dtype.size();
        let rows = range.len();
        WeightRef { rows, data: &self.data[range.start * row_bytes..range.end * row_bytes], ..*self }
    }

    /// Element `index` in row-major order.
    pub(crate) fn get(&self, index: usize) -> f32 {
        self.dtype.read(self.data, index)
    }
}

/// A stored element type, known at compile time.
pub(crate) trait Elem {
    const SIZE: usize;
    /// # Safety
    /// `SIZE` bytes must be readable at `p`.
    unsafe fn load_one(p: *const u8) -> f32;
    /// # Safety
    /// `8 * SIZE` bytes must be readable at `p`.
    unsafe fn load<V: Lanes>(p: *const u8) -> V;
    /// # Safety
    /// `8 * SIZE` bytes must be readable at `a` and at `b`.
    unsafe fn load_pair<P: Pair>(a: *const u8, b: *const u8) -> P;

    /// Elements 0 to 7 of both rows, and elements 8 to 15.
    ///
    /// # Safety
    /// `16 * SIZE` bytes must be readable at `a` and at `b`.
    #[inline(always)]
    unsafe fn load_pair_twice<P: Pair>(a: *const u8, b: *const u8) -> [P; 2] {
        // SAFETY: the caller grants 16 * SIZE readable bytes at each.
        unsafe { [Self::load_pair(a, b), Self::load_pair(a.add(8 * Self::SIZE), b.add(8 * Self::SIZE))] }
    }

    /// The first `n <= 8` elements at `a` and at `b`, then zeros.
    ///
    /// # Safety
    /// `n * SIZE` bytes must be readable at `a` and at `b`.
    #[inline(always)]
    unsafe fn load_pair_part<P: Pair>(a: *const u8, b: *const u8, n: usize) -> P {
        let mut padded = [[0u8; 32]; 2];
        debug_assert!(n <= 8);
        // SAFETY: n * SIZE bytes are readable at each, and `padded` holds twice 8 * SIZE <= 32.
        unsafe {
            std::ptr::copy_nonoverlapping(a, padded[0].as_mut_ptr(), n * Self::SIZE);
            std::ptr::copy_nonoverlapping(b, padded[1].as_mut_ptr(), n * Self::SIZE);
            Self::load_pair(padded[0].as_ptr(), padded[1].as_ptr())
        }
    }
}

/// [`DType::F32`].
pub(crate) struct F32;
/// [`DType::F16`].
pub(crate) struct F16;
/// [`DType::Bf16`].
pub(crate) struct Bf16;

macro_rules! elem {
    ($name:ident, $size:literal, $one:expr, $load:ident $(, $twice:ident)?) => {
        impl Elem for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            unsafe fn load_one(p: *const u8) -> f32 {
                // SAFETY: the caller grants SIZE readable bytes.
                let bytes: [u8; $size] = unsafe { p.cast::<[u8; $size]>().read_unaligned() };
                $one(bytes)
            }
            #[inline(always)]
            unsafe fn load<V: Lanes>(p: *const u8) -> V {
                // SAFETY: the caller grants 8 * SIZE readable bytes.
                unsafe { V::$load(p) }
            }
            #[inline(always)]
            unsafe fn load_pair<P: Pair>(a: *const u8, b: *const u8) -> P {
                // SAFETY: the caller grants 8 * SIZE readable bytes at each.
                unsafe { P::$load(a, b) }
            }
            $(#[inline(always)]
            unsafe fn load_pair_twice<P: Pair>(a: *const u8, b: *const u8) -> [P; 2] {
                // SAFETY: the caller grants 16 * SIZE readable bytes at each.
                unsafe { P::$twice(a, b) }
            })?
        }
    };
}

elem!(F32, 4, f32::from_le_bytes, load_f32);
elem!(F16, 2, |b| f16::from_le_bytes(b).to_f32(), load_f16);
elem!(Bf16, 2, |b| bf16::from_le_bytes(b).to_f32(), load_bf16, load_bf16_twice);

/// Calls `$self.$method::<V, E>(..)` with the element type `E` of `$dtype`.
macro_rules! with_elem {
    ($dtype:expr, $v:ident, $self:ident . $method:ident ( $($arg:expr),* )) => {
        match $dtype {
            $crate::DType::F32 => $self.$method::<$v, $crate::cpu::weight::F32>($($arg),*),
            $crate::DType::F16 => $self.$method::<$v, $crate::cpu::weight::F16>($($arg),*),
            $crate::DType::Bf16 => $self.$method::<$v, $crate::cpu::weight::Bf16>($($arg),*),
        }
    };
}
pub(crate) use with_elem;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_checked() {
        assert!(WeightRef::new(DType::Bf16, 2, 3, &[0; 12]).is_ok());
        let error = WeightRef::new(DType::Bf16, 2, 3, &[0; 13]).unwrap_err();
        assert_eq!(error, WeightError { expected: Some(12), found: 13 });
        assert!(WeightRef::new(DType::F32, usize::MAX, 2, &[]).unwrap_err().expected.is_none());
    }

    #[test]
    fn row_range_is_a_window() {
        let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let w = WeightRef::new(DType::F32, 3, 2, &data).unwrap().row_range(1..3);
        assert_eq!((w.rows(), w.cols(), w.get(0), w.get(3)), (2, 2, 3.0, 6.0));
    }
}
