//! The outputs of a product that fall to one thread, and which way they are computed.

use super::Reduce;
use super::crossed::Crossed;
use super::direct::Direct;
use crate::cpu::shared::SharedMut;
use crate::cpu::workers::Line;
use crate::cpu::{Isa, Lanes, Matrix, Registers, WeightRef, dispatch};

/// Weight rows in a block.
pub(super) const ROWS: usize = 8;
/// Most activations in a register tile.
pub(super) const WIDE: usize = 6;
/// Up to so many activations meet the weights as they lie; for more it pays to turn weights into f32 first.
const DIRECT: usize = 16;
/// The same with 16 registers, where a tile has fewer weight rows and turning costs more of them.
const DIRECT_SIXTEEN: usize = 48;
/// 8-bit weights take more instructions to turn, so it pays to do it once.
const DIRECT_SIXTEEN_INT8: usize = 12;

/// Outputs `first..end` for all activations.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) isa: Isa,
    /// The activations side by side, if the weights are to be crossed.
    pub(super) packed: Option<&'a [Line]>,
    pub(super) x: &'a [f32],
    pub(super) w: Matrix<'a>,
    pub(super) bias: Option<WeightRef<'a>>,
    pub(super) reduce: Reduce,
    pub(super) out: &'a SharedMut<'a, f32>,
    pub(super) t: usize,
    pub(super) first: usize,
    pub(super) end: usize,
}

impl Part<'_> {
    /// Computes the outputs.
    pub(super) fn run(&self) {
        let registers = self.isa.registers();
        let direct = match (registers, self.w) {
            (Registers::Unknown, _) => usize::MAX,
            (Registers::Sixteen, Matrix::Stored(_)) => DIRECT_SIXTEEN,
            (Registers::Sixteen, Matrix::Int8(_)) => DIRECT_SIXTEEN_INT8,
            (Registers::ThirtyTwo, _) => DIRECT,
        };
        match self.packed {
            // [`Crossed`] has code for no other registers.
            Some(packed) if registers == Registers::ThirtyTwo && self.fits_direct() => {
                dispatch(self.isa, Crossed(self, packed));
            }
            _ if self.t <= direct && self.fits_direct() => dispatch(self.isa, Direct(self)),
            _ => self.packed(),
        }
    }

    /// Whether the weights can be read as they lie: there must be a whole block, or rows of zeros behind the last row. No
    /// border of a segment may cut a group of eight 8-bit weights, counted from the first of a row, since a block of them
    /// has whole groups.
    fn fits_direct(&self) -> bool {
        let (borders, segments) = self.reduce.borders(self.w.cols());
        match self.w {
            Matrix::Stored(_) => self.end - self.first >= ROWS,
            Matrix::Int8(_) => borders[..segments].iter().all(|k| k.is_multiple_of(8)),
        }
    }

    /// Rows of a plane, if most of the part's rows are taken as [`ROWS`] planes, one row of each at a time: an odd number,
    /// so that rows of a power of two do not all meet in one place of the caches; 0 for fewer rows than a block has.
    pub(super) fn plane(&self) -> usize {
        let blocks = (self.end - self.first) / ROWS;
        if blocks == 0 { 0 } else { (blocks - 1) | 1 }
    }

    /// Writes the outputs of a tile: `width` weight rows, `[activation][row]`, from activation `t` on, as many activations as
    /// there are. All rows of planes belong to this part; of neighbouring ones those before `end`.
    #[inline(always)]
    pub(super) fn finish(&self, rows: Rows, t: usize, width: usize, values: &mut [f32]) {
        let count = (values.len() / width).min(self.t - t);
        let width_here = if rows.step > 1 { width } else { width.min(self.end.saturating_sub(rows.first)) };
        if width_here == 0 {
            return;
        }
        if let Some(bias) = self.bias {
            for r in 0..width_here {
                let bias = bias.get(rows.first + r * rows.step);
                for i in 0..count {
                    values[i * width + r] += bias;
                }
            }
        }
        // Numbers that the compiler knows are written without loops: with many activations an eighth of the time.
        match (count * width == values.len(), width_here == width) {
            (true, true) => self.write(rows, t, values.len() / width, (width, width), values),
            _ => self.write(rows, t, count, (width, width_here), values),
        }
    }

    /// Writes the first `here` of `width` values for each of `count` activations.
    #[inline(always)]
    fn write(&self, rows: Rows, t: usize, count: usize, (width, here): (usize, usize), values: &[f32]) {
        let n = self.w.rows();
        let out = self.out.range(t * n + rows.first, (count - 1) * n + (here - 1) * rows.step + 1);
        for i in 0..count {
            let of = &values[i * width..i * width + here];
            // SAFETY: the range holds row `t + i`, of which the columns of these weight rows belong to this part alone.
            unsafe {
                let out = out.add(i * n);
                if rows.step == 1 {
                    std::ptr::copy_nonoverlapping(of.as_ptr(), out, here);
                } else {
                    for r in 0..here {
                        out.add(r * rows.step).write(of[r]);
                    }
                }
            }
        }
    }
}

/// The weight rows of a block: `first`, `first + step` and so on.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) first: usize,
    pub(super) step: usize,
}

impl Rows {
    /// Those from the one with index `i` on.
    #[inline(always)]
    pub(super) fn from(self, i: usize) -> Self {
        Self { first: self.first + i * self.step, ..self }
    }
}

/// Takes the sums of a segment in: `(s0 + s1) + (s2 + s3)`. The third waits in `held` for the fourth. All three are
/// equally long.
///
/// Kernels loop over indices, not iterators: not every build inlines those into code of an instruction set.
#[inline(always)]
pub(super) fn join(segment: usize, sums: &[f32], joined: &mut [f32], held: &mut [f32]) {
    match segment {
        0 => joined.copy_from_slice(sums),
        1 => {
            for i in 0..sums.len() {
                joined[i] += sums[i];
            }
        }
        2 => held.copy_from_slice(sums),
        _ => {
            for i in 0..sums.len() {
                joined[i] += held[i] + sums[i];
            }
        }
    }
}

/// The sums of a tile one after the other.
#[inline(always)]
pub(super) fn flat<const R: usize>(sums: &[[[f32; 2]; R]]) -> &[f32] {
    sums.as_flattened().as_flattened()
}

/// The same, to be written.
#[inline(always)]
pub(super) fn flat_mut<const R: usize>(sums: &mut [[[f32; 2]; R]]) -> &mut [f32] {
    sums.as_flattened_mut().as_flattened_mut()
}

/// Tile `i` of `count` equal ones over `len` rows.
#[inline(always)]
pub(super) fn tile_range(len: usize, count: usize, i: usize) -> std::ops::Range<usize> {
    len * i / count..len * (i + 1) / count
}

/// What tiles prefetch while they compute: `rows` rows, `stride` bytes apart, from `at` on. No row, no prefetch.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub(super) at: *const u8,
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl Ahead {
    /// The share of tile `i` of `count`.
    #[inline(always)]
    pub(super) fn share(self, count: usize, i: usize) -> Self {
        let rows = tile_range(self.rows, count, i);
        Self { at: self.at.wrapping_add(rows.start * self.stride), rows: rows.len(), ..self }
    }

    /// The same rows from `bytes` on.
    #[inline(always)]
    pub(super) fn from(self, bytes: usize) -> Self {
        Self { at: self.at.wrapping_add(bytes), ..self }
    }

    /// Asks for the lines of 32 elements of `size` bytes from element `k` of each row on.
    #[inline(always)]
    pub(super) fn ask<V: Lanes>(&self, k: usize, size: usize) {
        // A count that the compiler knows costs no loop, and with eight activations 7 % less time.
        match self.rows {
            ROWS => self.ask_rows::<V>(ROWS, k, size),
            4 => self.ask_rows::<V>(4, k, size),
            rows => self.ask_rows::<V>(rows, k, size),
        }
    }

    #[inline(always)]
    fn ask_rows<V: Lanes>(&self, rows: usize, k: usize, size: usize) {
        for r in 0..rows {
            let line = self.at.wrapping_add(r * self.stride + k * size);
            V::prefetch(line);
            if size == 4 {
                V::prefetch(line.wrapping_add(64));
            }
        }
    }
}
