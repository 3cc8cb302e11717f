//! Dot products of sixteen keys in a register.

use std::mem::MaybeUninit;

use super::{GROUP, SEGMENT_TOKENS};
use crate::cpu::attention::LANES;
use crate::cpu::pair::Pair;

/// Writes the dot products, times `scale`, of `16 R` keys and `C` queries. Register `r` of the accumulators of lane `l`
/// takes the elements `l, l + 8, ..` of sixteen keys.
///
/// # Safety
/// `16 R` f32 must be readable at each of `keys + k * GROUP`, `k < d`, and `d` f32 at each query; `16 R` must be writable
/// at each of `scores + c * SEGMENT_TOKENS`.
#[inline(always)]
pub(super) unsafe fn dots<P: Pair, const R: usize, const C: usize>(
    keys: *const f32,
    q: &[*const f32; C],
    d: usize,
    scale: f32,
    scores: *mut f32,
) {
    let scale = P::splat(scale);
    // One, two and four lanes, as a counter has its digits. They lie in memory: the lanes take all registers.
    let mut joined = [MaybeUninit::<[[P; C]; R]>::uninit(); 3];
    for i in 0..8 {
        // SAFETY: as the caller grants.
        let mut sums = unsafe { lane(keys, q, d, LANES[i]) };
        let mut level = 0;
        while i >> level & 1 == 1 {
            // SAFETY: written when this digit of i became 1.
            let other = unsafe { joined[level].assume_init_ref() };
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = other[r][c].add(sums[r][c]);
                }
            }
            level += 1;
        }
        if level < 3 {
            joined[level].write(sums);
            continue;
        }
        for c in 0..C {
            for r in 0..R {
                // SAFETY: as the caller grants.
                unsafe { sums[r][c].mul(scale).write(scores.add(c * SEGMENT_TOKENS + 16 * r)) };
            }
        }
    }
}

/// Lane `l` of the accumulators.
///
/// # Safety
/// See [`dots`].
#[inline(always)]
unsafe fn lane<P: Pair, const R: usize, const C: usize>(
    keys: *const f32,
    q: &[*const f32; C],
    d: usize,
    l: usize,
) -> [[P; C]; R] {
    let mut acc = [[P::zero(); C]; R];
    let mut k = l;
    while k < d {
        let mut ks = [P::zero(); R];
        for r in 0..R {
            // SAFETY: k < d.
            ks[r] = unsafe { P::read(keys.add(k * GROUP + 16 * r)) };
        }
        for c in 0..C {
            // SAFETY: k < d.
            let x = P::splat(unsafe { *q[c].add(k) });
            for r in 0..R {
                acc[r][c] = ks[r].mul_add(x, acc[r][c]);
            }
        }
        k += 8;
    }
    acc
}
