//! From scores to weights, and the end.

use super::{Block, Query, Segment, State};
use crate::cpu::pair::Pair;
use crate::cpu::{Kernel, Lanes};

/// Queries whose chains of additions run beside each other.
const TOGETHER: usize = 4;

/// Turns the scores of a segment into weights and takes them into the state of each query.
pub(super) struct Softmax<'a> {
    pub(super) segment: Segment<'a>,
    pub(super) queries: &'a mut [Query],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let mut i = 0;
        while V::WIDE_TILES && i + TOGETHER <= self.queries.len() {
            self.some::<V, TOGETHER>(i);
            i += TOGETHER;
        }
        while i < self.queries.len() {
            self.some::<V, 1>(i);
            i += 1;
        }
    }
}

impl Softmax<'_> {
    /// Queries `first .. first + C`.
    #[inline(always)]
    fn some<V: Lanes, const C: usize>(&mut self, first: usize) {
        let (mut scores, mut seen) = ([self.segment.scores; C], [0; C]);
        for c in 0..C {
            scores[c] = self.segment.scores(first + c);
            seen[c] = self.segment.seen(&self.queries[first + c]);
        }
        // SAFETY: the scores of what each query sees are there, and room for a segment.
        let states = unsafe { softmax::<V, C>(scores, seen) };
        for c in 0..C {
            let query = &mut self.queries[first + c];
            if self.segment.from == 0 {
                query.state = states[c];
            } else {
                query.fold = query.state.fold(&states[c]);
            }
        }
    }
}

/// Turns `counts[c]` scores, ascending with `c`, into weights; returns their maxima and the sums of the weights.
///
/// # Safety
/// `counts[c]` f32 must be readable at `scores[c]`, and all up to the next multiple of sixteen of the last one writable.
#[inline(always)]
unsafe fn softmax<V: Lanes, const C: usize>(scores: [*mut f32; C], counts: [usize; C]) -> [State; C] {
    let padded = counts[C - 1].next_multiple_of(16);
    let mut max = [V::Pair::splat(f32::NEG_INFINITY); C];
    let mut sum = [V::splat(0.0); C];
    let mut states = [State::default(); C];
    // SAFETY: j stays below `padded`.
    unsafe {
        for c in 0..C {
            // Their weights will be zeros, which change no sum.
            for j in counts[c]..padded {
                *scores[c].add(j) = f32::NEG_INFINITY;
            }
        }
        for j in (0..padded).step_by(16) {
            for c in 0..C {
                max[c] = V::Pair::read(scores[c].add(j)).max(max[c]);
            }
        }
        for c in 0..C {
            states[c].max = max[c].largest();
            max[c] = V::Pair::splat(states[c].max);
        }
        for j in (0..padded).step_by(16) {
            for c in 0..C {
                let at = scores[c].add(j);
                V::Pair::read(at).sub(max[c]).exp_below().write(at);
            }
        }
        // Apart: in one loop the compiler would take the halves from the register, not from memory.
        for j in (0..padded).step_by(8) {
            for c in 0..C {
                sum[c] = sum[c].add(V::load(scores[c].add(j)));
            }
        }
    }
    for c in 0..C {
        states[c].sum = sum[c].sum();
    }
    states
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
