//! The launches of one decoder layer.

use half::bf16;
use tokenrouter_kernels::cuda::{
    AttnArgs, Communicator, CudaError, FoldArgs, LinearArgs, Ptr, QkvArgs, SiluArgs,
};

use super::arena::Exchange;
use super::block::{ENTRY_WORDS, Plan, WAVE_WORDS, at, row_at};
use super::forward::Forward;
use super::shape::Width;
use super::weights::Packed;

/// Slices of K of a product whose K is whole on every rank.
const SLICES: u32 = 4;
/// Of o and down on a single rank: two halves, as two ranks would hold them.
const SPLIT_SLICES: u32 = 8;

/// See [`Forward::run`] for what the callers of all of these promise.
impl Forward<'_> {
    /// Norm, q, k and v, rotation, cache write, attention, output projection.
    pub(super) unsafe fn attend(&self, plan: &Plan<'_>, layer: usize) -> Result<(), CudaError> {
        let weights = &self.weights.layers[layer];
        let (shape, arena) = (self.shape, self.arena);
        let kv = self.cache.base.add(layer * self.cache.layer);
        // SAFETY: the caller's promise.
        unsafe {
            self.norm(plan, weights.input_norm.ptr(), layer == 0)?;
            self.product(plan, &weights.qkv, (arena.x.ptr(), shape.hidden), (arena.qkv.ptr(), shape.qkv))?;
            self.rotate(plan, layer, kv)?;
            for (index, _) in plan.waves.iter().enumerate() {
                self.attend_wave(plan, index, kv)?;
            }
            self.join(plan, &weights.o, arena.attended.ptr(), shape.attended)
        }
    }

    /// Norm, gate and up, their product, down projection.
    pub(super) unsafe fn feed_forward(&self, plan: &Plan<'_>, layer: usize) -> Result<(), CudaError> {
        let weights = &self.weights.layers[layer];
        let (shape, arena) = (self.shape, self.arena);
        let silu = SiluArgs {
            x: arena.gate_up.ptr(),
            y: arena.inner.ptr(),
            rows: self.tokens(),
            width: shape.inner.used,
            x_stride: shape.gate_up.stride,
            y_stride: shape.inner.stride,
        };
        let gate_up = (arena.gate_up.ptr(), shape.gate_up);
        // SAFETY: the caller's promise.
        unsafe {
            self.norm(plan, weights.post_norm.ptr(), false)?;
            self.product(plan, &weights.gate_up, (arena.x.ptr(), shape.hidden), gate_up)?;
            self.context.kernels.silu_mul(self.stream, plan.tokens, &silu)?;
            self.join(plan, &weights.down, arena.inner.ptr(), shape.inner)
        }
    }

    /// `to = from * weight^T + bias`, rounded once.
    unsafe fn product(
        &self,
        plan: &Plan<'_>,
        packed: &Packed,
        (from, k): (Ptr<bf16>, Width),
        (to, n): (Ptr<bf16>, Width),
    ) -> Result<(), CudaError> {
        let args = LinearArgs { bias: packed.bias(), y: to.cast(), ..self.linear_args(packed, (from, k), n) };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.linear(self.stream, plan.tokens, &args) }
    }

    /// A product without output and bias.
    pub(super) fn linear_args(&self, packed: &Packed, (from, k): (Ptr<bf16>, Width), n: Width) -> LinearArgs {
        LinearArgs {
            w: packed.weight.ptr(),
            x: from,
            bias: Ptr::NULL,
            y: Ptr::NULL,
            rows: self.tokens(),
            n: n.used,
            kb: k.blocks(),
            x_stride: k.stride,
            y_stride: n.stride,
            slices: SLICES,
            f32_out: 0,
            n_real: n.used,
        }
    }

    unsafe fn rotate(&self, plan: &Plan<'_>, layer: usize, kv: Ptr<bf16>) -> Result<(), CudaError> {
        let norms = self.weights.layers[layer].qk_norm.as_ref();
        let args = QkvArgs {
            qkv: self.arena.qkv.ptr(),
            kv,
            q_norm: norms.map_or(Ptr::NULL, |(q, _)| q.ptr()),
            k_norm: norms.map_or(Ptr::NULL, |(_, k)| k.ptr()),
            rope: self.weights.rope.ptr(),
            positions: at(self.block, plan.front.positions),
            token_row: at(self.block, plan.front.token_row),
            tables: at(self.block, self.map.tables),
            rows: self.tokens(),
            q_heads: self.shape.q_heads,
            kv_heads: self.shape.kv_heads,
            stride: self.shape.qkv.stride,
            table_stride: self.shape.table_stride,
            eps: self.shape.eps,
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.qkv(self.stream, plan.tokens, self.shape.head_dim, &args) }
    }

    /// Attention of one run of tokens, whose entries count tokens and rows from its own first ones.
    unsafe fn attend_wave(&self, plan: &Plan<'_>, index: usize, kv: Ptr<bf16>) -> Result<(), CudaError> {
        let (shape, front, wave) = (self.shape, &plan.front, &plan.waves[index]);
        let counts = front.waves + index * WAVE_WORDS;
        let (first, row) = (wave.first_token as usize, wave.first_row as usize);
        let args = AttnArgs {
            q: row_at(self.arena.qkv.ptr(), wave.first_token, shape.qkv.stride),
            kv,
            row: at(self.block, front.entries + wave.entry as usize * ENTRY_WORDS),
            tables: at(self.block, self.map.tables + row * self.map.table_stride),
            token_row: at(self.block, front.wave_row + first),
            partials: self.arena.partials.ptr(),
            out: row_at(self.arena.attended.ptr(), wave.first_token, shape.attended.stride),
            rows: at(self.block, counts),
            tokens: at(self.block, counts + 1),
            q_heads: shape.q_heads,
            kv_heads: shape.kv_heads,
            q_stride: shape.qkv.stride,
            out_stride: shape.attended.stride,
            table_stride: shape.table_stride,
            scale: shape.scale,
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.attention(self.stream, wave.tokens, wave.items, shape.head_dim, &args) }
    }

    /// The products whose inputs are cut over the ranks: o and down. `delta` is their sum plus the bias.
    unsafe fn join(
        &self,
        plan: &Plan<'_>,
        packed: &Packed,
        from: Ptr<bf16>,
        k: Width,
    ) -> Result<(), CudaError> {
        let args = self.linear_args(packed, (from, k), self.shape.hidden);
        if let (Some(exchange), Some(comm)) = (&self.arena.exchange, self.comm) {
            // SAFETY: the caller's promise.
            return unsafe { self.join_ranks(plan, packed, exchange, comm, args) };
        }
        let args = LinearArgs {
            bias: packed.bias(),
            y: self.arena.delta.ptr().cast(),
            slices: SPLIT_SLICES,
            ..args
        };
        // SAFETY: the caller's promise.
        unsafe { self.context.kernels.linear(self.stream, plan.tokens, &args) }
    }

    /// The same with a part of K on each rank. Two ranks' sums commute, so that any all-reduce gives the bits of one rank;
    /// those of more are gathered and added in rank order.
    unsafe fn join_ranks(
        &self,
        plan: &Plan<'_>,
        packed: &Packed,
        exchange: &Exchange,
        comm: &Communicator,
        args: LinearArgs,
    ) -> Result<(), CudaError> {
        let (hidden, stream) = (self.shape.hidden, self.stream);
        let (part, count) = (exchange.partial.ptr(), plan.tokens as usize * hidden.stride as usize);
        let args = LinearArgs { y: part.cast(), f32_out: 1, ..args };
        let mut fold = FoldArgs {
            partials: part,
            bias: packed.bias(),
            delta: self.arena.delta.ptr(),
            rows: self.tokens(),
            ranks: 1,
            rank_step: count as u32,
            n: hidden.used,
            stride: hidden.stride,
        };
        // SAFETY: the caller's promise; all ranks queue the same steps in the same order.
        unsafe {
            self.context.kernels.linear(stream, plan.tokens, &args)?;
            if let Some(all) = &exchange.partials {
                comm.all_gather_f32(stream, part, all.ptr(), count)?;
                (fold.partials, fold.ranks) = (all.ptr(), self.shape.shard.count as u32);
            } else {
                comm.all_reduce_sum_f32(stream, part, count)?;
            }
            self.context.kernels.fold_ranks(stream, plan.tokens, &fold)
        }
    }
}
