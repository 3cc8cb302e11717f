//! Products with 8-bit weights: the tiles of [`super::direct`] and the stretches of [`super::packed`], block by block.

use super::part::Ahead;
use super::stored::Columns;
use crate::cpu::Lanes;
use crate::cpu::int8::{BLOCK, SCALE_BYTES, ZERO, block_at, row_bytes, weight};
use crate::cpu::pair::{Pair, twice_part};

/// `2^15 + 128`: what [`Pair::load_bytes_twice`] makes of the number 0.
const OFFSET: f32 = 32_896.0;

/// The scales of a block of each of two rows, and what turns [`Pair::load_bytes_twice`] into weights with them.
#[derive(Clone, Copy)]
struct Scales<P> {
    scale: P,
    /// `-OFFSET * scale`, exact: the scale has 8 significant bits, the offset 9.
    shift: P,
}

impl<P: Pair> Scales<P> {
    /// # Safety
    /// A block must be readable at `a` and at `b`.
    #[inline(always)]
    unsafe fn load(loads: P::ByteLoads, a: *const u8, b: *const u8) -> Self {
        // SAFETY: four bytes of a block are readable at each.
        let scale = unsafe { P::load_scale(loads, a, b) };
        Self { scale, shift: scale.mul(P::splat(-OFFSET)) }
    }

    /// Weights from the numbers of a half block. `scale * (2^15 + 128 + q) - scale * (2^15 + 128)` is exact before it is
    /// rounded, so it is `scale * q`.
    #[inline(always)]
    fn weights(self, [a, b]: [P; 2]) -> [P; 2] {
        [a.mul_add(self.scale, self.shift), b.mul_add(self.scale, self.shift)]
    }
}

/// Weights `k..k + 8` of both rows; `k` is a multiple of 8.
///
/// # Safety
/// The block of `k` must be readable in the rows at `a` and at `b`.
#[inline(always)]
unsafe fn group<P: Pair>(loads: P::ByteLoads, a: *const u8, b: *const u8, k: usize) -> P {
    let half = SCALE_BYTES + k % BLOCK / 16 * 16;
    // SAFETY: the half block that holds the group lies in the block.
    unsafe {
        let (a, b) = (a.add(block_at(k)), b.add(block_at(k)));
        let weights = Scales::load(loads, a, b).weights(P::load_bytes_twice(loads, a.add(half), b.add(half)));
        weights[k / 8 % 2]
    }
}

/// Weights `k..k + n`, `n < 8`, then zeros, of both rows; `k` is a multiple of 8.
///
/// # Safety
/// The block of `k` must be readable in the rows at `a` and at `b`.
#[inline(always)]
unsafe fn group_part<P: Pair>(loads: P::ByteLoads, a: *const u8, b: *const u8, k: usize, n: usize) -> P {
    let mut padded = [[ZERO; 16]; 2];
    debug_assert!(n < 8 && k.is_multiple_of(8));
    // SAFETY: n numbers from k on lie in the block, and `padded` holds twice 16 bytes.
    unsafe {
        let (a, b) = (a.add(block_at(k)), b.add(block_at(k)));
        let at = SCALE_BYTES + k % BLOCK;
        std::ptr::copy_nonoverlapping(a.add(at), padded[0].as_mut_ptr(), n);
        std::ptr::copy_nonoverlapping(b.add(at), padded[1].as_mut_ptr(), n);
        Scales::load(loads, a, b).weights(P::load_bytes_twice(loads, padded[0].as_ptr(), padded[1].as_ptr()))
            [0]
    }
}

/// See [`super::stored::Stored::products`]. Blocks are taken whole; groups of eight lie before the first and behind the
/// last of them.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn products<V: Lanes, const R: usize, const C: usize>(
    w: *const u8,
    x: *const f32,
    Columns { cols, from, to }: Columns,
    ahead: Ahead,
) -> [[V::Pair; C]; R] {
    let mut acc = [[V::Pair::zero(); C]; R];
    let (row, loads) = (row_bytes(cols), V::Pair::byte_loads());
    debug_assert!(from.is_multiple_of(8));
    let mut k = from;
    while k < to {
        if k.is_multiple_of(BLOCK) && k + BLOCK <= to {
            ahead.ask::<V>(block_at(k), 1);
            // SAFETY: the block lies in all rows, and so do its columns of the activations.
            unsafe { block::<V, R, C>(&mut acc, loads, w.add(block_at(k)), row, x.add(k), cols) };
            k += BLOCK;
            continue;
        }
        let n = (to - k).min(8);
        let mut ws = [V::Pair::zero(); R];
        for r in 0..R {
            // SAFETY: k < to, so its block lies in both rows.
            ws[r] = unsafe {
                let a = w.add(2 * r * row);
                if n == 8 { group(loads, a, a.add(row), k) } else { group_part(loads, a, a.add(row), k, n) }
            };
        }
        for c in 0..C {
            // SAFETY: n elements of the activation are left from k on.
            let xs: V::Pair = unsafe { twice_part(x.add(c * cols + k), n) };
            for r in 0..R {
                acc[r][c] = ws[r].mul_add(xs, acc[r][c]);
            }
        }
        k += n;
    }
    acc
}

/// Adds the products of a block, which is at `w` in the first row.
///
/// # Safety
/// Blocks of `2 R` rows must be readable at `w`, `row` bytes apart, and `BLOCK` values of `C` activations at `x`, `cols`
/// values apart.
#[inline(always)]
unsafe fn block<V: Lanes, const R: usize, const C: usize>(
    acc: &mut [[V::Pair; C]; R],
    loads: <V::Pair as Pair>::ByteLoads,
    w: *const u8,
    row: usize,
    x: *const f32,
    cols: usize,
) {
    // SAFETY: all places lie in the blocks and in the columns that the caller grants.
    unsafe {
        let mut scales = [Scales { scale: V::Pair::zero(), shift: V::Pair::zero() }; R];
        for r in 0..R {
            let a = w.add(2 * r * row);
            scales[r] = Scales::load(loads, a, a.add(row));
        }
        for half in 0..2 {
            let mut ws = [[V::Pair::zero(); 2]; R];
            for r in 0..R {
                let a = w.add(2 * r * row + SCALE_BYTES + 16 * half);
                ws[r] = scales[r].weights(V::Pair::load_bytes_twice(loads, a, a.add(row)));
            }
            for step in 0..2 {
                for c in 0..C {
                    let xs = V::Pair::twice(x.add(c * cols + 16 * half + 8 * step));
                    for r in 0..R {
                        acc[r][c] = ws[r][step].mul_add(xs, acc[r][c]);
                    }
                }
            }
        }
    }
}

/// See [`super::stored::Stored::pack_pair`]. Any column may be the first.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn pack_pair<V: Lanes>(
    a: *const u8,
    b: *const u8,
    Columns { from, to, .. }: Columns,
    mut out: *mut f32,
    apart: usize,
) {
    let (mut k, loads) = (from, V::Pair::byte_loads());
    // SAFETY: k stays below `to`, so its block lies in both rows; `out` takes one step for every eight columns.
    unsafe {
        while k < to {
            let n = (to - k).min(8);
            if k.is_multiple_of(BLOCK) && k + BLOCK <= to {
                let (a, b) = (a.add(block_at(k)), b.add(block_at(k)));
                let scales = Scales::<V::Pair>::load(loads, a, b);
                for half in 0..2 {
                    let at = SCALE_BYTES + 16 * half;
                    let [first, second] =
                        scales.weights(V::Pair::load_bytes_twice(loads, a.add(at), b.add(at)));
                    first.write(out);
                    second.write(out.add(apart));
                    out = out.wrapping_add(2 * apart);
                }
                k += BLOCK;
                continue;
            }
            if k.is_multiple_of(8) && n == 8 {
                group::<V::Pair>(loads, a, b, k).write(out);
            } else {
                // A border that cuts a group of eight, which no model at hand has.
                for i in 0..8 {
                    out.add(i).write(if i < n { weight(a, k + i) } else { 0.0 });
                    out.add(8 + i).write(if i < n { weight(b, k + i) } else { 0.0 });
                }
            }
            out = out.wrapping_add(apart);
            k += n;
        }
    }
}
