//! What routers want to know about a step, from the raw logits of one row.

use crate::cpu::math::exp_lanes;
use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};

/// Most entries of the list of largest logits.
pub const TOP: usize = 8;

/// Ids per block of the sums.
const BLOCK: usize = 1024;

/// Which signals to compute; the log-sum-exp is always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalFlags(pub u32);

impl SignalFlags {
    /// Only the log-sum-exp.
    pub const NONE: SignalFlags = SignalFlags(0);
    /// [`RawSignals::entropy`].
    pub const ENTROPY: SignalFlags = SignalFlags(1);
    /// [`RawSignals::top_ids`] and [`RawSignals::top_logits`].
    pub const TOP_K: SignalFlags = SignalFlags(2);
    /// [`RawSignals::margin`].
    pub const MARGIN: SignalFlags = SignalFlags(4);
    /// Everything.
    pub const ALL: SignalFlags = SignalFlags(7);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: SignalFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    pub const fn union(self, other: SignalFlags) -> SignalFlags {
        SignalFlags(self.0 | other.0)
    }
}

/// Signals of one row. What was not asked for is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RawSignals {
    /// `ln(sum(exp(logits)))`.
    pub lse: f32,
    /// Entropy of the softmax in nats; terms of probability 0 count as 0.
    pub entropy: f32,
    /// Probability of the best token less that of the second; of the best alone when there is one.
    pub margin: f32,
    /// Ids of the largest logits, largest first, ties by the lower id.
    pub top_ids: [u32; TOP],
    /// Their raw logits.
    pub top_logits: [f32; TOP],
    /// How many entries of the two lists count: at most [`TOP`], fewer when fewer logits are
    /// above negative infinity.
    pub top_len: u32,
}

/// Signals of the raw logits of one row, padding at negative infinity.
///
/// Order, with `m` the largest logit, `d_i = x_i - m` and `e_i = exp(d_i)`: per block of 1024 ids,
/// `S` and `A` add `e_i` and `e_i * -d_i` (0 where `e_i` is 0) in 8 f32 lanes (lane `i % 8`, padded
/// with negative infinity), joined in the usual tree; blocks are added in f64 in ascending order.
/// `lse = m + ln S`, `entropy = ln S + A / S` (both terms are at least 0), `margin = (1 - exp(x_2 - m)) / S`.
///
/// A NaN among the logits makes lse, entropy and margin NaN or meaningless but never panics;
/// [`crate::sampling::sample`] reports such rows.
pub fn signals(logits: &[f32], flags: SignalFlags) -> RawSignals {
    signals_on(Isa::fastest(), logits, flags)
}

/// [`signals`] on a given code path: the same bits.
pub fn signals_on(isa: Isa, logits: &[f32], flags: SignalFlags) -> RawSignals {
    let max = largest(isa, logits);
    let (sum, weighted) = dispatch(isa, Sums { logits, max, entropy: flags.contains(SignalFlags::ENTROPY) });
    let log_sum = sum.ln();
    let mut out = RawSignals { lse: (f64::from(max) + log_sum) as f32, ..RawSignals::default() };
    if flags.contains(SignalFlags::ENTROPY) {
        out.entropy = (log_sum + weighted / sum) as f32;
    }
    if flags.contains(SignalFlags::TOP_K) || flags.contains(SignalFlags::MARGIN) {
        let top = dispatch(isa, Top { logits });
        if flags.contains(SignalFlags::MARGIN) {
            let second = if top.len > 1 { crate::cpu::math::exp(top.logits[1] - max) } else { 0.0 };
            out.margin = ((1.0 - f64::from(second)) / sum) as f32;
        }
        if flags.contains(SignalFlags::TOP_K) {
            (out.top_ids, out.top_logits, out.top_len) = (top.ids, top.logits, top.len as u32);
        }
    }
    out
}

/// `m` and `ln S` of [`signals`].
pub(crate) fn max_and_log_sum(isa: Isa, logits: &[f32]) -> (f32, f64) {
    let max = largest(isa, logits);
    let (sum, _) = dispatch(isa, Sums { logits, max, entropy: false });
    (max, sum.ln())
}

/// The largest logit; NaN entries are passed over; negative infinity when there is none.
pub(crate) fn largest(isa: Isa, logits: &[f32]) -> f32 {
    dispatch(isa, Largest { logits })
}

struct Largest<'a> {
    logits: &'a [f32],
}

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let chunks = self.logits.chunks_exact(8);
        let mut rest = f32::NEG_INFINITY;
        for x in chunks.remainder() {
            rest = if *x > rest { *x } else { rest };
        }
        let mut max = V::splat(f32::NEG_INFINITY);
        for chunk in chunks {
            // SAFETY: the chunk holds eight values.
            max = unsafe { V::load(chunk.as_ptr()) }.max(max);
        }
        let max = max.largest();
        if max > rest { max } else { rest }
    }
}

/// `(S, A)` of [`signals`].
struct Sums<'a> {
    logits: &'a [f32],
    max: f32,
    entropy: bool,
}

impl Kernel for Sums<'_> {
    type Output = (f64, f64);

    #[inline(always)]
    fn run<V: Lanes>(self) -> (f64, f64) {
        let max = V::splat(self.max);
        let (mut sum, mut weighted) = (0.0f64, 0.0f64);
        for block in self.logits.chunks(BLOCK) {
            let (mut s, mut a) = (V::splat(0.0), V::splat(0.0));
            for chunk in block.chunks(8) {
                let mut padded = [f32::NEG_INFINITY; 8];
                let p = if chunk.len() == 8 {
                    chunk.as_ptr()
                } else {
                    padded[..chunk.len()].copy_from_slice(chunk);
                    padded.as_ptr()
                };
                // SAFETY: `p` points to eight values, in the chunk or in `padded`.
                let d = unsafe { V::load(p) }.sub(max);
                let e = exp_lanes(d);
                s = s.add(e);
                if self.entropy {
                    a = a.add(e.zero_where_zero(e.mul(V::splat(0.0).sub(d))));
                }
            }
            sum += f64::from(s.sum());
            weighted += f64::from(a.sum());
        }
        (sum, weighted)
    }
}

struct Top<'a> {
    logits: &'a [f32],
}

struct TopList {
    ids: [u32; TOP],
    logits: [f32; TOP],
    len: usize,
}

impl Kernel for Top<'_> {
    type Output = TopList;

    #[inline(always)]
    fn run<V: Lanes>(self) -> TopList {
        let mut top = TopList { ids: [0; TOP], logits: [0.0; TOP], len: 0 };
        let mut id = 0;
        for chunk in self.logits.chunks(8) {
            if !none_above::<V>(chunk, top.threshold()) {
                for (i, x) in chunk.iter().enumerate() {
                    top.offer(id + i as u32, *x);
                }
            }
            id += 8;
        }
        top
    }
}

impl TopList {
    /// What a logit must exceed to enter.
    #[inline(always)]
    fn threshold(&self) -> f32 {
        if self.len < TOP { f32::NEG_INFINITY } else { self.logits[TOP - 1] }
    }

    /// Ids come in ascending order, so a tie stays behind its equals.
    #[inline(always)]
    fn offer(&mut self, id: u32, x: f32) {
        if x <= self.threshold() || x.is_nan() {
            return;
        }
        if self.len < TOP {
            self.len += 1;
        }
        let mut at = self.len - 1;
        while at > 0 && x > self.logits[at - 1] {
            self.logits[at] = self.logits[at - 1];
            self.ids[at] = self.ids[at - 1];
            at -= 1;
        }
        (self.logits[at], self.ids[at]) = (x, id);
    }
}
