//! Products of a few activations with the weights as they lie in memory.

use std::ops::Range;

use super::meet::{Activations, Meet, Twice};
use super::part::{Ahead, Part, ROWS, Rows, WIDE, flat, flat_mut, join, tile_range};
use super::stored::{Columns, Stored, with_stored};
use crate::cpu::pair::{Pair, tile_sums};
use crate::cpu::weight::Elem;
use crate::cpu::{Kernel, Lanes, Registers};

/// How far ahead of what is read each plane is prefetched, in bytes: a processor's own prefetching follows such long streams.
/// Eight planes at 512 bytes are 4 KiB on their way, too few for a core that reads 36 GB/s: on Zen 5 one activation gains 10 % at
/// 1,024, and with AVX2, which takes longer to compute what it waited for, 50 % there and 60 at 1,536. Where cores read 22
/// GB/s, 256 to 1,024 are equally good. The next row of each plane, if rows are long, is up to a quarter slower.
#[inline(always)]
fn distance<V: Lanes>() -> usize {
    if V::REGISTERS == Registers::ThirtyTwo { 1024 } else { 1536 }
}

/// Bytes of weights that stay in the second-level cache while one tile of activations after the other passes by.
const CHUNK: usize = 256 * 1024;

/// Columns for each activation from which on planes are worth it: outputs of planes are written one by one.
const WORTH: usize = 32;

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
    /// All blocks: first [`ROWS`] planes, one row of each to a block, then what rows are left, neighbours to a block. A plane is
    /// a stream from its start to its end: a processor reads eight long streams 30 to 60 % faster than eight rows that lie
    /// side by side.
    #[inline(always)]
    fn blocks<V: Lanes, S: Stored>(&self) {
        let (part, tiles) = (self.0, self.tiles::<V>());
        let plane = if self.pays::<V, S>(tiles) { part.plane() } else { 0 };
        let chunk = (CHUNK / (ROWS * part.w.apart())).max(1);
        let count = plane + (part.end - part.first - plane * ROWS).div_ceil(ROWS);
        let mut from = 0;
        while from < count {
            // One tile of activations after the other passes by a chunk of planes, or by a block of neighbours.
            let to = if from >= plane { from + 1 } else { plane.min(from + chunk) };
            for i in 0..tiles {
                for block in from..to {
                    let (rows, ahead) = self.rows::<V, S>(plane, block, (tiles, i));
                    self.block::<V, S>(rows, tile_range(part.t, tiles, i), ahead);
                }
            }
            from = to;
        }
    }

    /// The rows of a block and what tile `i` of `tiles` of activations asks for meanwhile.
    #[inline(always)]
    fn rows<V: Lanes, S: Stored>(
        &self,
        plane: usize,
        block: usize,
        (tiles, i): (usize, usize),
    ) -> (Rows, Ahead) {
        let (w, apart) = (&self.0.w, self.0.w.apart());
        if block < plane {
            let first = self.0.first + block;
            let at = w.address(first).wrapping_add(distance::<V>());
            return (Rows { first, step: plane }, Ahead { at, stride: apart * plane, rows: ROWS });
        }
        let row = self.0.first + block * ROWS;
        // The last block takes rows of the one before once more, with the same result, or there are rows of zeros.
        let first = if S::WHOLE_BLOCKS { row } else { row.min(self.0.end - ROWS) };
        // 8-bit weights are planes in memory.
        let along = S::WHOLE_BLOCKS && tiles == 1;
        let at = if along { w.address(row).wrapping_add(distance::<V>()) } else { w.address(row + ROWS) };
        (Rows { first, step: 1 }, Ahead { at, stride: apart, rows: ROWS }.share(tiles, i))
    }

    /// Whether it pays to take most rows as planes. Many outputs, written one by one, cost more than few columns gain, and
    /// with 16 registers a block that meets several tiles keeps the processor busy for longer than the memory.
    #[inline(always)]
    fn pays<V: Lanes, S: Stored>(&self, tiles: usize) -> bool {
        let fits = V::REGISTERS == Registers::ThirtyTwo || tiles == 1;
        fits && !S::WHOLE_BLOCKS && self.0.w.cols() >= WORTH * self.0.t
    }

    /// Tiles of activations that a block of weight rows meets.
    #[inline(always)]
    fn tiles<V: Lanes>(&self) -> usize {
        let t = self.0.t;
        match V::REGISTERS {
            // Eight meet half of the rows at a time, so the weights are widened once for all of them.
            Registers::ThirtyTwo if t.is_multiple_of(8) => t / 8,
            Registers::ThirtyTwo | Registers::Sixteen => t.div_ceil(WIDE),
            Registers::Unknown => t,
        }
    }

    /// [`ROWS`] weight rows against a tile of activations.
    #[inline(always)]
    fn block<V: Lanes, S: Stored>(&self, rows: Rows, t: Range<usize>, ahead: Ahead) {
        match (V::REGISTERS, t.len()) {
            (Registers::ThirtyTwo, 1) => self.tile::<V, S, 4, 1>(rows, t.start, ahead),
            (Registers::ThirtyTwo, 2) => self.tile::<V, S, 4, 2>(rows, t.start, ahead),
            (Registers::ThirtyTwo, 3) => self.tile::<V, S, 4, 3>(rows, t.start, ahead),
            (Registers::ThirtyTwo, 4) => self.tile::<V, S, 4, 4>(rows, t.start, ahead),
            (Registers::ThirtyTwo, 5) => self.tile::<V, S, 4, 5>(rows, t.start, ahead),
            (Registers::ThirtyTwo, 8) => self.groups::<V, S, 2, 8>(rows, t.start, ahead),
            (Registers::ThirtyTwo, _) => self.tile::<V, S, 4, WIDE>(rows, t.start, ahead),
            (Registers::Sixteen, 1) => self.groups::<V, S, 2, 1>(rows, t.start, ahead),
            (Registers::Sixteen, 2) => self.groups::<V, S, 2, 2>(rows, t.start, ahead),
            (Registers::Sixteen, 3) => self.groups::<V, S, 1, 3>(rows, t.start, ahead),
            (Registers::Sixteen, 4) => self.groups::<V, S, 1, 4>(rows, t.start, ahead),
            (Registers::Sixteen, 5) => self.groups::<V, S, 1, 5>(rows, t.start, ahead),
            (Registers::Sixteen, _) => self.groups::<V, S, 1, WIDE>(rows, t.start, ahead),
            (Registers::Unknown, _) => self.groups::<V, S, 1, 1>(rows, t.start, ahead),
        }
    }

    /// A block as several tiles of `R` pairs of weight rows.
    #[inline(always)]
    fn groups<V: Lanes, S: Stored, const R: usize, const C: usize>(
        &self,
        rows: Rows,
        t: usize,
        ahead: Ahead,
    ) {
        let count = ROWS / (2 * R);
        for group in 0..count {
            self.tile::<V, S, R, C>(rows.from(2 * R * group), t, ahead.share(count, group));
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, S: Stored, const R: usize, const C: usize>(&self, rows: Rows, t: usize, ahead: Ahead) {
        let part = self.0;
        let (k, apart) = (part.w.cols(), part.w.apart() * rows.step);
        let (borders, segments) = part.reduce.borders(k);
        let mut joined = [[[0.0f32; 2]; R]; C];
        let mut held = joined;
        for i in 0..segments {
            let (from, to) = (borders[i], borders[i + 1]);
            // SAFETY: the rows, at most N or those of a whole block, and t + C <= T activations have K elements each, of
            // which from..to are read; the lengths were checked by the matrix and by `linear`, the borders by
            // `Part::fits_direct`.
            let acc = unsafe {
                let x = Activations { at: part.x.as_ptr().add(t * k), stride: k };
                S::products::<V, Twice, R, C>(
                    part.w.address(rows.first),
                    apart,
                    x,
                    Columns { from, to },
                    ahead,
                )
            };
            let sums = tile_sums(&acc);
            join(i, flat(&sums), flat_mut(&mut joined), flat_mut(&mut held));
        }
        part.finish(rows, t, 2 * R, flat_mut(&mut joined));
    }
}

/// The accumulators of `R` pairs of weight rows by `C` columns of activations over `len` elements.
///
/// # Safety
/// `2 R` rows of type `E`, `apart` bytes apart, must have `len` readable elements at `w`, and so must the activations.
#[inline(always)]
pub(super) unsafe fn products<V: Lanes, E: Elem, M: Meet<V::Pair>, const R: usize, const C: usize>(
    w: *const u8,
    apart: usize,
    x: Activations,
    len: usize,
    ahead: Ahead,
) -> [[M::Sums; C]; R] {
    let mut acc = [[M::zero(); C]; R];
    let mut k = 0;
    while k + 16 <= len {
        if k.is_multiple_of(32) {
            ahead.ask::<V>(k, E::SIZE);
        }
        let mut ws = [[V::Pair::zero(); 2]; R];
        for r in 0..R {
            // SAFETY: k + 16 <= len elements of both rows of the pair.
            ws[r] = unsafe {
                let a = w.add(2 * r * apart + k * E::SIZE);
                E::load_pair_twice(a, a.add(apart))
            };
        }
        for half in 0..2 {
            for c in 0..C {
                // SAFETY: k + 16 <= len elements.
                let xs = unsafe { M::load::<C>(x, c, k + 8 * half) };
                for r in 0..R {
                    acc[r][c] = M::add(ws[r][half], xs, acc[r][c]);
                }
            }
        }
        k += 16;
    }
    while k < len {
        let n = (len - k).min(8);
        for c in 0..C {
            // SAFETY: n elements are left in each row.
            let xs = unsafe { M::load_part::<C>(x, c, k, n) };
            for r in 0..R {
                // SAFETY: n elements are left in each row.
                let ws: V::Pair = unsafe {
                    let a = w.add(2 * r * apart + k * E::SIZE);
                    E::load_pair_part(a, a.add(apart), n)
                };
                acc[r][c] = M::add(ws, xs, acc[r][c]);
            }
        }
        k += n;
    }
    acc
}
