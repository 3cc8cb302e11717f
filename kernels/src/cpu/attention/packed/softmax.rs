//! From scores to weights, and the end.

use super::{Block, Query, Segment, State};
use crate::cpu::pair::Pair;
use crate::cpu::{Kernel, Lanes};

/// Turns the scores of a segment into weights and takes them into the state of each query.
pub(super) struct Softmax<'a> {
    pub(super) segment: Segment<'a>,
    pub(super) queries: &'a mut [Query],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        for i in 0..self.queries.len() {
            let query = &mut self.queries[i];
            // SAFETY: the scores of what the query sees are there, and room up to the end of the page.
            let state = unsafe { softmax::<V>(self.segment.scores(i), self.segment.seen(query)) };
            if self.segment.from == 0 {
                query.state = state;
            } else {
                query.fold = query.state.fold(&state);
            }
        }
    }
}

/// Turns `count` scores into weights; returns their maximum and the sum of the weights.
///
/// # Safety
/// `count` f32 must be readable at `scores`, and those up to the next multiple of sixteen writable.
#[inline(always)]
unsafe fn softmax<V: Lanes>(scores: *mut f32, count: usize) -> State {
    let padded = count.next_multiple_of(16);
    // SAFETY: j stays below `padded`.
    unsafe {
        for j in count..padded {
            *scores.add(j) = f32::NEG_INFINITY;
        }
        let mut max = V::Pair::splat(f32::NEG_INFINITY);
        for j in (0..padded).step_by(16) {
            max = V::Pair::read(scores.add(j)).max(max);
        }
        let max = max.largest();
        let most = V::Pair::splat(max);
        let mut sum = V::splat(0.0);
        for j in (0..padded).step_by(16) {
            let scores = scores.add(j);
            V::Pair::read(scores).sub(most).exp_below().write(scores);
        }
        // Apart: the halves of a register would be taken from it, not from memory.
        for j in (0..padded).step_by(8) {
            sum = sum.add(V::load(scores.add(j)));
        }
        State { max, sum: sum.sum() }
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
