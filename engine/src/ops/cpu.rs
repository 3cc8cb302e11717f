//! The decoder's operations on the CPU kernels.

use tokenrouter_kernels::cpu::{
    self, AttnArgs, Ctx, Isa, KvArena, KvLayout, QkvArgs, Reduce, RopeTable, StepTokens, WorkerGroup,
};

use super::{Ops, QkvLayer};
use crate::config::ModelConfig;
use crate::weights::{Linear, Tensor};

/// One model's threads, cache and position tables on the CPU.
pub struct CpuOps {
    isa: Isa,
    workers: WorkerGroup,
    kv: KvArena,
    rope: RopeTable,
    q_heads: usize,
    scale: f32,
    vocab: usize,
    real_vocab: usize,
}

impl CpuOps {
    /// Allocates the cache and the position tables for `context_len` positions.
    pub fn new(
        config: &ModelConfig,
        isa: Isa,
        workers: WorkerGroup,
        layout: KvLayout,
        context_len: usize,
        real_vocab: usize,
    ) -> Result<Self, String> {
        let kv = KvArena::new(layout).map_err(|e| e.to_string())?;
        let inv_freq = config.rope.inv_freq(config.head_dim);
        let rope = RopeTable::new(&inv_freq, config.rope.attention_factor(), context_len);
        let (q_heads, scale, vocab) = (config.q_heads, config.attention_scale(), config.vocab_size);
        Ok(Self { isa, workers, kv, rope, q_heads, scale, vocab, real_vocab: real_vocab.min(vocab) })
    }

    /// The cache, for tests that poison or read pages.
    pub fn kv_mut(&mut self) -> &mut KvArena {
        &mut self.kv
    }

    fn ctx(&self) -> Ctx<'_> {
        Ctx { isa: self.isa, workers: &self.workers }
    }
}

impl Ops for CpuOps {
    type Buffer = Vec<f32>;

    fn buffer(&self, len: usize) -> Vec<f32> {
        vec![0.0; len]
    }

    fn embed(&mut self, table: &Tensor, ids: &[u32], out: &mut Vec<f32>) {
        let used = ids.len() * table.cols();
        cpu::embed(self.ctx(), table.view(), ids, &mut out[..used]);
    }

    fn rms_norm(&mut self, rows: usize, x: &Vec<f32>, weight: &Tensor, eps: f32, out: &mut Vec<f32>) {
        let used = rows * weight.cols();
        cpu::rms_norm(self.ctx(), &x[..used], weight.view(), eps, &mut out[..used]);
    }

    fn add_rms_norm(
        &mut self,
        rows: usize,
        residual: &mut Vec<f32>,
        delta: &Vec<f32>,
        weight: &Tensor,
        eps: f32,
        out: &mut Vec<f32>,
    ) {
        let used = rows * weight.cols();
        let (residual, out) = (&mut residual[..used], &mut out[..used]);
        cpu::add_rms_norm(self.ctx(), residual, &delta[..used], weight.view(), eps, out);
    }

    fn linear(&mut self, rows: usize, x: &Vec<f32>, layer: &Linear, reduce: Reduce, out: &mut Vec<f32>) {
        let weight = layer.weight.view();
        let bias = layer.bias.as_ref().map(Tensor::view);
        let (x, out) = (&x[..rows * layer.weight.cols()], &mut out[..rows * layer.weight.rows()]);
        cpu::linear(self.ctx(), x, weight, bias, reduce, out);
    }

    fn qk_norm_rope_kv(
        &mut self,
        step: &StepTokens<'_>,
        layer: QkvLayer<'_>,
        q: &mut Vec<f32>,
        k: &mut Vec<f32>,
        v: &Vec<f32>,
    ) {
        let tokens = step.positions.len();
        let layout = self.kv.layout();
        let (q_width, kv_width) = (self.q_heads * layout.head_dim, layout.kv_heads * layout.head_dim);
        let args = QkvArgs {
            q: &mut q[..tokens * q_width],
            k: &mut k[..tokens * kv_width],
            v: &v[..tokens * kv_width],
            q_norm: layer.qk_norm.map(|(q, _)| q.view()),
            k_norm: layer.qk_norm.map(|(_, k)| k.view()),
            eps: layer.eps,
            rope: &self.rope,
            tokens: step,
            layer: layer.layer,
        };
        let ctx = Ctx { isa: self.isa, workers: &self.workers };
        cpu::qk_norm_rope_kv(ctx, args, &mut self.kv);
    }

    fn attention(&mut self, step: &StepTokens<'_>, layer: usize, q: &Vec<f32>, out: &mut Vec<f32>) {
        let used = step.positions.len() * self.q_heads * self.kv.layout().head_dim;
        let (q_heads, scale) = (self.q_heads, self.scale);
        let args = AttnArgs { q: &q[..used], tokens: step, layer, q_heads, scale, kv: &self.kv };
        cpu::attention(self.ctx(), args, &mut out[..used]);
    }

    fn silu_mul(&mut self, rows: usize, cols: usize, gate: &mut Vec<f32>, up: &Vec<f32>) {
        let used = rows * cols;
        cpu::silu_mul(self.ctx(), &mut gate[..used], &up[..used]);
    }

    fn gather(&mut self, cols: usize, x: &Vec<f32>, index: &[u32], out: &mut Vec<f32>) {
        for (row, from) in out.chunks_exact_mut(cols).zip(index) {
            let start = *from as usize * cols;
            row.copy_from_slice(&x[start..start + cols]);
        }
    }

    fn mask_padding(&mut self, rows: usize, logits: &mut Vec<f32>) {
        cpu::mask_padding(&mut logits[..rows * self.vocab], self.vocab, self.real_vocab);
    }
}
