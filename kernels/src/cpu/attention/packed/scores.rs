//! Scores of a block of keys.

use super::{Ahead, Block, GROUP, Query, Segment, Stretch};
use crate::cpu::pair::Pair;
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS, Registers};

/// All queries against the keys of a stretch. Scores behind what a query sees, up to the end of a page, are meaningless.
pub(super) struct Scores<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) segment: Segment<'a>,
    pub(super) stretch: Stretch,
    /// Their lengths ascend.
    pub(super) queries: &'a [Query],
    pub(super) ahead: Ahead<'a>,
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        match V::REGISTERS {
            Registers::Unknown => self.tiles::<V, 1, 4>(),
            Registers::Sixteen => self.tiles::<V, 1, 6>(),
            Registers::ThirtyTwo => self.tiles::<V, 4, 6>(),
        }
    }
}

impl Scores<'_> {
    /// In tiles of `C` queries by `R` registers of sixteen keys. The last query stands for those that are not there: it
    /// is computed several times.
    #[inline(always)]
    fn tiles<V: Lanes, const R: usize, const C: usize>(&mut self) {
        let Stretch { from, len } = self.stretch;
        let last = self.queries.len() - 1;
        let share = self.ahead.share((last + 1).div_ceil(C) * len.div_ceil(16 * R));
        for tile in (0..=last).step_by(C) {
            let mut at = [0; C];
            for c in 0..C {
                at[c] = (tile + c).min(last);
            }
            let seen = self.segment.seen(&self.queries[at[C - 1]]).saturating_sub(from).min(len);
            let end = seen.next_multiple_of(PAGE_TOKENS);
            let mut j = 0;
            while j + 16 * R <= end {
                self.ahead.ask::<V>(share);
                self.tile::<V, R, C>(&at, j);
                j += 16 * R;
            }
            while j < end {
                self.tile::<V, 1, C>(&at, j);
                j += 16;
            }
        }
    }

    /// Keys `j .. j + 16 R` of the stretch.
    #[inline(always)]
    fn tile<V: Lanes, const R: usize, const C: usize>(&self, at: &[usize; C], j: usize) {
        let d = self.block.args.kv.layout().head_dim;
        let keys = self.segment.block.wrapping_add(j / GROUP * GROUP * d + j % GROUP).cast_const();
        let mut q = [keys; C];
        for c in 0..C {
            let at = self.queries[at[c]].at;
            q[c] = self.block.args.q[at..at + d].as_ptr();
        }
        let mut out = [self.segment.scores; C];
        for c in 0..C {
            out[c] = self.segment.scores(at[c]).wrapping_add(self.stretch.from + j);
        }
        // SAFETY: the block holds d elements of 16 R keys from j on, GROUP apart; each query has d values; positions
        // from + j .. + 16 R lie in the segment.
        unsafe { dots::<V::Pair, R, C>(keys, &q, d, self.block.args.scale, &out) }
    }
}

/// In this order neighbours, pairs of neighbours and fours are joined.
const LANES: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// Writes the dot products, times `scale`, of `16 R` keys and `C` queries. Register `r` of the accumulators of lane `l`
/// takes the elements `l, l + 8, ..` of sixteen keys.
///
/// # Safety
/// `16 R` f32 must be readable at each of `keys + k * GROUP`, `k < d`, and `d` f32 at each query; `16 R` must be writable
/// at each of `out`.
#[inline(always)]
unsafe fn dots<P: Pair, const R: usize, const C: usize>(
    keys: *const f32,
    q: &[*const f32; C],
    d: usize,
    scale: f32,
    out: &[*mut f32; C],
) {
    // One, two, four and all lanes, as a counter has its digits. It lies in memory: the lanes take all registers.
    let mut joined = [[[P::zero(); C]; R]; 4];
    for i in 0..8 {
        // SAFETY: as the caller grants.
        let mut sums = unsafe { lane(keys, q, d, LANES[i]) };
        let mut level = 0;
        while i >> level & 1 == 1 {
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = joined[level][r][c].add(sums[r][c]);
                }
            }
            level += 1;
        }
        joined[level] = sums;
    }
    let scale = P::splat(scale);
    for c in 0..C {
        for r in 0..R {
            // SAFETY: as the caller grants.
            unsafe { joined[3][r][c].mul(scale).write(out[c].add(16 * r)) };
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
