//! Weighted sums of values.

use super::SEGMENT_TOKENS;
use super::ahead::Ahead;
use crate::cpu::pair::Pair;
use crate::cpu::{Lanes, PAGE_TOKENS};

/// `16 W` elements of the sums of `C` queries over the first `seen[c]` positions, ascending with `c`.
///
/// # Safety
/// For each position that is seen, `16 W` f32 must be readable at `values + j * stride`, and one at
/// `weights + c * SEGMENT_TOKENS + j`.
#[inline(always)]
pub(super) unsafe fn weighted<V: Lanes, const W: usize, const C: usize>(
    values: *const f32,
    stride: usize,
    weights: *const f32,
    seen: &[usize; C],
    ahead: &mut Ahead<'_>,
) -> [[V::Pair; W]; C] {
    let mut acc = [[V::Pair::zero(); W]; C];
    // SAFETY: j stays below what is seen.
    unsafe {
        for from in (0..seen[0]).step_by(PAGE_TOKENS) {
            ahead.ask::<V>();
            for j in from..(from + PAGE_TOKENS).min(seen[0]) {
                let vs = vector::<V::Pair, W>(values.add(j * stride));
                for c in 0..C {
                    let weight = V::Pair::splat(*weights.add(c * SEGMENT_TOKENS + j));
                    for w in 0..W {
                        acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                    }
                }
            }
        }
        // What the later ones see besides.
        for c in 1..C {
            for j in seen[0]..seen[c] {
                let vs = vector::<V::Pair, W>(values.add(j * stride));
                let weight = V::Pair::splat(*weights.add(c * SEGMENT_TOKENS + j));
                for w in 0..W {
                    acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                }
            }
        }
    }
    acc
}

/// # Safety
/// `16 W` f32 must be readable at `p`.
#[inline(always)]
unsafe fn vector<P: Pair, const W: usize>(p: *const f32) -> [P; W] {
    let mut vs = [P::zero(); W];
    for w in 0..W {
        // SAFETY: as the caller grants.
        vs[w] = unsafe { P::read(p.add(16 * w)) };
    }
    vs
}

/// How the sums of a segment go into an output.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    pub(super) out: *mut f32,
    /// It is the first segment: the sums are taken over.
    pub(super) first: bool,
    /// Factors of what is there and of the sums.
    pub(super) old: f32,
    pub(super) new: f32,
}

impl Fold {
    /// Takes elements `k .. k + 16 W`, as far as they are below `d`.
    ///
    /// # Safety
    /// `d` f32 must be readable and writable at `out`.
    #[inline(always)]
    pub(super) unsafe fn take<P: Pair, const W: usize>(&self, sums: &[P; W], k: usize, d: usize) {
        for w in 0..W {
            let k = k + 16 * w;
            // SAFETY: below d, or from the array.
            unsafe {
                let out = self.out.add(k);
                if k + 16 <= d {
                    let folded = if self.first {
                        sums[w]
                    } else {
                        P::read(out).mul_add(P::splat(self.old), sums[w].mul(P::splat(self.new)))
                    };
                    folded.write(out);
                } else {
                    let mut rest = [0.0f32; 16];
                    sums[w].write(rest.as_mut_ptr());
                    for i in 0..d - k {
                        let out = &mut *out.add(i);
                        *out = if self.first { rest[i] } else { out.mul_add(self.old, rest[i] * self.new) };
                    }
                }
            }
        }
    }
}
