//! Weights, and the draw among them.

use crate::cpu::math::{exp, exp_lanes};
use crate::cpu::{Isa, Kernel, Lanes, dispatch};
use crate::survey::load_padded;

/// Weight of the best token.
const ONE: f32 = 1_073_741_824.0;
/// Weights added at a time in the search of the drawn token.
const DRAW_BLOCK: usize = 256;

/// What turns a logit into its weight.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// The largest logit.
    pub(super) max: f32,
    /// Finite, so that masked logits stay at negative infinity.
    pub(super) temperature: f32,
}

impl Scale {
    /// The weight of one logit.
    pub(super) fn weight(self, x: f32) -> u32 {
        (exp((x - self.max) / self.temperature) * ONE).round_ties_even() as u32
    }

    /// `(x - max) / temperature` of eight lanes.
    #[inline(always)]
    pub(super) fn scaled<V: Lanes>(self, x: V) -> V {
        let distance = x.sub(V::splat(self.max));
        // A division by one changes nothing.
        if self.temperature == 1.0 { distance } else { distance.div(V::splat(self.temperature)) }
    }

    /// Stores the weights of eight logits.
    #[inline(always)]
    fn store<V: Lanes>(self, x: V, out: &mut [u32]) {
        let w = exp_lanes(self.scaled(x)).mul(V::splat(ONE));
        assert_eq!(out.len(), 8);
        // SAFETY: there is room for eight; the exponential lies in 0..=1, so the weight fits an i32.
        unsafe { w.store_u32(out.as_mut_ptr()) };
    }
}

/// The least weight that min_p keeps.
pub(super) fn least(min_p: f32) -> u32 {
    // 2^30 is exact, and so is its product with an f32 in f64. A NaN keeps all.
    if min_p > 0.0 { (f64::from(min_p.min(1.0)) * f64::from(ONE)).ceil() as u32 } else { 0 }
}

/// Fills `weights[id]`; the buffer is padded to a multiple of 8.
pub(super) fn fill(isa: Isa, logits: &[f32], scale: Scale, weights: &mut [u32]) {
    dispatch(isa, Fill { logits, scale, weights });
}

struct Fill<'a> {
    logits: &'a [f32],
    scale: Scale,
    weights: &'a mut [u32],
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let chunks = self.logits.chunks_exact(8);
        let rest = chunks.remainder();
        let mut out = self.weights.chunks_exact_mut(8);
        for (chunk, out) in chunks.zip(&mut out) {
            // SAFETY: the chunk holds eight values.
            self.scale.store::<V>(unsafe { V::load(chunk.as_ptr()) }, out);
        }
        if let Some(out) = out.next() {
            self.scale.store::<V>(load_padded(rest), out);
        }
    }
}

/// Clears the weights below `least`, and fills `sums` with the sums of the others, block by block.
pub(super) fn sum_blocks(isa: Isa, weights: &mut [u32], least: u32, sums: &mut Vec<u64>) {
    sums.clear();
    dispatch(isa, Sum { weights, least, sums });
}

struct Sum<'a> {
    weights: &'a mut [u32],
    least: u32,
    sums: &'a mut Vec<u64>,
}

impl Kernel for Sum<'_> {
    type Output = ();

    // Plain loops, which vectorise with the features of the caller.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for block in self.weights.chunks_mut(DRAW_BLOCK) {
            if self.least > 0 {
                block.iter_mut().for_each(|w| *w = if *w < self.least { 0 } else { *w });
            }
            self.sums.push(block.iter().map(|w| u64::from(*w)).sum());
        }
    }
}

/// How many sums there are of so many weights.
pub(super) fn blocks(weights: usize) -> usize {
    weights.div_ceil(DRAW_BLOCK)
}

/// The first id at which the running sum of weights exceeds the target; `sums` are those of the blocks.
pub(super) fn draw(weights: &[u32], sums: &[u64], bits: u64) -> u32 {
    let target = target(bits, sums.iter().sum());
    let mut sum = 0;
    for (i, (block, block_sum)) in weights.chunks(DRAW_BLOCK).zip(sums).enumerate() {
        if sum + block_sum > target {
            for (j, weight) in block.iter().enumerate() {
                sum += u64::from(*weight);
                if sum > target {
                    return (i * DRAW_BLOCK + j) as u32;
                }
            }
        }
        sum += block_sum;
    }
    // Not reached: the best token always keeps its 2^30, so target < total.
    0
}

/// As [`draw`], among a few: `id << 32 | weight` in ascending order.
pub(super) fn draw_of_few(pairs: &[u64], bits: u64) -> u32 {
    let weight = |pair: &u64| u64::from(*pair as u32);
    let target = target(bits, pairs.iter().map(weight).sum());
    let mut sum = 0;
    for pair in pairs {
        sum += weight(pair);
        if sum > target {
            return (pair >> 32) as u32;
        }
    }
    // Not reached, as above.
    0
}

fn target(bits: u64, total: u64) -> u64 {
    ((u128::from(bits) * u128::from(total)) >> 64) as u64
}
