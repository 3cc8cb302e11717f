//! The forms of weights that products know: elements one after the other, and 8-bit integers in blocks.

use super::direct::products;
use super::int8;
use super::packed::pack_pair;
use super::part::Ahead;
use crate::cpu::Lanes;
use crate::cpu::weight::Elem;

/// Columns `from..to` of some rows.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// Of the whole row.
    pub(super) cols: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// A form of weights, known at compile time.
pub(super) trait Stored {
    /// Whether rows of zeros fill the last block.
    const WHOLE_BLOCKS: bool;

    /// The accumulators of `R` pairs of weight rows by `C` activations over some columns; `ahead` are the next rows.
    ///
    /// # Safety
    /// `2 R` rows of `cols` weights must be readable from `w` on, `apart` bytes apart, and `C` rows of as many f32 at `x`.
    /// 8-bit weights: a multiple of 8 as the first column.
    unsafe fn products<V: Lanes, const R: usize, const C: usize>(
        w: *const u8,
        apart: usize,
        x: *const f32,
        columns: Columns,
        ahead: Ahead,
    ) -> [[V::Pair; C]; R];

    /// Writes the columns of a pair of rows as f32, eight of each row to a step, steps `apart` values apart, and zeros behind
    /// the last column.
    ///
    /// # Safety
    /// Rows of `cols` weights must be readable at `a` and at `b`; the steps must be writable at `out`.
    unsafe fn pack_pair<V: Lanes>(a: *const u8, b: *const u8, columns: Columns, out: *mut f32, apart: usize);
}

impl<E: Elem> Stored for E {
    const WHOLE_BLOCKS: bool = false;

    #[inline(always)]
    unsafe fn products<V: Lanes, const R: usize, const C: usize>(
        w: *const u8,
        _: usize,
        x: *const f32,
        Columns { cols, from, to }: Columns,
        ahead: Ahead,
    ) -> [[V::Pair; C]; R] {
        let at = from * E::SIZE;
        // SAFETY: `to - from` elements of each row are left from `from` on.
        unsafe { products::<V, E, R, C>(w.add(at), x.add(from), cols, to - from, ahead.from(at)) }
    }

    #[inline(always)]
    unsafe fn pack_pair<V: Lanes>(
        a: *const u8,
        b: *const u8,
        Columns { from, to, .. }: Columns,
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
    unsafe fn products<V: Lanes, const R: usize, const C: usize>(
        w: *const u8,
        apart: usize,
        x: *const f32,
        columns: Columns,
        ahead: Ahead,
    ) -> [[V::Pair; C]; R] {
        // SAFETY: as the caller grants.
        unsafe { int8::products::<V, R, C>(w, apart, x, columns, ahead) }
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
