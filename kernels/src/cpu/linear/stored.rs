//! The forms of weights that products know: elements one after the other, and 8-bit integers in blocks.

use super::direct::products;
use super::int8;
use super::meet::{Activations, Meet};
use super::packed::pack_pair;
use super::part::Ahead;
use crate::cpu::Lanes;
use crate::cpu::weight::Elem;

/// Columns `from..to` of some rows.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// A form of weights, known at compile time.
pub(super) trait Stored {
    /// Whether rows of zeros fill the last block.
    const WHOLE_BLOCKS: bool;

    /// The accumulators of `R` pairs of weight rows by `C` columns of activations over some columns of weights; `ahead` are
    /// the next rows.
    ///
    /// # Safety
    /// The columns must be readable in `2 R` rows of weights, which begin at `w`, `apart` bytes apart, and in the activations.
    /// 8-bit weights, and two activations to a column: a multiple of 8 as the first column.
    unsafe fn products<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
        w: *const u8,
        apart: usize,
        x: Activations,
        columns: Columns,
        ahead: Ahead,
    ) -> [[M::Sums; C]; R];

    /// Writes the columns of a pair of rows as f32, eight of each row to a step, steps `apart` values apart, and zeros behind
    /// the last column.
    ///
    /// # Safety
    /// The columns must be readable in the rows that begin at `a` and `b`; the steps must be writable at `out`.
    unsafe fn pack_pair<V: Lanes>(a: *const u8, b: *const u8, columns: Columns, out: *mut f32, apart: usize);
}

impl<E: Elem> Stored for E {
    const WHOLE_BLOCKS: bool = false;

    #[inline(always)]
    unsafe fn products<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
        w: *const u8,
        apart: usize,
        x: Activations,
        Columns { from, to }: Columns,
        ahead: Ahead,
    ) -> [[M::Sums; C]; R] {
        let at = from * E::SIZE;
        // SAFETY: `to - from` elements of each row are left from `from` on.
        unsafe {
            products::<V, E, M, R, C>(w.add(at), apart, M::from::<C>(x, from), to - from, ahead.from(at))
        }
    }

    #[inline(always)]
    unsafe fn pack_pair<V: Lanes>(
        a: *const u8,
        b: *const u8,
        Columns { from, to }: Columns,
        out: *mut f32,
        apart: usize,
    ) {
        // SAFETY: as the caller grants.
        unsafe { pack_pair::<V, E>(a.add(from * E::SIZE), b.add(from * E::SIZE), to - from, out, apart) }
    }
}

/// 8-bit integers with a scale for each block of 32.
pub(super) struct Int8;

impl Stored for Int8 {
    const WHOLE_BLOCKS: bool = true;

    #[inline(always)]
    unsafe fn products<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
        w: *const u8,
        apart: usize,
        x: Activations,
        columns: Columns,
        ahead: Ahead,
    ) -> [[M::Sums; C]; R] {
        // SAFETY: as the caller grants.
        unsafe { int8::products::<V, M, R, C>(w, apart, x, columns, ahead) }
    }

    #[inline(always)]
    unsafe fn pack_pair<V: Lanes>(a: *const u8, b: *const u8, columns: Columns, out: *mut f32, apart: usize) {
        // SAFETY: as the caller grants.
        unsafe { int8::pack_pair::<V>(a, b, columns, out, apart) }
    }
}

/// Calls `$self.$method::<V, S>(..)` with the form `S` of the matrix `$w`.
macro_rules! with_stored {
    ($w:expr, $v:ident, $self:ident . $method:ident ( $($arg:expr),* )) => {
        match $w {
            $crate::cpu::Matrix::Stored(w) => {
                $crate::cpu::weight::with_elem!(w.dtype(), $v, $self.$method($($arg),*))
            }
            $crate::cpu::Matrix::Int8(_) => $self.$method::<$v, $crate::cpu::linear::stored::Int8>($($arg),*),
        }
    };
}
pub(super) use with_stored;
