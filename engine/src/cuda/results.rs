//! From the block of results in pinned memory to what the scheduler reads.

use bytemuck::cast_slice;
use tokenrouter_kernels::cuda::RowSignals;
use tokenrouter_kernels::logprobs::IMPOSSIBLE;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{RowFault, RowResult, Signals, TOP};

use super::block::{ResultMap, SIGNAL_WORDS};
use crate::scores::Scores;

/// The results of one step.
pub(super) struct Results<'a> {
    pub(super) words: &'a [u32],
    pub(super) map: ResultMap,
    /// Which signals were asked for; the others stay 0, as on the CPU.
    pub(super) flags: SignalFlags,
    /// Logarithm of the configured vocabulary, padding included.
    pub(super) ln_vocab: f32,
}

impl Results<'_> {
    /// The result of the sampling row `row`.
    pub(super) fn row(&self, row: usize) -> RowResult {
        let signals = self.signals(row);
        if self.words[self.map.fault + row] != 0 {
            return RowResult { token: 0, signals, fault: Some(RowFault::NonFinite) };
        }
        RowResult { token: self.words[self.map.token + row], signals, fault: None }
    }

    /// Adds the log-probability of the named id of row `row` (the token, or a token of a prompt) and those of the `top`
    /// likeliest to `scores`.
    pub(super) fn score(&self, row: usize, top: usize, scores: &mut Scores) {
        let raw = self.raw(row);
        let logit = f32::from_bits(self.words[self.map.logit + row]);
        // A NaN or an infinity among the logits shows in their sum.
        if !raw.lse.is_finite() || logit.is_nan() {
            return scores.push_fault();
        }
        let of = |logit: f32| ((f64::from(logit) - f64::from(raw.lse)) as f32).clamp(IMPOSSIBLE, 0.0);
        let len = top.min(raw.top_len as usize).min(self.map.top);
        let start = row * self.map.top;
        let (ids, logits) = (self.map.top_ids + start, self.map.top_logits + start);
        let ids = self.words[ids..ids + len].iter().copied();
        let logits = self.words[logits..logits + len].iter().map(|bits| f32::from_bits(*bits));
        scores.push(of(logit), ids.zip(logits.map(of)));
    }

    fn raw(&self, row: usize) -> &RowSignals {
        let at = self.map.signals + row * SIGNAL_WORDS;
        &cast_slice(&self.words[at..at + SIGNAL_WORDS])[0]
    }

    fn signals(&self, row: usize) -> Signals {
        let raw = self.raw(row);
        let mut out = Signals { lse: raw.lse, ..Signals::default() };
        if self.flags.contains(SignalFlags::ENTROPY) {
            out.entropy = raw.entropy;
            out.entropy_norm = raw.entropy / self.ln_vocab;
        }
        if self.flags.contains(SignalFlags::MARGIN) {
            out.margin = raw.margin;
        }
        if self.flags.contains(SignalFlags::TOP_K) {
            let len = TOP.min(raw.top_len as usize);
            let start = row * self.map.top;
            let (ids, logits) = (self.map.top_ids + start, self.map.top_logits + start);
            out.top_ids[..len].copy_from_slice(&self.words[ids..ids + len]);
            out.top_logits[..len].copy_from_slice(cast_slice(&self.words[logits..logits + len]));
            out.top_len = len as u32;
        }
        out
    }
}
