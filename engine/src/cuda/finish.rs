//! The end of a step: logits of the rows that want them, statistics, signals, and the draw.

use half::bf16;
use tokenrouter_kernels::cuda::{CudaError, LinearArgs, NormArgs, Ptr, SampleArgs, SignalArgs, StatsArgs};

use super::block::{Plan, at};
use super::forward::Forward;

/// See [`Forward::run`] for what the callers of all of these promise.
impl Forward<'_> {
    /// Everything after the last layer. A step none of whose rows samples skips it, unless a graph runs it, whose kernels
    /// then find no row.
    pub(super) unsafe fn finish(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        if plan.rows == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.last_norm(plan)?;
            self.logits(plan)?;
            self.signals(plan)?;
            self.sample(plan)
        }
    }

    /// The final norm of the tokens whose logits are wanted.
    unsafe fn last_norm(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let args = NormArgs {
            index: at(self.block, plan.front.logit_tokens),
            out: self.arena.hidden.ptr(),
            rows: self.rows(),
            ..self.norm_args(self.weights.final_norm.ptr())
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.rms_norm(self.stream, plan.rows, &args) }
    }

    unsafe fn logits(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let shape = self.shape;
        let args =
            self.head_args((self.arena.logits.ptr(), shape.vocab_stride), shape.vocab, shape.real_vocab);
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.linear(self.stream, plan.rows, &args) }
    }

    /// The product with this rank's `n` columns of the output matrix, `n_real` of them unmasked.
    fn head_args(&self, (to, stride): (Ptr<f32>, u32), n: u32, n_real: u32) -> LinearArgs {
        let hidden = self.shape.hidden;
        let from: Ptr<bf16> = self.arena.hidden.ptr();
        LinearArgs {
            w: self.weights.lm_head(),
            x: from,
            bias: Ptr::NULL,
            y: to.cast(),
            rows: self.rows(),
            n,
            kb: hidden.blocks(),
            x_stride: hidden.stride,
            y_stride: stride,
            slices: 4,
            f32_out: 1,
            n_real,
        }
    }

    unsafe fn signals(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let (shape, arena, map) = (self.shape, self.arena, &plan.results);
        let (logits, tiles, rows) = (arena.logits.ptr(), arena.stats.ptr(), self.rows());
        let (vocab, stride) = (shape.vocab, shape.vocab_stride);
        let stats = StatsArgs { logits, tiles, rows, vocab, stride };
        let signals = SignalArgs {
            logits,
            tiles,
            signals: at(self.results, map.signals),
            top_ids: at(self.results, map.top_ids),
            top_logits: at(self.results, map.top_logits),
            rows,
            vocab,
            stride,
            top: map.top as u32,
        };
        // SAFETY: the caller's promise.
        unsafe {
            self.context.kernels.logit_stats(self.stream, plan.rows, &stats)?;
            self.context.kernels.row_signals(self.stream, plan.rows, &signals)
        }
    }

    unsafe fn sample(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let (shape, arena) = (self.shape, self.arena);
        let lists: Ptr<u32> = at(self.block, self.map.lists);
        let args = SampleArgs {
            logits: arena.logits.ptr(),
            work: arena.work.ptr(),
            counts: arena.counts.ptr(),
            draws: at(self.block, plan.front.draws),
            bias_ids: lists,
            bias_values: at(self.block, self.map.biases),
            forbidden_ids: lists,
            history_ids: lists,
            token: at(self.results, plan.results.token),
            fault: at(self.results, plan.results.fault),
            rows: self.rows(),
            vocab: shape.vocab,
            stride: shape.vocab_stride,
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.sample_tokens(self.stream, plan.rows, &args) }
    }
}
