//! Log-probabilities of a row of raw logits: the log-softmax of named ids, and the likeliest ids.

use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};
use crate::signals::max_and_log_sum;

/// Stands for the log-probability of an id that cannot occur (a masked one): a number that JSON can hold.
pub const IMPOSSIBLE: f32 = -9999.0;

/// What turns the logits of one row into log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSoftmax {
    max: f64,
    log_sum: f64,
}

impl LogSoftmax {
    /// Of the raw logits of one row, padding at negative infinity; sums in the order of
    /// [`signals`](crate::signals::signals), so that a row has the same bits wherever it stands. `None` when the logits are
    /// not finite numbers: a NaN, positive infinity, or nothing above negative infinity.
    pub fn new(isa: Isa, logits: &[f32]) -> Option<Self> {
        let (max, log_sum) = max_and_log_sum(isa, logits);
        Self::of_sums(max, log_sum)
    }

    /// From the largest logit and the logarithm of the sum of `exp(x - max)`.
    pub(crate) fn of_sums(max: f32, log_sum: f64) -> Option<Self> {
        (max.is_finite() && log_sum.is_finite()).then_some(Self { max: f64::from(max), log_sum })
    }

    /// The log-probability of an id with this logit: at most 0, and never below [`IMPOSSIBLE`].
    pub fn of(&self, logit: f32) -> f32 {
        ((f64::from(logit) - self.max - self.log_sum) as f32).max(IMPOSSIBLE)
    }
}

/// Fills `out` with the largest logits and their ids, in descending order, ties by the lower id, and returns how many there
/// are: all of `out`, unless fewer logits lie above negative infinity. NaN entries are passed over.
pub fn top_ids(isa: Isa, logits: &[f32], out: &mut [(u32, f32)]) -> usize {
    if out.is_empty() { 0 } else { dispatch(isa, Top { logits, out }) }
}

struct Top<'a> {
    logits: &'a [f32],
    out: &'a mut [(u32, f32)],
}

impl Kernel for Top<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes>(self) -> usize {
        let Self { logits, out } = self;
        let (mut len, mut bar) = (0, f32::NEG_INFINITY);
        for (i, chunk) in logits.chunks(8).enumerate() {
            if none_above::<V>(chunk, bar) {
                continue;
            }
            for (lane, &x) in chunk.iter().enumerate() {
                // Ids ascend, so a tie stays behind its equals. A NaN exceeds nothing.
                if x > bar {
                    len = (len + 1).min(out.len());
                    let at = out[..len - 1].partition_point(|kept| kept.1 >= x);
                    out.copy_within(at..len - 1, at + 1);
                    out[at] = ((i * 8 + lane) as u32, x);
                    bar = if len == out.len() { out[len - 1].1 } else { f32::NEG_INFINITY };
                }
            }
        }
        len
    }
}
