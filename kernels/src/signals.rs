//! What routers want to know about a step, from the raw logits of one row.

use crate::cpu::math::exp_lanes;
use crate::cpu::{Isa, Kernel, Lanes, dispatch, none_above};
use crate::logprobs::LogSoftmax;
use crate::survey::{Survey, load_padded};

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
    surveyed(isa, logits, &Survey::of(isa, logits), flags).0
}

/// [`signals`] of a row that was surveyed, and what turns its logits into log-probabilities.
pub(crate) fn surveyed(
    isa: Isa,
    logits: &[f32],
    survey: &Survey,
    flags: SignalFlags,
) -> (RawSignals, Option<LogSoftmax>) {
    let max = survey.max;
    let (sum, weighted) = dispatch(isa, Sums { logits, max, entropy: flags.contains(SignalFlags::ENTROPY) });
    let log_sum = sum.ln();
    let mut out = RawSignals { lse: (f64::from(max) + log_sum) as f32, ..RawSignals::default() };
    if flags.contains(SignalFlags::ENTROPY) {
        out.entropy = (log_sum + weighted / sum) as f32;
    }
    if flags.contains(SignalFlags::TOP_K) || flags.contains(SignalFlags::MARGIN) {
        let floor = survey.exceeded_by(isa, TOP).unwrap_or(f32::NEG_INFINITY);
        let top = dispatch(isa, Top { logits, survey, floor });
        if flags.contains(SignalFlags::MARGIN) {
            let second = if top.len > 1 { crate::cpu::math::exp(top.logits[1] - max) } else { 0.0 };
            out.margin = ((1.0 - f64::from(second)) / sum) as f32;
        }
        if flags.contains(SignalFlags::TOP_K) {
            (out.top_ids, out.top_logits, out.top_len) = (top.ids, top.logits, top.len as u32);
        }
    }
    (out, LogSoftmax::of_sums(max, log_sum))
}

/// `m` and `ln S` of [`signals`].
pub(crate) fn max_and_log_sum(isa: Isa, logits: &[f32]) -> (f32, f64) {
    let max = Survey::of(isa, logits).max;
    let (sum, _) = dispatch(isa, Sums { logits, max, entropy: false });
    (max, sum.ln())
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
        let (mut sum, mut weighted) = (0.0f64, 0.0f64);
        for block in self.logits.chunks(BLOCK) {
            let mut sums = [V::splat(0.0); 2];
            let chunks = block.chunks_exact(8);
            let rest = chunks.remainder();
            for chunk in chunks {
                // SAFETY: the chunk holds eight values.
                self.take(unsafe { V::load(chunk.as_ptr()) }, &mut sums);
            }
            if !rest.is_empty() {
                self.take(load_padded(rest), &mut sums);
            }
            sum += f64::from(sums[0].sum());
            weighted += f64::from(sums[1].sum());
        }
        (sum, weighted)
    }
}

impl Sums<'_> {
    /// Adds eight logits.
    #[inline(always)]
    fn take<V: Lanes>(&self, x: V, [sum, weighted]: &mut [V; 2]) {
        let d = x.sub(V::splat(self.max));
        let e = exp_lanes(d);
        *sum = sum.add(e);
        if self.entropy {
            *weighted = weighted.add(e.zero_where_zero(e.mul(V::splat(0.0).sub(d))));
        }
    }
}

struct Top<'a> {
    logits: &'a [f32],
    survey: &'a Survey,
    /// As many logits as the list takes exceed this.
    floor: f32,
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
        for block in self.survey.blocks(self.logits) {
            if block.none_above::<V>(self.floor) {
                continue;
            }
            for (i, chunk) in block.logits.chunks(8).enumerate() {
                let limit = top.threshold();
                if !none_above::<V>(chunk, if limit > self.floor { limit } else { self.floor }) {
                    for (lane, x) in chunk.iter().enumerate() {
                        top.offer((block.first + i * 8 + lane) as u32, *x);
                    }
                }
            }
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
