//! Weights, and which tokens the filters keep.

use super::{SampleScratch, SamplingParams};
use crate::cpu::math::{exp, exp_lanes};
use crate::cpu::{Isa, Kernel, Lanes, dispatch};
use std::cmp::Reverse;

/// Weight of the best token.
const ONE: f32 = 1_073_741_824.0;

/// Fills `weights[id]`; the buffer is padded to a multiple of 8.
pub(super) fn weights(isa: Isa, logits: &[f32], max: f32, temperature: f32, weights: &mut [u32]) {
    dispatch(isa, Weights { logits, max, temperature, weights });
}

struct Weights<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f32,
    weights: &'a mut [u32],
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (max, temperature) = (V::splat(self.max), V::splat(self.temperature));
        for (chunk, out) in self.logits.chunks(8).zip(self.weights.chunks_exact_mut(8)) {
            let mut padded = [f32::NEG_INFINITY; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: both hold eight values; e lies in 0..=1, so the weight fits an i32.
            unsafe {
                let e = exp_lanes(V::load(padded.as_ptr()).sub(max).div(temperature));
                e.mul(V::splat(ONE)).store_u32(out.as_mut_ptr());
            }
        }
    }
}

/// The tokens that remain, as a condition on id and logit.
pub(super) struct Kept {
    /// Smallest rank key that is kept.
    least: u64,
    max: f32,
    temperature: f32,
    min_p: f32,
}

impl Kept {
    /// Applies top_k and top_p; min_p is part of the condition.
    pub(super) fn new(logits: &[f32], max: f32, params: &SamplingParams, scratch: &mut SampleScratch) -> Kept {
        let SampleScratch { weights, keys, .. } = scratch;
        let all = logits.len();
        let k = if params.top_k == 0 { all } else { all.min(params.top_k as usize) };
        let least = if params.top_p < 1.0 {
            nucleus(logits, weights, keys, k, params.top_p)
        } else if k < all {
            *select(logits, keys, k).iter().min().unwrap_or(&0)
        } else {
            0
        };
        Kept { least, max, temperature: params.temperature, min_p: params.min_p }
    }

    /// Id and weight of each token that remains, in ascending order of ids.
    pub(super) fn weights<'a>(
        &'a self,
        logits: &'a [f32],
        weights: &'a [u32],
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        let filtered = self.least > 0 || self.min_p > 0.0;
        logits.iter().zip(weights).enumerate().filter_map(move |(id, (x, w))| {
            (*w > 0 && (!filtered || self.keeps(id, *x))).then_some((id, *w))
        })
    }

    fn keeps(&self, id: usize, x: f32) -> bool {
        if rank_key(id, x) < self.least {
            return false;
        }
        self.min_p <= 0.0 || x == self.max || exp((x - self.max) / self.temperature) >= self.min_p
    }
}

/// A key that is larger for a better rank: the logit in an order-preserving form, then the
/// inverted id. Both zeros are one value.
fn rank_key(id: usize, x: f32) -> u64 {
    let bits = (x + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

/// The id in a rank key.
fn key_id(key: u64) -> usize {
    !(key as u32) as usize
}

/// The keys of the `k` best ranks, in no order: one pass that keeps at most `2 k` candidates, cut
/// back to `k` whenever they are full.
fn select<'k>(logits: &[f32], keys: &'k mut [u64], k: usize) -> &'k mut [u64] {
    let room = (2 * k).max(64).min(keys.len());
    let mut len = 0;
    let mut least = 0;
    for (id, x) in logits.iter().enumerate() {
        let key = rank_key(id, *x);
        if key <= least {
            continue;
        }
        if len == room {
            keys[..len].select_nth_unstable_by_key(k - 1, |key| Reverse(*key));
            len = k;
            least = keys[k - 1];
            if key <= least {
                continue;
            }
        }
        keys[len] = key;
        len += 1;
    }
    if len > k {
        keys[..len].select_nth_unstable_by_key(k - 1, |key| Reverse(*key));
        len = k;
    }
    &mut keys[..len]
}

/// The key of the last rank that top_p keeps of the `k` best. Most distributions end within few
/// ranks, so the search starts small.
fn nucleus(logits: &[f32], weights: &[u32], keys: &mut [u64], k: usize, top_p: f32) -> u64 {
    let total = if k < logits.len() {
        select(logits, keys, k).iter().map(|key| u64::from(weights[key_id(*key)])).sum()
    } else {
        weights[..logits.len()].iter().map(|w| u64::from(*w)).sum::<u64>()
    };
    let wanted = f64::from(top_p) * total as f64;
    let mut size = k.min(64);
    loop {
        let best = select(logits, keys, size);
        best.sort_unstable_by_key(|key| Reverse(*key));
        let mut sum = 0u64;
        for key in best.iter() {
            sum += u64::from(weights[key_id(*key)]);
            // The next rank stays only if this sum is less than wanted.
            if sum as f64 >= wanted {
                return *key;
            }
        }
        if size == k {
            // Never more than `total`, reached only by rounding: all k stay.
            return best.last().copied().unwrap_or(0);
        }
        size = k.min(size * 8);
    }
}
