//! The decoder's operations on the CPU kernels.

use std::ops::Range;

use tokenrouter_kernels::cpu::math::{exp, silu};
use tokenrouter_kernels::cpu::{
    self, AttnArgs, Ctx, Isa, KvArena, KvLayout, PAGE_TOKENS, QkvArgs, Reduce, RopeTable, StepTokens,
    WorkerGroup,
};
use tokenrouter_kernels::top::top_values;

use super::{Ops, QkvLayer};
use crate::comm::{Seat, Stopped};
use crate::config::ModelConfig;
use crate::shard::Shard;
use crate::weights::{Linear, Norm, Tensor};

/// One part of a model, or a whole one, on the CPU: its threads, cache, position tables and its seat among the parts.
pub struct CpuOps {
    isa: Isa,
    workers: WorkerGroup,
    kv: KvArena,
    rope: RopeTable,
    q_heads: usize,
    scale: f32,
    vocab: usize,
    real_vocab: usize,
    /// None when the model is whole.
    seat: Option<Seat>,
    /// The logits that each part computes.
    logit_ids: Vec<Range<usize>>,
}

impl CpuOps {
    /// Allocates the cache and the position tables for `context_len` positions. `config` is of the part (see
    /// [`Shard::local_config`]).
    pub fn new(
        config: &ModelConfig,
        isa: Isa,
        workers: WorkerGroup,
        layout: KvLayout,
        context_len: usize,
        real_vocab: usize,
        seat: Option<Seat>,
    ) -> Result<Self, String> {
        let kv = KvArena::new(layout).map_err(|e| e.to_string())?;
        let inv_freq = config.rope.inv_freq(config.head_dim);
        let rope = RopeTable::new(&inv_freq, config.rope.attention_factor(), context_len);
        let (q_heads, scale, vocab) = (config.q_heads, config.attention_scale(), config.vocab_size);
        let parts = seat.as_ref().map_or(1, |seat| seat.shard().count);
        let logit_ids = Shard::all(parts).map(|shard| shard.vocab_rows(config)).collect();
        let real_vocab = real_vocab.min(vocab);
        Ok(Self { isa, workers, kv, rope, q_heads, scale, vocab, real_vocab, seat, logit_ids })
    }

    /// Its threads.
    pub(crate) fn workers(&self) -> &WorkerGroup {
        &self.workers
    }

    /// The cache, for tests that poison or read pages.
    pub fn kv_mut(&mut self) -> &mut KvArena {
        &mut self.kv
    }

    /// A step begins; numbers ascend from 1.
    pub(crate) fn begin(&mut self, step: u64) {
        if let Some(seat) = &mut self.seat {
            seat.begin(step);
        }
    }

    /// Where its kernels run.
    pub(crate) fn ctx(&self) -> Ctx<'_> {
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
        let bias = layer.bias.as_ref().map(Tensor::view);
        let (x, out) = (&x[..rows * layer.cols()], &mut out[..rows * layer.rows()]);
        cpu::linear(self.ctx(), x, layer.matrix(), bias, reduce, out);
    }

    fn linear_joined(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        layer: &Linear,
        out: &mut Vec<f32>,
    ) -> Result<(), Stopped> {
        let ctx = Ctx { isa: self.isa, workers: &self.workers };
        let (weight, n) = (layer.matrix(), layer.rows());
        let bias = layer.bias.as_ref().map(Tensor::view);
        let (x, out) = (&x[..rows * weight.cols()], &mut out[..rows * n]);
        let Some(seat) = &mut self.seat else {
            cpu::linear(ctx, x, weight, bias, Reduce::Segments4, out);
            return Ok(());
        };
        let reduce = Reduce::of_rank(seat.shard().count);
        seat.exchange(
            |partial| cpu::linear(ctx, x, weight, None, reduce, &mut partial[..rows * n]),
            |parts| cpu::fold(ctx, parts, bias, n, out),
        )
    }

    fn logits(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        lm_head: &Linear,
        out: &mut Vec<f32>,
    ) -> Result<(), Stopped> {
        let ctx = Ctx { isa: self.isa, workers: &self.workers };
        let weight = lm_head.matrix();
        let (x, ids) = (&x[..rows * weight.cols()], &self.logit_ids);
        match &mut self.seat {
            None => cpu::linear(ctx, x, weight, None, Reduce::Whole, &mut out[..rows * self.vocab]),
            Some(seat) => {
                let (samples, width) = (seat.shard().samples(), weight.rows());
                let product = |part: &mut [f32]| {
                    cpu::linear(ctx, x, weight, None, Reduce::Whole, &mut part[..rows * width]);
                };
                seat.exchange(product, |parts| {
                    if samples {
                        place_columns(parts, ids, &mut out[..rows * self.vocab]);
                    }
                })?;
                if !samples {
                    return Ok(());
                }
            }
        }
        cpu::mask_padding(&mut out[..rows * self.vocab], self.vocab, self.real_vocab);
        Ok(())
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

    fn top_values(&mut self, rows: usize, cols: usize, x: &Vec<f32>, k: usize, out: &mut Vec<f32>) {
        for (row, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(k)).take(rows) {
            top_values(self.isa, row, out);
        }
    }

    fn layer_norm(&mut self, rows: usize, x: &Vec<f32>, norm: &Norm, eps: f32, out: &mut Vec<f32>) {
        let used = rows * norm.weight.cols();
        let (weight, bias) = (norm.weight.view(), norm.bias.view());
        cpu::layer_norm(self.ctx(), &x[..used], weight, bias, eps, &mut out[..used]);
    }

    fn gelu(&mut self, len: usize, x: &mut Vec<f32>) {
        cpu::gelu(self.ctx(), &mut x[..len]);
    }

    fn relu(&mut self, len: usize, x: &mut Vec<f32>) {
        for x in &mut x[..len] {
            *x = if *x < 0.0 { 0.0 } else { *x };
        }
    }

    fn silu(&mut self, len: usize, x: &mut Vec<f32>) {
        for x in &mut x[..len] {
            *x = silu(*x);
        }
    }

    fn keep(&mut self, step: &StepTokens<'_>, cols: usize, x: &Vec<f32>, kept: &mut Vec<f32>) {
        let places = step.token_row.iter().zip(step.positions);
        for ((row, position), x) in places.zip(x.chunks_exact(cols)) {
            let at = place(step, *row as usize, *position as usize) * cols;
            kept[at..at + cols].copy_from_slice(x);
        }
    }

    fn mean_kept(
        &mut self,
        step: &StepTokens<'_>,
        row: usize,
        tokens: usize,
        cols: usize,
        kept: &Vec<f32>,
        at: usize,
        out: &mut Vec<f32>,
    ) {
        let out = &mut out[at * cols..(at + 1) * cols];
        // The sums of a block lie on the stack: 2 KiB, which the first-level cache keeps.
        const BLOCK: usize = 256;
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0.0f64; BLOCK];
            for position in 0..tokens {
                let from = place(step, row, position) * cols + block * BLOCK;
                for (sum, x) in sums.iter_mut().zip(&kept[from..from + out.len()]) {
                    *sum += f64::from(*x);
                }
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = (sum / tokens as f64) as f32;
            }
        }
    }

    fn add(&mut self, len: usize, x: &mut Vec<f32>, delta: &Vec<f32>) {
        for (x, d) in x[..len].iter_mut().zip(&delta[..len]) {
            *x += d;
        }
    }

    fn softmax(&mut self, rows: usize, cols: usize, x: &mut Vec<f32>) {
        for row in x.chunks_exact_mut(cols).take(rows) {
            softmax_row(row);
        }
    }

    fn place(
        &mut self,
        rows: usize,
        cols: usize,
        x: &Vec<f32>,
        out_cols: usize,
        at: usize,
        out: &mut Vec<f32>,
    ) {
        for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(out_cols)).take(rows) {
            out[at..at + cols].copy_from_slice(x);
        }
    }

    fn read(&self, x: &Vec<f32>, out: &mut [f32]) {
        out.copy_from_slice(&x[..out.len()]);
    }
}

/// Puts the columns `ids[i]` of all rows, which part `i` has computed, side by side.
fn place_columns(parts: &[&[f32]], ids: &[Range<usize>], out: &mut [f32]) {
    let cols = ids.last().map_or(0, |last| last.end).max(1);
    for (part, ids) in parts.iter().zip(ids) {
        for (out, part) in out.chunks_exact_mut(cols).zip(part.chunks_exact(ids.len())) {
            out[ids.clone()].copy_from_slice(part);
        }
    }
}

/// Where a position of a row stands in the cache, counted in positions.
fn place(step: &StepTokens<'_>, row: usize, position: usize) -> usize {
    let page = step.row_pages[step.row_page_start[row] as usize + position / PAGE_TOKENS];
    page as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

/// Order: the largest value, the exponentials of the differences, their sum in f64 in ascending order, one division
/// each.
pub(crate) fn softmax_row(row: &mut [f32]) {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max });
    let mut sum = 0.0f64;
    for x in row.iter_mut() {
        *x = exp(*x - max);
        sum += f64::from(*x);
    }
    let scale = sum as f32;
    for x in row {
        *x /= scale;
    }
}
