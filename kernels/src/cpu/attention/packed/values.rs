//! Weighted sums of a block of values.

use super::{Ahead, Block, Query, Segment, Stretch};
use crate::cpu::pair::Pair;
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS, Registers};

/// All queries against the values of a stretch; after the last one of a segment, what was summed is folded into `out`.
pub(super) struct Values<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) segment: Segment<'a>,
    pub(super) stretch: Stretch,
    /// Their lengths ascend.
    pub(super) queries: &'a [Query],
    pub(super) ahead: Ahead<'a>,
}

impl Kernel for Values<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        match V::REGISTERS {
            Registers::Unknown => self.tiles::<V, 1, 4>(),
            Registers::Sixteen => self.tiles::<V, 1, 6>(),
            Registers::ThirtyTwo => self.tiles::<V, 4, 6>(),
        }
        let all = self.segment.pages.len() * PAGE_TOKENS;
        if self.stretch.from + self.stretch.len == all {
            for i in 0..self.queries.len() {
                self.fold::<V>(i);
            }
        }
    }
}

impl Values<'_> {
    /// In tiles of `C` queries by `W` registers of sixteen elements. The last query stands for those that are not there:
    /// it is computed several times.
    #[inline(always)]
    fn tiles<V: Lanes, const W: usize, const C: usize>(&mut self) {
        let Stretch { from, len } = self.stretch;
        let last = self.queries.len() - 1;
        let times =
            (last + 1).div_ceil(C) * (self.segment.stride / 16).div_ceil(W) * len.div_ceil(PAGE_TOKENS);
        let share = self.ahead.share(times);
        for tile in (0..=last).step_by(C) {
            let (mut at, mut seen) = ([0; C], [0; C]);
            for c in 0..C {
                at[c] = (tile + c).min(last);
                seen[c] = self.segment.seen(&self.queries[at[c]]).saturating_sub(from).min(len);
            }
            if seen[C - 1] == 0 {
                continue;
            }
            let mut d = 0;
            while d + 16 * W <= self.segment.stride {
                self.tile::<V, W, C>(&at, &seen, d, share);
                d += 16 * W;
            }
            while d < self.segment.stride {
                self.tile::<V, 1, C>(&at, &seen, d, share);
                d += 16;
            }
        }
    }

    /// Elements `d .. d + 16 W`.
    #[inline(always)]
    fn tile<V: Lanes, const W: usize, const C: usize>(
        &mut self,
        at: &[usize; C],
        seen: &[usize; C],
        d: usize,
        share: usize,
    ) {
        let stride = self.segment.stride;
        let values = self.segment.block.wrapping_add(d).cast_const();
        let (mut weights, mut sums) = ([values; C], [self.segment.sums; C]);
        let mut acc = [[V::Pair::zero(); W]; C];
        for c in 0..C {
            weights[c] = self.segment.scores(at[c]).wrapping_add(self.stretch.from);
            sums[c] = self.segment.sums.wrapping_add(at[c] * stride + d);
            if self.stretch.from > 0 {
                for w in 0..W {
                    // SAFETY: the sums of the query have been written after the first stretch.
                    acc[c][w] = unsafe { V::Pair::read(sums[c].add(16 * w)) };
                }
            }
        }
        // SAFETY: the block holds `seen` positions, and each query has that many weights.
        unsafe {
            for from in (0..seen[0]).step_by(PAGE_TOKENS) {
                self.ahead.ask::<V>(share);
                for j in from..(from + PAGE_TOKENS).min(seen[0]) {
                    let vs = vector::<V::Pair, W>(values.add(j * stride));
                    for c in 0..C {
                        let weight = V::Pair::splat(*weights[c].add(j));
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
                    let weight = V::Pair::splat(*weights[c].add(j));
                    for w in 0..W {
                        acc[c][w] = weight.mul_add(vs[w], acc[c][w]);
                    }
                }
            }
            for c in 0..C {
                for w in 0..W {
                    acc[c][w].write(sums[c].add(16 * w));
                }
            }
        }
    }

    /// Folds the sums of query `i` into its output.
    #[inline(always)]
    fn fold<V: Lanes>(&self, i: usize) {
        let d = self.block.args.kv.layout().head_dim;
        let query = &self.queries[i];
        // SAFETY: the queries of this call belong to it alone.
        let out = unsafe { self.block.out.part(query.at, d) }.as_mut_ptr();
        let sums = self.segment.sums.wrapping_add(i * self.segment.stride).cast_const();
        let new = self.segment.from == 0;
        let (old, fresh) = query.fold;
        let mut k = 0;
        // SAFETY: k stays below d, or 16 under it; the sums of all d elements have been written.
        unsafe {
            while k + 16 <= d {
                let x = V::Pair::read(sums.add(k));
                let folded = if new {
                    x
                } else {
                    V::Pair::read(out.add(k)).mul_add(V::Pair::splat(old), x.mul(V::Pair::splat(fresh)))
                };
                folded.write(out.add(k));
                k += 16;
            }
            while k < d {
                let x = *sums.add(k);
                let out = &mut *out.add(k);
                *out = if new { x } else { out.mul_add(old, x * fresh) };
                k += 1;
            }
        }
    }
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
