//! Products of several activations, two to a register ([`Side`]), with the weights as they lie in memory.
//!
//! For processors on which a load of eight values into both halves of a register costs a multiplication, see
//! [`Isa::crosses`](crate::cpu::Isa::crosses). Crossing a register of weights costs one instruction for all activations of a
//! tile.

use super::Reduce;
use super::meet::{Activations, Side};
use super::part::{Ahead, Part, ROWS, Rows, join, tile_range};
use super::stored::{Columns, Stored, with_stored};
use crate::cpu::pair::Pair;
use crate::cpu::shared::SharedMut;
use crate::cpu::workers::{LINES, Line};
use crate::cpu::{Ctx, Kernel, Lanes, Matrix, Registers, dispatch};

/// From so many activations on it pays to lay them side by side...
const FEWEST: usize = 7;
/// ...and from so many, if they stay in the first-level cache, of which they may take so many bytes.
const FEWEST_NEAR: usize = 5;
const NEAR: usize = 32 * 1024;
/// 8-bit weights take more instructions to turn, so from more activations on it pays to do it once.
const MOST_INT8: usize = 16;
/// Most pairs of activations in a tile.
const WIDE: usize = 5;
/// Fewest pairs in a panel that is worth it: longer activations do not fit.
const PANEL_MIN: usize = 4;
/// So many values are laid side by side by one thread.
const ALONE: usize = 32 * 1024;
/// Bytes of weights that stay near while one tile of activations after the other passes by.
const CHUNK: usize = 64 * 1024;
/// How far ahead weights are prefetched that only one tile meets, in bytes.
const DISTANCE: usize = 2048;
/// Columns for each activation from which on planes are worth it: outputs of planes are written one by one.
const WORTH: usize = 32;

/// Pairs of `t` activations that pass by together, in panels of about equal length; 0 where another way is better. Steps of
/// eight columns are packed, so no border of a segment may lie within one.
pub(super) fn panel(t: usize, w: &Matrix<'_>, reduce: Reduce) -> usize {
    let (borders, segments) = reduce.borders(w.cols());
    let most = if matches!(w, Matrix::Int8(_)) { MOST_INT8 } else { usize::MAX };
    let near = t.div_ceil(2).saturating_mul(8 * w.cols()) <= NEAR;
    let pays = t <= most && (t >= FEWEST || (t >= FEWEST_NEAR && near));
    let fit = LINES / w.cols().div_ceil(8);
    if !pays || fit < PANEL_MIN || !borders[..segments].iter().all(|k| k.is_multiple_of(8)) {
        return 0;
    }
    let pairs = t.div_ceil(2);
    pairs.div_ceil(pairs.div_ceil(fit))
}

/// Lays `t` activations of `k` columns side by side, one tile after the other.
pub(super) fn pack(ctx: &Ctx<'_>, x: &[f32], t: usize, k: usize, packed: &mut [Line]) {
    let (pairs, steps) = (t.div_ceil(2), k.div_ceil(8));
    let tiles = pairs.div_ceil(WIDE);
    let packed = SharedMut::new(packed);
    let body = |i: usize| {
        let tile = tile_range(pairs, tiles, i);
        // SAFETY: the lines of a tile belong to this part alone.
        let out = unsafe { packed.part(tile.start * steps, tile.len() * steps) };
        dispatch(ctx.isa, Pack { x, t, k, out, first: tile.start, columns: tile.len() });
    };
    if t * k <= ALONE { (0..tiles).for_each(body) } else { ctx.workers.run(tiles, &body) }
}

/// Lays `columns` pairs of activations side by side, `[step][column]`: written from one end to the other.
struct Pack<'a> {
    x: &'a [f32],
    t: usize,
    k: usize,
    out: &'a mut [Line],
    first: usize,
    columns: usize,
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        const NONE: [f32; 8] = [0.0; 8];
        let Self { x, t, k, out, first, columns } = self;
        for step in 0..k / 8 {
            for c in 0..columns {
                let at = 2 * (first + c);
                let a = &x[at * k + 8 * step..][..8];
                let b = if at + 1 < t { &x[(at + 1) * k + 8 * step..][..8] } else { &NONE[..] };
                let out = out[step * columns + c].0.as_mut_ptr();
                // SAFETY: both have eight values, and a line takes sixteen.
                unsafe { V::Pair::load_f32(a.as_ptr().cast(), b.as_ptr().cast()).write(out) };
            }
        }
        if k.is_multiple_of(8) {
            return;
        }
        for c in 0..columns {
            let out = &mut out[k / 8 * columns + c].0;
            *out = [0.0; 16];
            for half in 0..2 {
                let at = 2 * (first + c) + half;
                for i in 0..k % 8 {
                    out[8 * half + i] = if at < t { x[at * k + k / 8 * 8 + i] } else { 0.0 };
                }
            }
        }
    }
}

/// A part for which [`Part::fits_direct`], and what [`pack`] made of its activations.
pub(super) struct Crossed<'a>(pub(super) &'a Part<'a>, pub(super) &'a [Line]);

impl Kernel for Crossed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        // See `Part::run`.
        if V::REGISTERS == Registers::ThirtyTwo {
            with_stored!(self.0.w, V, self.blocks())
        }
    }
}

impl Crossed<'_> {
    /// All blocks of weight rows: one tile of activations after the other passes by a chunk of them. A single tile waits for
    /// the memory, so it takes most rows as planes, see [`Part::plane`], whose outputs are written one by one.
    #[inline(always)]
    fn blocks<V: Lanes, S: Stored>(&self) {
        let part = self.0;
        let tiles = part.t.div_ceil(2).div_ceil(WIDE);
        let planes = !S::WHOLE_BLOCKS && tiles == 1 && part.w.cols() >= WORTH * part.t;
        let plane = if planes { part.plane() } else { 0 };
        let count = plane + (part.end - part.first - plane * ROWS).div_ceil(ROWS);
        let row_bytes = part.w.data().len() / part.w.rows();
        let chunk = (CHUNK / (ROWS * row_bytes)).max(1);
        let mut from = 0;
        while from < count {
            let to = count.min(from + chunk);
            for i in 0..tiles {
                for block in from..to {
                    self.block::<V, S>((tiles, i), (plane, block, chunk));
                }
            }
            from = to;
        }
    }

    /// A block against tile `i`, which asks meanwhile for what comes next of these rows, or where there are several, for its
    /// share of the next chunk.
    #[inline(always)]
    fn block<V: Lanes, S: Stored>(
        &self,
        (tiles, i): (usize, usize),
        (plane, block, chunk): (usize, usize, usize),
    ) {
        let (part, w, apart) = (self.0, &self.0.w, self.0.w.apart());
        let (row, step) =
            if block < plane { (part.first + block, plane) } else { (part.first + block * ROWS, 1) };
        // The last block takes rows of the one before once more, with the same result, or there are rows of zeros.
        let first = if S::WHOLE_BLOCKS || step > 1 { row } else { row.min(part.end - ROWS) };
        // 8-bit weights are planes in memory.
        let at = match tiles {
            1 if S::WHOLE_BLOCKS || step > 1 => w.address(row).wrapping_add(DISTANCE),
            1 => w.address(row + ROWS),
            _ => w.address(row + chunk * ROWS),
        };
        let ahead = Ahead { at, stride: apart * step, rows: ROWS }.share(tiles, i);
        let rows = Rows { first, step };
        let pairs = tile_range(part.t.div_ceil(2), tiles, i);
        match pairs.len() {
            1 => self.groups::<V, S, 1>(rows, pairs.start, ahead),
            2 => self.groups::<V, S, 2>(rows, pairs.start, ahead),
            3 => self.groups::<V, S, 3>(rows, pairs.start, ahead),
            4 => self.groups::<V, S, 4>(rows, pairs.start, ahead),
            _ => self.groups::<V, S, WIDE>(rows, pairs.start, ahead),
        }
    }

    /// A block as two tiles of two pairs of weight rows.
    #[inline(always)]
    fn groups<V: Lanes, S: Stored, const C: usize>(&self, rows: Rows, pair: usize, ahead: Ahead) {
        for group in 0..2 {
            self.tile::<V, S, C>(rows.from(4 * group), pair, ahead.share(2, group));
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, S: Stored, const C: usize>(&self, rows: Rows, pair: usize, ahead: Ahead) {
        let part = self.0;
        let (k, apart) = (part.w.cols(), part.w.apart() * rows.step);
        let x = Activations { at: self.1[pair * k.div_ceil(8)..].as_ptr().cast(), stride: 0 };
        let (borders, segments) = part.reduce.borders(k);
        // Of each pair of activations, `[activation][row]`.
        let mut joined = [[[0.0f32; 4]; 2]; C];
        let mut held = joined;
        for i in 0..segments {
            let columns = Columns { from: borders[i], to: borders[i + 1] };
            // SAFETY: the rows, at most N or those of a whole block, have K elements each, and C pairs of activations have as
            // many in what was packed, with zeros up to a multiple of 8; the lengths were checked by the matrix and by `linear`,
            // the borders by `panel`.
            let acc =
                unsafe { S::products::<V, Side, 2, C>(part.w.address(rows.first), apart, x, columns, ahead) };
            let mut sums = joined;
            for c in 0..C {
                let [[s0, x0], [s1, x1]] = [acc[0][c], acc[1][c]];
                sums[c] = V::Pair::crossed_sums([s0, s1], [x0, x1]);
            }
            join(
                i,
                sums.as_flattened().as_flattened(),
                joined.as_flattened_mut().as_flattened_mut(),
                held.as_flattened_mut().as_flattened_mut(),
            );
        }
        part.finish(rows, 2 * pair, 4, joined.as_flattened_mut().as_flattened_mut());
    }
}
