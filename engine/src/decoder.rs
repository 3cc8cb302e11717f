//! The layer order, written once for every device and architecture.
//!
//! embedding, then per layer: norm, q/k/v, per-head norm + rotation + cache write, attention, output
//! projection, residual add fused with the next norm, gate and up, SiLU times, down projection; at the
//! end the residual add and norm of only those tokens whose logits are wanted, the output matrix, and
//! the mask over padding ids.
//!
//! The same code runs a whole model and a part of one: a part has fewer heads and features, and meets the others where
//! products over all features are summed (`o_proj`, `down_proj`) and where logits are gathered.

use tokenrouter_kernels::cpu::{Reduce, StepTokens};

use crate::comm::Stopped;
use crate::config::ModelConfig;
use crate::ops::{Ops, QkvLayer};
use crate::weights::{Linear, ModelWeights};

/// Rows that the buffers are sized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens fed in one step, all rows together.
    pub tokens: usize,
    /// Tokens of one step whose logits are wanted: at most one per row.
    pub logit_rows: usize,
}

/// The activation buffers of one model, sized once from the step limits; no step allocates.
///
/// A step feeds `T <= tokens` tokens and asks for `n <= logit_rows` logits, and the scheduler never
/// forms a larger batch, so each buffer's largest use is its size: `[T, width]` for the layers and
/// `[n, width]` for the end. Buffers are not shared between uses: at most a few MB are at stake and
/// every value then has one name.
pub struct Decoder<O: Ops> {
    limits: StepLimits,
    lm_head: Linear,
    residual: O::Buffer,
    normed: O::Buffer,
    q: O::Buffer,
    k: O::Buffer,
    v: O::Buffer,
    attended: O::Buffer,
    delta: O::Buffer,
    gate: O::Buffer,
    up: O::Buffer,
    last_residual: O::Buffer,
    last_delta: O::Buffer,
    hidden: O::Buffer,
    logits: O::Buffer,
}

/// f32 values in all buffers of a [`Decoder`]; see [`Decoder::new`].
pub fn buffer_values(config: &ModelConfig, limits: StepLimits, logit_cols: usize) -> u64 {
    let per_token =
        3 * config.hidden_size + 2 * config.q_width() + 2 * config.kv_width() + 2 * config.intermediate_size;
    let per_logit_row = 3 * config.hidden_size + logit_cols;
    limits.tokens as u64 * per_token as u64 + limits.logit_rows as u64 * per_logit_row as u64
}

impl<O: Ops> Decoder<O> {
    /// Allocates the buffers. `config` and `weights` are of the part of the model; `logit_cols` is the whole vocabulary on
    /// the part that samples, and 0 on the others.
    pub fn new(
        ops: &O,
        config: &ModelConfig,
        weights: &ModelWeights,
        limits: StepLimits,
        logit_cols: usize,
    ) -> Self {
        let token = |width: usize| ops.buffer(limits.tokens * width);
        let last = |width: usize| ops.buffer(limits.logit_rows * width);
        Self {
            limits,
            lm_head: weights.lm_head.clone(),
            residual: token(config.hidden_size),
            normed: token(config.hidden_size),
            q: token(config.q_width()),
            k: token(config.kv_width()),
            v: token(config.kv_width()),
            attended: token(config.q_width()),
            delta: token(config.hidden_size),
            gate: token(config.intermediate_size),
            up: token(config.intermediate_size),
            last_residual: last(config.hidden_size),
            last_delta: last(config.hidden_size),
            hidden: last(config.hidden_size),
            logits: last(logit_cols),
        }
    }

    /// The rows that the buffers carry.
    pub fn limits(&self) -> StepLimits {
        self.limits
    }

    /// Logits of the last step, `[n, vocab]` in the leading rows.
    pub fn logits(&self) -> &O::Buffer {
        &self.logits
    }

    /// The same, for sampling, which changes them.
    pub fn logits_mut(&mut self) -> &mut O::Buffer {
        &mut self.logits
    }

    /// Hidden states after the final norm of the last step, `[n, hidden]` in the leading rows.
    pub fn hidden(&self) -> &O::Buffer {
        &self.hidden
    }

    /// Hidden states after the final norm of every token that the last step has fed, `[tokens, hidden]`.
    pub fn all_hidden(
        &mut self,
        ops: &mut O,
        config: &ModelConfig,
        weights: &ModelWeights,
        tokens: usize,
    ) -> &O::Buffer {
        let eps = config.rms_norm_eps;
        let (residual, delta) = (&mut self.residual, &self.delta);
        ops.add_rms_norm(tokens, residual, delta, &weights.final_norm, eps, &mut self.normed);
        &self.normed
    }

    /// The layers of one step: feeds `ids`. [`Self::finish`] has the logits, of as many lists of tokens as are wanted.
    ///
    /// # Errors
    /// [`Stopped`] when another part of the model has failed.
    pub fn feed(
        &mut self,
        ops: &mut O,
        config: &ModelConfig,
        weights: &ModelWeights,
        ids: &[u32],
        step: &StepTokens<'_>,
    ) -> Result<(), Stopped> {
        let (tokens, eps) = (ids.len(), config.rms_norm_eps);
        ops.embed(&weights.embed, ids, &mut self.residual);
        for (index, layer) in weights.layers.iter().enumerate() {
            if index == 0 {
                ops.rms_norm(tokens, &self.residual, &layer.input_norm, eps, &mut self.normed);
            } else {
                ops.add_rms_norm(
                    tokens,
                    &mut self.residual,
                    &self.delta,
                    &layer.input_norm,
                    eps,
                    &mut self.normed,
                );
            }
            ops.linear(tokens, &self.normed, &layer.q_proj, Reduce::Whole, &mut self.q);
            ops.linear(tokens, &self.normed, &layer.k_proj, Reduce::Whole, &mut self.k);
            ops.linear(tokens, &self.normed, &layer.v_proj, Reduce::Whole, &mut self.v);
            let qkv = QkvLayer { layer: index, qk_norm: layer.qk_norm.as_ref(), eps };
            ops.qk_norm_rope_kv(step, qkv, &mut self.q, &mut self.k, &self.v);
            ops.attention(step, index, &self.q, &mut self.attended);
            ops.linear_joined(tokens, &self.attended, &layer.o_proj, &mut self.delta)?;
            ops.add_rms_norm(
                tokens,
                &mut self.residual,
                &self.delta,
                &layer.post_norm,
                eps,
                &mut self.normed,
            );
            ops.linear(tokens, &self.normed, &layer.gate_proj, Reduce::Whole, &mut self.gate);
            ops.linear(tokens, &self.normed, &layer.up_proj, Reduce::Whole, &mut self.up);
            ops.silu_mul(tokens, config.intermediate_size, &mut self.gate, &self.up);
            ops.linear_joined(tokens, &self.gate, &layer.down_proj, &mut self.delta)?;
        }
        Ok(())
    }

    /// The end of the step that was fed last: leaves the logits of `logit_tokens` (indices into its ids) on the part that
    /// samples. Not to be called after [`Self::all_hidden`], which changes what this reads.
    ///
    /// # Errors
    /// [`Stopped`] when another part of the model has failed.
    pub fn finish(
        &mut self,
        ops: &mut O,
        config: &ModelConfig,
        weights: &ModelWeights,
        logit_tokens: &[u32],
    ) -> Result<(), Stopped> {
        let (rows, eps, hidden) = (logit_tokens.len(), config.rms_norm_eps, config.hidden_size);
        if rows == 0 {
            return Ok(());
        }
        ops.gather(hidden, &self.residual, logit_tokens, &mut self.last_residual);
        ops.gather(hidden, &self.delta, logit_tokens, &mut self.last_delta);
        ops.add_rms_norm(
            rows,
            &mut self.last_residual,
            &self.last_delta,
            &weights.final_norm,
            eps,
            &mut self.hidden,
        );
        ops.logits(rows, &self.hidden, &self.lm_head, &mut self.logits)
    }
}
