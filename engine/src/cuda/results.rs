//! From the block of results in pinned memory to what the scheduler reads.

use bytemuck::cast_slice;
use tokenrouter_kernels::cuda::RowSignals;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{RowFault, RowResult, Signals, TOP};

use super::block::{ResultMap, SIGNAL_WORDS};

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

    fn signals(&self, row: usize) -> Signals {
        let at = self.map.signals + row * SIGNAL_WORDS;
        let raw: &RowSignals = &cast_slice(&self.words[at..at + SIGNAL_WORDS])[0];
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
