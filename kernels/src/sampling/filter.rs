//! Which tokens the filters keep.

use super::select::{key_id, rank_key, select};
use super::weights::{self, Scale, least};
use super::{SampleScratch, SamplingParams};
use crate::cpu::{Isa, Kernel, Lanes, dispatch};
use crate::survey::{Survey, load_padded};
use std::cmp::Reverse;

/// What is kept can be listed up to here; above, the weights of all others are cleared.
const LISTED: usize = 1024;
/// Most nuclei end within so many ranks.
const FIRST_TRY: usize = 64;
/// Buckets of tokens by their distance from the best, [`STEPS`] to a factor of e in weight. Weights end 21 of these below
/// the best.
pub(super) const BUCKETS: usize = 2048;
const STEPS: f32 = 64.0;

/// What is left of a row.
pub(super) enum Kept {
    /// So many `id << 32 | weight`, by ascending id, at the front of `SampleScratch::keys`.
    Few(usize),
    /// In `SampleScratch::weights`, their sums in `SampleScratch::sums`.
    Many,
}

/// Applies top_k, top_p and min_p. No filter reads the row more than a fixed number of times.
pub(super) fn filter(
    logits: &[f32],
    survey: &Survey,
    scale: Scale,
    params: &SamplingParams,
    scratch: &mut SampleScratch,
) -> Kept {
    let SampleScratch { isa, weights, sums, keys, masses, .. } = scratch;
    let (isa, all) = (*isa, logits.len());
    let k = if params.top_k == 0 { all } else { all.min(params.top_k as usize) };
    let nucleus = params.top_p < 1.0;
    let least = least(params.min_p);
    if k < all && k <= LISTED {
        let best = select(isa, logits, survey, keys, k);
        let weight = |key: &u64| scale.weight(logits[key_id(*key)]);
        let mut kept = best.len();
        if nucleus {
            let total = best.iter().map(|key| u64::from(weight(key))).sum();
            kept = leading(best, total, params.top_p, weight).unwrap_or(kept);
        }
        return Kept::Few(listed(&mut best[..kept], least, weight));
    }
    weights::fill(isa, logits, scale, weights);
    if k < all {
        keep_only(select(isa, logits, survey, keys, k), weights);
    }
    if nucleus {
        weights::sum_blocks(isa, weights, 0, sums);
        let total: u64 = sums.iter().sum();
        let best = select(isa, logits, survey, keys, FIRST_TRY.min(all));
        let weight = |key: &u64| weights[key_id(*key)];
        if let Some(kept) = leading(best, total, params.top_p, weight) {
            return Kept::Few(listed(&mut best[..kept], least, weight));
        }
        cut_nucleus(isa, logits, scale, f64::from(params.top_p) * total as f64, weights, masses, keys);
    }
    weights::sum_blocks(isa, weights, least, sums);
    Kept::Many
}

/// Sorts the best ranks, whose weights are `total` with those that are not listed, and says how many of them top_p keeps;
/// `None` when it keeps more.
fn leading(best: &mut [u64], total: u64, top_p: f32, weight: impl Fn(&u64) -> u32) -> Option<usize> {
    best.sort_unstable_by_key(|key| Reverse(*key));
    let wanted = f64::from(top_p) * total as f64;
    let mut sum = 0;
    // The next rank stays only if the sum is less than wanted.
    best.iter()
        .position(|key| {
            sum += u64::from(weight(key));
            sum as f64 >= wanted
        })
        .map(|last| last + 1)
}

/// Turns ranks into ids with weights, by ascending id, those below `least` left out; returns how many are left.
fn listed(kept: &mut [u64], least: u32, weight: impl Fn(&u64) -> u32) -> usize {
    let mut len = 0;
    for at in 0..kept.len() {
        let weight = weight(&kept[at]);
        if weight >= least {
            kept[len] = (key_id(kept[at]) as u64) << 32 | u64::from(weight);
            len += 1;
        }
    }
    kept[..len].sort_unstable();
    len
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

/// Keeps the ranks whose predecessors weigh less than `wanted`, which the weights reach together. The bucket in which they
/// do is sorted; those before it stay, those behind it go.
fn cut_nucleus(
    isa: Isa,
    logits: &[f32],
    scale: Scale,
    wanted: f64,
    weights: &mut [u32],
    masses: &mut Vec<u64>,
    keys: &mut [u64],
) {
    masses.clear();
    masses.resize(BUCKETS, 0);
    dispatch(isa, Weigh { logits, scale, weights, masses });
    let mut before = 0;
    // The last of them reaches it, whatever the rounding of `wanted`.
    let bucket = masses.iter().position(|mass| {
        let reached = (before + mass) as f64 >= wanted;
        before += if reached { 0 } else { *mass };
        reached
    });
    let Some(bucket) = bucket else { return };
    let len = dispatch(isa, Gather { logits, scale, weights, bucket: bucket as u32, keys });
    let keys = &mut keys[..len];
    keys.sort_unstable_by_key(|key| Reverse(*key));
    let mut sum = before;
    let last = keys.iter().position(|key| {
        sum += u64::from(weights[key_id(*key)]);
        sum as f64 >= wanted
    });
    let Some(lowest) = keys.last().map(|key| logits[key_id(*key)]) else { return };
    for key in &keys[last.map_or(len, |last| last + 1)..] {
        weights[key_id(*key)] = 0;
    }
    dispatch(isa, ClearBelow { logits, lowest, weights });
}

/// The buckets of eight logits: a worse rank is never in an earlier one.
#[inline(always)]
fn buckets<V: Lanes>(chunk: &[f32], scale: Scale) -> [u32; 8] {
    let last = V::splat((BUCKETS - 1) as f32);
    let steps = scale.scaled(load_padded::<V>(chunk)).mul(V::splat(-STEPS));
    let mut out = [0; 8];
    // SAFETY: the lanes lie between 0 and the last bucket, and there is room for eight.
    unsafe { steps.select_less(last, steps, last).store_u32(out.as_mut_ptr()) };
    out
}

/// Adds every weight to its bucket.
struct Weigh<'a> {
    logits: &'a [f32],
    scale: Scale,
    weights: &'a [u32],
    masses: &'a mut [u64],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        for (chunk, weights) in self.logits.chunks(8).zip(self.weights.chunks_exact(8)) {
            if weights.iter().fold(0, |any, w| any | w) == 0 {
                continue;
            }
            for (bucket, weight) in buckets::<V>(chunk, self.scale).iter().zip(weights) {
                self.masses[*bucket as usize] += u64::from(*weight);
            }
        }
    }
}

/// Collects the ranks of one bucket that have a weight; returns how many there are.
struct Gather<'a> {
    logits: &'a [f32],
    scale: Scale,
    weights: &'a [u32],
    bucket: u32,
    keys: &'a mut [u64],
}

impl Kernel for Gather<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes>(self) -> usize {
        let mut len = 0;
        for (i, (chunk, weights)) in self.logits.chunks(8).zip(self.weights.chunks_exact(8)).enumerate() {
            let buckets = buckets::<V>(chunk, self.scale);
            if buckets.iter().fold(true, |none, bucket| none & (*bucket != self.bucket)) {
                continue;
            }
            for (lane, x) in chunk.iter().enumerate() {
                if buckets[lane] == self.bucket && weights[lane] > 0 {
                    self.keys[len] = rank_key(i * 8 + lane, *x);
                    len += 1;
                }
            }
        }
        len
    }
}

/// Clears the weights of logits below `lowest`.
struct ClearBelow<'a> {
    logits: &'a [f32],
    lowest: f32,
    weights: &'a mut [u32],
}

impl Kernel for ClearBelow<'_> {
    type Output = ();

    // A plain loop, which vectorises with the features of the caller.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for (x, weight) in self.logits.iter().zip(self.weights) {
            *weight = if *x < self.lowest { 0 } else { *weight };
        }
    }
}
