//! Products of a few activations with the weights as they lie in memory.

use super::part::{Ahead, Part, ROWS, WIDE, flat, flat_mut, join, tile_range};
use super::stored::{Columns, Stored, with_stored};
use crate::cpu::pair::{Pair, tile_sums, twice_part};
use crate::cpu::weight::Elem;
use crate::cpu::{Kernel, Lanes, Registers};

/// A part for which [`Part::fits_direct`].
pub(super) struct Direct<'a>(pub(super) &'a Part<'a>);

impl Kernel for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_stored!(self.0.w, V, self.blocks())
    }
}

impl Direct<'_> {
    #[inline(always)]
    fn blocks<V: Lanes, S: Stored>(&self) {
        let mut row = self.0.first;
        while row < self.0.end {
            // The last block takes rows of the one before once more, with the same result, or there are rows of zeros.
            let first = if S::WHOLE_BLOCKS { row } else { row.min(self.0.end - ROWS) };
            self.block::<V, S>(first);
            row += ROWS;
        }
    }

    /// [`ROWS`] weight rows against all activations, while the first-level cache has the rows.
    #[inline(always)]
    fn block<V: Lanes, S: Stored>(&self, row: usize) {
        let (t, w) = (self.0.t, &self.0.w);
        let ahead = Ahead { at: w.address(row + ROWS), stride: w.apart(), rows: ROWS };
        let count = match V::REGISTERS {
            // Eight meet half of the rows at a time, so the weights are widened once for all of them.
            Registers::ThirtyTwo if t.is_multiple_of(8) => t / 8,
            Registers::ThirtyTwo | Registers::Sixteen => t.div_ceil(WIDE),
            Registers::Unknown => t,
        };
        for i in 0..count {
            let t = tile_range(t, count, i);
            let ahead = ahead.share(count, i);
            match (V::REGISTERS, t.len()) {
                (Registers::ThirtyTwo, 1) => self.tile::<V, S, 4, 1>(row, t.start, ahead),
                (Registers::ThirtyTwo, 2) => self.tile::<V, S, 4, 2>(row, t.start, ahead),
                (Registers::ThirtyTwo, 3) => self.tile::<V, S, 4, 3>(row, t.start, ahead),
                (Registers::ThirtyTwo, 4) => self.tile::<V, S, 4, 4>(row, t.start, ahead),
                (Registers::ThirtyTwo, 5) => self.tile::<V, S, 4, 5>(row, t.start, ahead),
                (Registers::ThirtyTwo, 8) => self.groups::<V, S, 2, 8>(row, t.start, ahead),
                (Registers::ThirtyTwo, _) => self.tile::<V, S, 4, WIDE>(row, t.start, ahead),
                (Registers::Sixteen, 1) => self.groups::<V, S, 2, 1>(row, t.start, ahead),
                (Registers::Sixteen, 2) => self.groups::<V, S, 2, 2>(row, t.start, ahead),
                (Registers::Sixteen, 3) => self.groups::<V, S, 1, 3>(row, t.start, ahead),
                (Registers::Sixteen, 4) => self.groups::<V, S, 1, 4>(row, t.start, ahead),
                (Registers::Sixteen, 5) => self.groups::<V, S, 1, 5>(row, t.start, ahead),
                (Registers::Sixteen, _) => self.groups::<V, S, 1, WIDE>(row, t.start, ahead),
                (Registers::Unknown, _) => self.groups::<V, S, 1, 1>(row, t.start, ahead),
            }
        }
    }

    /// A block as several tiles of `R` pairs of weight rows.
    #[inline(always)]
    fn groups<V: Lanes, S: Stored, const R: usize, const C: usize>(
        &self,
        row: usize,
        t: usize,
        ahead: Ahead,
    ) {
        let count = ROWS / (2 * R);
        for group in 0..count {
            self.tile::<V, S, R, C>(row + 2 * R * group, t, ahead.share(count, group));
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, S: Stored, const R: usize, const C: usize>(&self, row: usize, t: usize, ahead: Ahead) {
        let part = self.0;
        let (k, apart) = (part.w.cols(), part.w.apart());
        let (borders, segments) = part.reduce.borders(k);
        let mut joined = [[[0.0f32; 2]; R]; C];
        let mut held = joined;
        for i in 0..segments {
            let (from, to) = (borders[i], borders[i + 1]);
            // SAFETY: the rows from `row` on, at most N or those of a whole block, and t + C <= T activations have K
            // elements each, of which from..to are read; the lengths were checked by the matrix and by `linear`, the
            // borders by `Part::fits_direct`.
            let acc = unsafe {
                let x = part.x.as_ptr().add(t * k);
                S::products::<V, R, C>(part.w.address(row), apart, x, Columns { cols: k, from, to }, ahead)
            };
            let sums = tile_sums(&acc);
            join(i, flat(&sums), flat_mut(&mut joined), flat_mut(&mut held));
        }
        for c in 0..C {
            part.finish(row, t + c, joined[c].as_flattened());
        }
    }
}

/// The accumulators of `R` pairs of weight rows by `C` activations over `len` elements.
///
/// # Safety
/// `2 R` rows of type `E` and `C` rows of f32, all `stride` elements apart, must have `len` readable elements at `w` and
/// at `x`.
#[inline(always)]
pub(super) unsafe fn products<V: Lanes, E: Elem, const R: usize, const C: usize>(
    w: *const u8,
    x: *const f32,
    stride: usize,
    len: usize,
    ahead: Ahead,
) -> [[V::Pair; C]; R] {
    let mut acc = [[V::Pair::zero(); C]; R];
    let row = stride * E::SIZE;
    let mut k = 0;
    while k + 16 <= len {
        if k.is_multiple_of(32) {
            ahead.ask::<V>(k, E::SIZE);
        }
        let mut ws = [[V::Pair::zero(); 2]; R];
        for r in 0..R {
            // SAFETY: k + 16 <= len elements of both rows of the pair.
            ws[r] = unsafe {
                let a = w.add(2 * r * row + k * E::SIZE);
                E::load_pair_twice(a, a.add(row))
            };
        }
        for half in 0..2 {
            for c in 0..C {
                // SAFETY: k + 16 <= len elements.
                let xs = unsafe { V::Pair::twice(x.add(c * stride + k + 8 * half)) };
                for r in 0..R {
                    acc[r][c] = ws[r][half].mul_add(xs, acc[r][c]);
                }
            }
        }
        k += 16;
    }
    while k < len {
        let n = (len - k).min(8);
        for c in 0..C {
            // SAFETY: n elements are left in each row.
            let xs: V::Pair = unsafe { twice_part(x.add(c * stride + k), n) };
            for r in 0..R {
                // SAFETY: n elements are left in each row.
                let ws: V::Pair = unsafe {
                    let a = w.add(2 * r * row + k * E::SIZE);
                    E::load_pair_part(a, a.add(row), n)
                };
                acc[r][c] = ws.mul_add(xs, acc[r][c]);
            }
        }
        k += n;
    }
    acc
}
