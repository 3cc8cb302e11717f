//! From scores to weights.

use super::SEGMENT_TOKENS;
use crate::cpu::Lanes;
use crate::cpu::math::exp;
use crate::cpu::pair::Pair;

/// Running state of one query.
#[derive(Clone, Copy, Default)]
pub(super) struct State {
    max: f32,
    pub(super) sum: f32,
}

impl State {
    /// Takes a segment in; returns the factors of the old and of the new output.
    #[inline(always)]
    pub(super) fn fold(&mut self, segment: &State) -> (f32, f32) {
        let max = if self.max > segment.max { self.max } else { segment.max };
        let (a, b) = (exp(self.max - max), exp(segment.max - max));
        self.sum = self.sum.mul_add(a, segment.sum * b);
        self.max = max;
        (a, b)
    }
}

/// Turns `counts[c]` scores, ascending with `c`, into weights; returns their maxima and the sums of the weights. The
/// chains of additions of several queries run beside each other.
///
/// # Safety
/// `counts[c]` f32 must be readable at `scores + c * SEGMENT_TOKENS`, and all up to the next multiple of sixteen of the last one
/// writable.
#[inline(always)]
pub(super) unsafe fn softmax<V: Lanes, const C: usize>(scores: *mut f32, counts: &[usize; C]) -> [State; C] {
    let padded = counts[C - 1].next_multiple_of(16);
    let mut max = [V::Pair::splat(f32::NEG_INFINITY); C];
    let mut sum = [V::splat(0.0); C];
    let mut states = [State::default(); C];
    // SAFETY: j stays below `padded`.
    unsafe {
        for c in 0..C {
            // Their weights will be zeros, which change no sum.
            for j in counts[c]..padded {
                *scores.add(c * SEGMENT_TOKENS + j) = f32::NEG_INFINITY;
            }
        }
        for j in (0..padded).step_by(16) {
            for c in 0..C {
                max[c] = V::Pair::read(scores.add(c * SEGMENT_TOKENS + j)).max(max[c]);
            }
        }
        for c in 0..C {
            states[c].max = max[c].largest();
        }
        for c in 0..C {
            let max = V::Pair::splat(states[c].max);
            for j in (0..padded).step_by(16) {
                let at = scores.add(c * SEGMENT_TOKENS + j);
                V::Pair::read(at).sub(max).exp_below().write(at);
            }
        }
        // Apart: in one loop the compiler would take the halves from the register, not from memory.
        for j in (0..padded).step_by(8) {
            for c in 0..C {
                sum[c] = sum[c].add(V::load(scores.add(c * SEGMENT_TOKENS + j)));
            }
        }
    }
    for c in 0..C {
        states[c].sum = sum[c].sum();
    }
    states
}
