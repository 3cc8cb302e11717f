//! Weights, and which tokens the filters keep.

use super::{SampleScratch, SamplingParams};
use crate::cpu::math::exp_lanes;
use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};
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
            let x = if chunk.len() == 8 {
                chunk.as_ptr()
            } else {
                padded[..chunk.len()].copy_from_slice(chunk);
                padded.as_ptr()
            };
            // SAFETY: `x` and `out` hold eight values; e lies in 0..=1, so the weight fits an i32.
            unsafe {
                let e = exp_lanes(V::load(x).sub(max).div(temperature));
                e.mul(V::splat(ONE)).store_u32(out.as_mut_ptr());
            }
        }
    }
}

/// Applies top_k, top_p and min_p: the weights of all other tokens become 0.
pub(super) fn filter(logits: &[f32], params: &SamplingParams, scratch: &mut SampleScratch) {
    let SampleScratch { isa, weights, keys, .. } = scratch;
    let all = logits.len();
    let k = if params.top_k == 0 { all } else { all.min(params.top_k as usize) };
    if params.top_p < 1.0 {
        let kept = nucleus(*isa, logits, weights, keys, k, params.top_p);
        keep_only(&mut keys[..kept], weights);
    } else if k < all {
        keep_only(select(*isa, logits, keys, k), weights);
    }
    if params.min_p > 0.0 {
        // 2^30 is exact, and so is its product with an f32 in f64.
        let least = (f64::from(params.min_p.min(1.0)) * f64::from(ONE)).ceil() as u32;
        for w in weights.iter_mut() {
            *w = if *w < least { 0 } else { *w };
        }
    }
}

/// Clears the weights of all tokens whose keys are not given. Uses up the keys.
fn keep_only(kept: &mut [u64], weights: &mut [u32]) {
    for key in kept.iter_mut() {
        let id = key_id(*key);
        *key = (id as u64) << 32 | u64::from(weights[id]);
    }
    weights.fill(0);
    for pair in kept {
        weights[(*pair >> 32) as usize] = *pair as u32;
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

/// The keys of the `k >= 1` best ranks, in no order.
fn select<'k>(isa: Isa, logits: &[f32], keys: &'k mut [u64], k: usize) -> &'k mut [u64] {
    let len = dispatch(isa, Select { logits, keys, k });
    &mut keys[..len]
}

/// One pass that keeps at most `max(2 k, 64)` candidates and cuts them back to `k` whenever they
/// are full; the worst of these is what later logits must exceed (an equal one has a worse rank).
struct Select<'a> {
    logits: &'a [f32],
    keys: &'a mut [u64],
    k: usize,
}

impl Kernel for Select<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes>(self) -> usize {
        let room = (2 * self.k).max(64).min(self.keys.len());
        let mut threshold = None;
        let (mut len, mut first) = (0, 0);
        for chunk in self.logits.chunks(8) {
            if threshold.is_none_or(|least| !none_above::<V>(chunk, least)) {
                for (i, x) in chunk.iter().enumerate() {
                    if threshold.is_none_or(|least| *x > least) {
                        if len == room {
                            len = cut(&mut self.keys[..len], self.k);
                            threshold = Some(self.logits[key_id(self.keys[len - 1])]);
                            if threshold.is_some_and(|least| *x <= least) {
                                continue;
                            }
                        }
                        self.keys[len] = rank_key(first + i, *x);
                        len += 1;
                    }
                }
            }
            first += 8;
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

/// Moves the ranks that top_p keeps of the `k` best to the front of `keys`; returns how many there
/// are. Most distributions end within few ranks, so the search starts small.
fn nucleus(isa: Isa, logits: &[f32], weights: &[u32], keys: &mut [u64], k: usize, top_p: f32) -> usize {
    let weight = |key: &u64| u64::from(weights[key_id(*key)]);
    let total: u64 = if k < logits.len() {
        select(isa, logits, keys, k).iter().map(weight).sum()
    } else {
        weights.iter().map(|w| u64::from(*w)).sum()
    };
    let wanted = f64::from(top_p) * total as f64;
    let mut size = k.min(64);
    loop {
        let best = select(isa, logits, keys, size);
        best.sort_unstable_by_key(|key| Reverse(*key));
        let mut sum = 0u64;
        for (rank, key) in best.iter().enumerate() {
            sum += weight(key);
            // The next rank stays only if this sum is less than wanted.
            if sum as f64 >= wanted {
                return rank + 1;
            }
        }
        if size == k {
            // The sum is `total` now, which no product with less than 1 exceeds but by rounding.
            return k;
        }
        size = k.min(size * 8);
    }
}
