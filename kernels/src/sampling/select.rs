//! The best ranks of a row.

use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};
use crate::survey::Survey;
use std::cmp::Reverse;

/// A key that is larger for a better rank: the logit in an order-preserving form, then the
/// inverted id. Both zeros are one value.
pub(super) fn rank_key(id: usize, x: f32) -> u64 {
    let bits = (x + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

/// The id in a rank key.
pub(super) fn key_id(key: u64) -> usize {
    !(key as u32) as usize
}

/// The keys of the `k >= 1` best ranks, in no order.
pub(super) fn select<'k>(
    isa: Isa,
    logits: &[f32],
    survey: &Survey,
    keys: &'k mut [u64],
    k: usize,
) -> &'k mut [u64] {
    let floor = survey.exceeded_by(isa, k);
    let len = dispatch(isa, Select { logits, survey, floor, keys, k });
    &mut keys[..len]
}

/// One pass over the blocks that matter. It keeps at most `max(2 k, 64)` candidates and cuts them back to `k` whenever
/// they are full; the worst of these is what later logits must exceed (an equal one has a worse rank).
struct Select<'a> {
    logits: &'a [f32],
    survey: &'a Survey,
    /// At least `k` logits exceed this.
    floor: Option<f32>,
    keys: &'a mut [u64],
    k: usize,
}

impl Kernel for Select<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes>(self) -> usize {
        let room = (2 * self.k).max(64).min(self.keys.len());
        let mut threshold = self.floor;
        let mut len = 0;
        for block in self.survey.blocks(self.logits) {
            if threshold.is_some_and(|least| block.none_above::<V>(least)) {
                continue;
            }
            for (i, chunk) in block.logits.chunks(8).enumerate() {
                if threshold.is_some_and(|least| none_above::<V>(chunk, least)) {
                    continue;
                }
                for (lane, x) in chunk.iter().enumerate() {
                    if threshold.is_none_or(|least| *x > least) {
                        if len == room {
                            len = cut(&mut self.keys[..len], self.k);
                            let worst = self.logits[key_id(self.keys[len - 1])];
                            threshold = Some(worst);
                            if *x <= worst {
                                continue;
                            }
                        }
                        self.keys[len] = rank_key(block.first + i * 8 + lane, *x);
                        len += 1;
                    }
                }
            }
        }
        cut(&mut self.keys[..len], self.k)
    }
}

/// Moves the `k` best keys to the front, the worst of them last; returns how many there are.
#[inline(never)]
fn cut(keys: &mut [u64], k: usize) -> usize {
    if keys.len() > k {
        keys.select_nth_unstable_by_key(k - 1, |key| Reverse(*key));
        k
    } else {
        keys.len()
    }
}
