//! Products of several activations, two to a register ([`Side`]), with the weights as they lie in memory.
//!
//! For processors on which a load of eight values into both halves of a register costs a multiplication, see
//! [`Isa::crosses`](crate::cpu::Isa::crosses). Crossing a register of weights costs one instruction for all activations of a
//! tile.

use std::cell::RefCell;
use std::ops::Range;

use super::meet::{Activations, Side};
use super::part::{Ahead, Part, ROWS, Rows, join, tile_range};
use super::stored::{Columns, Stored, with_stored};
use crate::cpu::pair::Pair;
use crate::cpu::{Kernel, Lanes, Matrix, Registers};

/// From so many activations on it pays to lay them side by side...
const FEWEST: usize = 7;
/// ...and from so many, if they stay in the first-level cache, of which they may take so many bytes.
const FEWEST_NEAR: usize = 5;
const NEAR: usize = 32 * 1024;
/// 8-bit weights take more instructions to turn, so from more activations on it pays to do it once.
const MOST_INT8: usize = 16;
/// Most pairs of activations in a tile.
const WIDE: usize = 5;
/// Bytes of activations that the second-level cache keeps while weights pass by.
const PANEL: usize = 512 * 1024;
/// Bytes of weights that stay near while one tile of activations after the other passes by.
const CHUNK: usize = 64 * 1024;
/// How far ahead weights are prefetched that only one tile meets, in bytes.
const DISTANCE: usize = 2048;
/// Columns for each activation from which on planes are worth it: outputs of planes are written one by one.
const WORTH: usize = 32;

/// A step of eight columns of two activations.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Step([f32; 16]);

thread_local! {
    /// The activations of a panel, side by side.
    static PACKED: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// Whether it pays for so many activations.
pub(super) fn pays(t: usize, w: &Matrix<'_>) -> bool {
    let most = if matches!(w, Matrix::Int8(_)) { MOST_INT8 } else { usize::MAX };
    let near = t.div_ceil(2).saturating_mul(8 * w.cols()) <= NEAR;
    t <= most && (t >= FEWEST || (t >= FEWEST_NEAR && near))
}

/// A part for which [`Part::fits_crossed`].
pub(super) struct Crossed<'a>(pub(super) &'a Part<'a>);

impl Kernel for Crossed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        // No other set crosses, see `Isa::crosses`.
        if V::REGISTERS == Registers::ThirtyTwo {
            with_stored!(self.0.w, V, self.panels())
        }
    }
}

/// Pairs of activations that pass by together, as tiles.
struct Panel<'a> {
    /// The first of them.
    first: usize,
    pairs: usize,
    tiles: usize,
    packed: &'a [Step],
}

impl Crossed<'_> {
    #[inline(always)]
    fn panels<V: Lanes, S: Stored>(&self) {
        let (k, pairs) = (self.0.w.cols(), self.0.t.div_ceil(2));
        let most = (PANEL / (8 * k)).max(2 * WIDE);
        let count = pairs.div_ceil(most);
        // Not in a closure, which would not be code of the instruction set.
        let mut packed = PACKED.take();
        for i in 0..count {
            let range = tile_range(pairs, count, i);
            let tiles = range.len().div_ceil(WIDE);
            self.pack::<V>(&mut packed, &range, tiles);
            let panel = Panel { first: range.start, pairs: range.len(), tiles, packed: &packed };
            self.blocks::<V, S>(&panel);
        }
        PACKED.set(packed);
    }

    /// Lays the activations of a panel side by side, one tile after the other.
    #[inline(always)]
    fn pack<V: Lanes>(&self, packed: &mut Vec<Step>, pairs: &Range<usize>, tiles: usize) {
        let steps = self.0.w.cols().div_ceil(8);
        if packed.len() < pairs.len() * steps {
            packed.resize(pairs.len() * steps, Step([0.0; 16]));
        }
        for i in 0..tiles {
            let tile = tile_range(pairs.len(), tiles, i);
            let out = &mut packed[tile.start * steps..tile.end * steps];
            self.pack_tile::<V>(out, pairs.start + tile.start, tile.len());
        }
    }

    /// Lays `columns` pairs of activations side by side, `[step][column]`: written from one end to the other.
    #[inline(always)]
    fn pack_tile<V: Lanes>(&self, out: &mut [Step], first: usize, columns: usize) {
        const NONE: [f32; 8] = [0.0; 8];
        let (k, t) = (self.0.w.cols(), self.0.t);
        for step in 0..k / 8 {
            for c in 0..columns {
                let at = 2 * (first + c);
                let a = &self.0.x[at * k + 8 * step..][..8];
                let b = if at + 1 < t { &self.0.x[(at + 1) * k + 8 * step..][..8] } else { &NONE[..] };
                let out = out[step * columns + c].0.as_mut_ptr();
                // SAFETY: both have eight values, and a step takes sixteen.
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
                    out[8 * half + i] = if at < t { self.0.x[at * k + k / 8 * 8 + i] } else { 0.0 };
                }
            }
        }
    }

    /// All blocks of weight rows against a panel: one tile after the other passes by a chunk of them. A single tile waits for
    /// the memory, so it takes most rows as planes, see [`Part::plane`], whose outputs are written one by one.
    #[inline(always)]
    fn blocks<V: Lanes, S: Stored>(&self, panel: &Panel<'_>) {
        let part = self.0;
        let planes = !S::WHOLE_BLOCKS && panel.tiles == 1 && part.w.cols() >= WORTH * part.t;
        let plane = if planes { part.plane() } else { 0 };
        let count = plane + (part.end - part.first - plane * ROWS).div_ceil(ROWS);
        let row_bytes = part.w.data().len() / part.w.rows();
        let chunk = (CHUNK / (ROWS * row_bytes)).max(1);
        let mut from = 0;
        while from < count {
            let to = count.min(from + chunk);
            for i in 0..panel.tiles {
                for block in from..to {
                    self.block::<V, S>(panel, i, (plane, block, chunk));
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
        panel: &Panel<'_>,
        i: usize,
        (plane, block, chunk): (usize, usize, usize),
    ) {
        let (part, w, apart) = (self.0, &self.0.w, self.0.w.apart());
        let (row, step) =
            if block < plane { (part.first + block, plane) } else { (part.first + block * ROWS, 1) };
        // The last block takes rows of the one before once more, with the same result, or there are rows of zeros.
        let first = if S::WHOLE_BLOCKS || step > 1 { row } else { row.min(part.end - ROWS) };
        // 8-bit weights are planes in memory.
        let at = match panel.tiles {
            1 if S::WHOLE_BLOCKS || step > 1 => w.address(row).wrapping_add(DISTANCE),
            1 => w.address(row + ROWS),
            _ => w.address(row + chunk * ROWS),
        };
        let ahead = Ahead { at, stride: apart * step, rows: ROWS }.share(panel.tiles, i);
        let rows = Rows { first, step };
        let pairs = tile_range(panel.pairs, panel.tiles, i);
        match pairs.len() {
            1 => self.groups::<V, S, 1>(panel, rows, pairs.start, ahead),
            2 => self.groups::<V, S, 2>(panel, rows, pairs.start, ahead),
            3 => self.groups::<V, S, 3>(panel, rows, pairs.start, ahead),
            4 => self.groups::<V, S, 4>(panel, rows, pairs.start, ahead),
            _ => self.groups::<V, S, WIDE>(panel, rows, pairs.start, ahead),
        }
    }

    /// A block as two tiles of two pairs of weight rows.
    #[inline(always)]
    fn groups<V: Lanes, S: Stored, const C: usize>(
        &self,
        panel: &Panel<'_>,
        rows: Rows,
        pair: usize,
        ahead: Ahead,
    ) {
        for group in 0..2 {
            self.tile::<V, S, C>(panel, rows.from(4 * group), pair, ahead.share(2, group));
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, S: Stored, const C: usize>(
        &self,
        panel: &Panel<'_>,
        rows: Rows,
        pair: usize,
        ahead: Ahead,
    ) {
        let part = self.0;
        let (k, apart) = (part.w.cols(), part.w.apart() * rows.step);
        let x = Activations { at: panel.packed[pair * k.div_ceil(8)..].as_ptr().cast(), stride: 0 };
        let (borders, segments) = part.reduce.borders(k);
        // Of each pair of activations, `[activation][row]`.
        let mut joined = [[[0.0f32; 4]; 2]; C];
        let mut held = joined;
        for i in 0..segments {
            let columns = Columns { from: borders[i], to: borders[i + 1] };
            // SAFETY: the rows, at most N or those of a whole block, have K elements each, and C pairs of activations have as
            // many in `packed`, with zeros up to a multiple of 8; the lengths were checked by the matrix and by `linear`, the
            // borders by `Part::fits_crossed`.
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
        let t = 2 * (panel.first + pair);
        part.finish(rows, t, 4, joined.as_flattened_mut().as_flattened_mut());
    }
}
