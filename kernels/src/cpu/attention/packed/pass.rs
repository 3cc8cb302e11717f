//! The queries pass by a segment, a register tile of them at a time.

use super::ahead::Ahead;
use super::scores::dots;
use super::values::{Fold, weighted};
use super::{Block, GROUP, Query, Segment, TILE, stride};
use crate::cpu::attention::softmax::softmax;
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS, Registers};

/// Some queries against a segment.
pub(super) struct Pass<'a> {
    block: &'a Block<'a>,
    segment: Segment<'a>,
    /// They see something of the segment; lengths ascend.
    queries: &'a mut [Query],
}

/// A few of them. The last query stands for those that are not there: it is computed several times, and taken once.
#[derive(Clone, Copy)]
struct Few<const C: usize> {
    at: [usize; C],
    /// Positions of the segment that each sees, ascending.
    seen: [usize; C],
    /// How many are there.
    count: usize,
}

impl Kernel for Pass<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        match V::REGISTERS {
            Registers::Unknown => self.tiles::<V, 1, 4>(),
            Registers::Sixteen => self.tiles::<V, 1, TILE>(),
            Registers::ThirtyTwo => self.tiles::<V, 4, TILE>(),
        }
    }
}

impl<'a> Pass<'a> {
    pub(super) fn new(block: &'a Block<'a>, segment: Segment<'a>, queries: &'a mut [Query]) -> Self {
        Pass { block, segment, queries }
    }

    /// In tiles of `C` queries by `R` registers: of sixteen keys, then of sixteen elements of values.
    #[inline(always)]
    fn tiles<V: Lanes, const R: usize, const C: usize>(mut self) {
        let Some(last) = self.queries.len().checked_sub(1) else { return };
        let pages = self.segment.pages.len();
        let width = stride(self.block.args.kv.layout().head_dim) / 16;
        let asks = last.div_ceil(C).max(1) * (pages.div_ceil(R) + pages * width.div_ceil(R));
        let mut ahead = Ahead::new(self.block, self.segment, asks);
        for tile in (0..=last).step_by(C) {
            let mut few = Few { at: [0; C], seen: [0; C], count: (last + 1 - tile).min(C) };
            for c in 0..C {
                few.at[c] = (tile + c).min(last);
                few.seen[c] = self.segment.seen(&self.queries[few.at[c]]);
            }
            self.score::<V, R, C>(&few, &mut ahead);
            let folds = self.weigh::<V, C>(&few);
            self.add::<V, R, C>(&few, &folds, &mut ahead);
        }
    }

    /// The scores. Those behind what a query sees, up to the end of a page, are meaningless.
    #[inline(always)]
    fn score<V: Lanes, const R: usize, const C: usize>(&self, few: &Few<C>, ahead: &mut Ahead<'_>) {
        let (args, d) = (self.block.args, self.block.args.kv.layout().head_dim);
        let mut q = [std::ptr::null(); C];
        for c in 0..C {
            let at = self.queries[few.at[c]].at;
            q[c] = args.q[at..at + d].as_ptr();
        }
        let end = few.seen[C - 1].next_multiple_of(PAGE_TOKENS);
        let mut j = 0;
        // SAFETY: the segment has d elements of the keys up to `end`, GROUP apart, each query d values, and each row of
        // scores room for a segment.
        unsafe {
            while j + 16 * R <= end {
                ahead.ask::<V>();
                let (keys, scores) = (self.keys(j, d), self.segment.scores.add(j));
                dots::<V::Pair, R, C>(keys, &q, d, args.scale, scores);
                j += 16 * R;
            }
            while j < end {
                let (keys, scores) = (self.keys(j, d), self.segment.scores.add(j));
                dots::<V::Pair, 1, C>(keys, &q, d, args.scale, scores);
                j += 16;
            }
        }
    }

    /// Where key `j` begins.
    #[inline(always)]
    fn keys(&self, j: usize, d: usize) -> *const f32 {
        self.segment.keys.wrapping_add(j / GROUP * GROUP * d + j % GROUP)
    }

    /// Turns scores into weights, and takes their sums over; returns what becomes of the outputs.
    #[inline(always)]
    fn weigh<V: Lanes, const C: usize>(&mut self, few: &Few<C>) -> [Option<Fold>; C] {
        // SAFETY: each row of scores holds what its query sees, and has room for a segment.
        let states = unsafe { softmax::<V, C>(self.segment.scores, &few.seen) };
        let mut folds = [None; C];
        for c in 0..C {
            if c < few.count {
                let query = &mut self.queries[few.at[c]];
                let (mut old, mut new) = (0.0, 0.0);
                if self.segment.from == 0 {
                    query.state = states[c];
                } else {
                    (old, new) = query.state.fold(&states[c]);
                }
                // SAFETY: the queries of this call belong to it alone.
                let out = unsafe { self.block.out.part(query.at, self.block.args.kv.layout().head_dim) };
                folds[c] = Some(Fold { out: out.as_mut_ptr(), first: self.segment.from == 0, old, new });
            }
        }
        folds
    }

    /// Adds the weighted values to the outputs.
    #[inline(always)]
    fn add<V: Lanes, const W: usize, const C: usize>(
        &self,
        few: &Few<C>,
        folds: &[Option<Fold>; C],
        ahead: &mut Ahead<'_>,
    ) {
        let d = self.block.args.kv.layout().head_dim;
        let (stride, weights) = (stride(d), self.segment.scores.cast_const());
        let mut k = 0;
        // SAFETY: the segment has the values of what the queries see, `stride` apart, each row of scores their weights,
        // and each output d values.
        unsafe {
            while k + 16 * W <= stride {
                let values = self.segment.values.add(k);
                let acc = weighted::<V, W, C>(values, stride, weights, &few.seen, ahead);
                for c in 0..C {
                    if let Some(fold) = &folds[c] {
                        fold.take(&acc[c], k, d);
                    }
                }
                k += 16 * W;
            }
            while k < stride {
                let values = self.segment.values.add(k);
                let acc = weighted::<V, 1, C>(values, stride, weights, &few.seen, ahead);
                for c in 0..C {
                    if let Some(fold) = &folds[c] {
                        fold.take(&acc[c], k, d);
                    }
                }
                k += 16;
            }
        }
    }
}

/// Divides the outputs by the sums of their weights.
pub(super) struct Finish<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) queries: &'a [Query],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let d = self.block.args.kv.layout().head_dim;
        for query in self.queries {
            // SAFETY: the queries of this call belong to it alone.
            let out = unsafe { self.block.out.part(query.at, d) };
            let inverse = 1.0 / query.state.sum;
            for x in out {
                *x *= inverse;
            }
        }
    }
}
