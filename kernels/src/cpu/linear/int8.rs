//! Products with 8-bit weights: the tiles of [`super::direct`] and the stretches of [`super::packed`], block by block.

use super::meet::{Activations, Meet};
use super::part::Ahead;
use super::stored::Columns;
use crate::cpu::Lanes;
use crate::cpu::int8::{BLOCK, SCALE_BYTES, ZERO, block_at, weight};
use crate::cpu::pair::Pair;

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

/// Weights `k..k + n`, `n <= 8`, then zeros, of both rows; `k` is a multiple of 8.
///
/// # Safety
/// The block of `k` must be readable in the rows at `a` and at `b`.
#[inline(always)]
unsafe fn group<P: Pair>(loads: P::ByteLoads, a: *const u8, b: *const u8, k: usize, n: usize) -> P {
    // SAFETY: the group lies in the block; `part_of` has 16 bytes.
    unsafe {
        let (a, b) = (a.add(block_at(k)), b.add(block_at(k)));
        let at = SCALE_BYTES + k % BLOCK;
        let (x, y) = (part_of(a.add(at), n), part_of(b.add(at), n));
        Scales::load(loads, a, b).weights(P::load_bytes_twice(loads, x.as_ptr(), y.as_ptr()))[0]
    }
}

/// The first `n <= 8` of eight numbers, then zeros. Not by a copy, which would be a call.
///
/// # Safety
/// Eight bytes must be readable at `p`.
#[inline(always)]
unsafe fn part_of(p: *const u8, n: usize) -> [u8; 16] {
    let mut out = [ZERO; 16];
    for i in 0..8 {
        // SAFETY: i < 8.
        let byte = unsafe { p.add(i).read() };
        out[i] = if i < n { byte } else { ZERO };
    }
    out
}

/// See [`super::stored::Stored::products`]. Blocks are taken whole; groups of eight lie before the first and behind the
/// last of them.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn products<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
    w: *const u8,
    apart: usize,
    x: Activations,
    Columns { from, to }: Columns,
    ahead: Ahead,
) -> [[M::Sums; C]; R] {
    debug_assert!(from.is_multiple_of(8));
    let mut acc = [[M::zero(); C]; R];
    let loads = V::Pair::byte_loads();
    let rows = Rows { w, apart, x };
    let mut k = from;
    // SAFETY: the columns lie in all rows and in the activations.
    unsafe {
        while k < to && !k.is_multiple_of(BLOCK) {
            k += rows.less::<V, M, R, C>(&mut acc, loads, k, to - k);
        }
        while k + BLOCK <= to {
            ahead.ask::<V>(block_at(k), 1);
            let scales = rows.scales::<V::Pair, R>(loads, k);
            rows.half::<V, M, R, C>(&mut acc, loads, &scales, k);
            rows.half::<V, M, R, C>(&mut acc, loads, &scales, k + BLOCK / 2);
            k += BLOCK;
        }
        while k < to {
            k += rows.less::<V, M, R, C>(&mut acc, loads, k, to - k);
        }
    }
    acc
}

/// Weight rows, `apart` bytes apart, and activations.
#[derive(Clone, Copy)]
struct Rows {
    w: *const u8,
    apart: usize,
    x: Activations,
}

impl Rows {
    /// The scales of the block of column `k`.
    ///
    /// # Safety
    /// `2 R` rows must have the block.
    #[inline(always)]
    unsafe fn scales<P: Pair, const R: usize>(&self, loads: P::ByteLoads, k: usize) -> [Scales<P>; R] {
        let mut scales = [Scales { scale: P::zero(), shift: P::zero() }; R];
        for r in 0..R {
            // SAFETY: as the caller grants.
            scales[r] = unsafe {
                let a = self.w.add(2 * r * self.apart + block_at(k));
                Scales::load(loads, a, a.add(self.apart))
            };
        }
        scales
    }

    /// Adds the products of half a block, from column `k` on.
    ///
    /// # Safety
    /// `2 R` rows and `C` activations must have it whole.
    #[inline(always)]
    unsafe fn half<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
        &self,
        acc: &mut [[M::Sums; C]; R],
        loads: <V::Pair as Pair>::ByteLoads,
        scales: &[Scales<V::Pair>; R],
        k: usize,
    ) {
        let mut ws = [[V::Pair::zero(); 2]; R];
        for r in 0..R {
            // SAFETY: the half block lies in both rows.
            ws[r] = unsafe {
                let a = self.w.add(2 * r * self.apart + block_at(k) + SCALE_BYTES + k % BLOCK);
                scales[r].weights(V::Pair::load_bytes_twice(loads, a, a.add(self.apart)))
            };
        }
        for step in 0..2 {
            for c in 0..C {
                // SAFETY: the activation has 16 values from k on.
                let xs = unsafe { M::load::<C>(self.x, c, k + 8 * step) };
                for r in 0..R {
                    acc[r][c] = M::add(ws[r][step], xs, acc[r][c]);
                }
            }
        }
    }

    /// Adds the products of half a block, or if it begins elsewhere or there are fewer than 16 columns `left`, of up to
    /// eight columns, from column `k` on, a multiple of 8. Tells how many.
    ///
    /// # Safety
    /// `2 R` rows and `C` activations must have the columns that are left.
    #[inline(always)]
    unsafe fn less<V: Lanes, M: Meet<V::Pair>, const R: usize, const C: usize>(
        &self,
        acc: &mut [[M::Sums; C]; R],
        loads: <V::Pair as Pair>::ByteLoads,
        k: usize,
        left: usize,
    ) -> usize {
        if k.is_multiple_of(16) && left >= 16 {
            // SAFETY: half a block is left.
            unsafe {
                let scales = self.scales::<V::Pair, R>(loads, k);
                self.half::<V, M, R, C>(acc, loads, &scales, k);
            }
            return 16;
        }
        let n = left.min(8);
        let mut ws = [V::Pair::zero(); R];
        for r in 0..R {
            // SAFETY: the block of column k lies in both rows.
            ws[r] = unsafe {
                let a = self.w.add(2 * r * self.apart);
                group(loads, a, a.add(self.apart), k, n)
            };
        }
        for c in 0..C {
            // SAFETY: the activation has n values from k on.
            let xs = unsafe { M::load_part::<C>(self.x, c, k, n) };
            for r in 0..R {
                acc[r][c] = M::add(ws[r], xs, acc[r][c]);
            }
        }
        n
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
    Columns { from, to }: Columns,
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
            if k.is_multiple_of(8) {
                group::<V::Pair>(loads, a, b, k, n).write(out);
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
