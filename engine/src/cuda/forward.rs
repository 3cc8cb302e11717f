//! One step as a list of launches: the order of `decoder.rs` in the kernels of `kernels/cuda`. The same list runs kernel
//! by kernel or is captured; all that varies from step to step is data in the step block.

use half::bf16;
use tokenrouter_kernels::cuda::{
    Communicator, CudaError, CudaStream, EmbedArgs, NormArgs, Pinned, Ptr, copy_to_host_async,
};

use super::arena::Arena;
use super::block::{BlockMap, Front, Plan, ResultMap, at};
use super::context::RankContext;
use super::shape::Shape;
use super::weights::Weights;
use crate::heads::cuda::CudaHeads;

/// The cache of a shard: `[layer][page][kv_head][K, V][16][HD]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    /// Of layer 0. Null while graphs are only measured: nothing runs then.
    pub(super) base: Ptr<bf16>,
    /// Elements of a layer.
    pub(super) layer: usize,
}

/// All that the launches name. Every pointer lives as long as the model.
pub(super) struct Forward<'a> {
    pub(super) context: &'a RankContext,
    pub(super) stream: &'a CudaStream,
    pub(super) shape: &'a Shape,
    pub(super) weights: &'a Weights,
    pub(super) arena: &'a Arena,
    pub(super) cache: Cache,
    /// The step block on the device, and where its parts lie.
    pub(super) block: Ptr<u32>,
    pub(super) map: &'a BlockMap,
    /// The results on the device and on the host.
    pub(super) results: Ptr<u32>,
    pub(super) results_host: &'a Pinned<u32>,
    /// Scores of prompts on the host, piece after piece of the layout of `score_map`.
    pub(super) scores_host: &'a Pinned<u32>,
    pub(super) score_map: &'a ResultMap,
    /// Router heads, on the shard that samples.
    pub(super) heads: Option<&'a CudaHeads>,
    /// What they say, on the host.
    pub(super) heads_host: &'a Pinned<f32>,
    /// To the other ranks of the model.
    pub(super) comm: Option<&'a Communicator>,
}

impl Forward<'_> {
    /// Queues a whole step.
    ///
    /// # Errors
    /// What the driver says, naming the kernel.
    ///
    /// # Safety
    /// The step block holds (or, at every replay, will hold) a checked step of `plan`'s layout. Until the stream has run
    /// it the model lives, and the host leaves the results alone.
    pub(super) unsafe fn run(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        // SAFETY: every pointer below is a buffer of this model with room for the step limits, which the plan keeps
        // (`stage.rs` checks the step); strides and widths are those that the buffers were made with.
        unsafe {
            self.embed(plan)?;
            for layer in 0..self.shape.layers {
                self.attend(plan, layer)?;
                self.feed_forward(plan, layer)?;
            }
            self.finish(plan)?;
            if !self.shape.shard.samples() {
                return Ok(());
            }
            if let Some(heads) = self.heads {
                copy_to_host_async(self.stream, self.heads_host, 0..heads.raw_len(), heads.raw())?;
            }
            copy_to_host_async(self.stream, self.results_host, 0..plan.results.len, self.results)
        }
    }

    /// The address of the number of tokens.
    pub(super) fn tokens(&self) -> Ptr<u32> {
        at(self.block, Front::TOKENS)
    }

    /// The address of the number of rows that want logits.
    pub(super) fn rows(&self) -> Ptr<u32> {
        at(self.block, Front::ROWS)
    }

    unsafe fn embed(&self, plan: &Plan<'_>) -> Result<(), CudaError> {
        let hidden = self.shape.hidden;
        let args = EmbedArgs {
            table: self.weights.embed.ptr(),
            ids: at(self.block, plan.front.ids),
            h: self.arena.h.ptr(),
            rows: self.tokens(),
            fault: at(self.results, ResultMap::EMBED_FAULT),
            vocab: self.shape.vocab,
            kb: hidden.blocks(),
            stride: hidden.stride,
        };
        // SAFETY: see `run`.
        unsafe { self.context.kernels.embed(self.stream, plan.tokens, &args) }
    }

    /// `x = norm(h + delta)` and `h = h + delta`, or without a delta in front of the first layer.
    pub(super) unsafe fn norm(
        &self,
        plan: &Plan<'_>,
        weight: Ptr<bf16>,
        first: bool,
    ) -> Result<(), CudaError> {
        let args = NormArgs {
            delta: if first { Ptr::NULL } else { self.arena.delta.ptr() },
            store: u32::from(!first),
            ..self.norm_args(weight)
        };
        // SAFETY: see `run`.
        unsafe { self.context.kernels.rms_norm(self.stream, plan.tokens, &args) }
    }

    /// A norm of all tokens into `x`, nothing stored.
    pub(super) fn norm_args(&self, weight: Ptr<bf16>) -> NormArgs {
        NormArgs {
            h: self.arena.h.ptr(),
            delta: self.arena.delta.ptr(),
            weight,
            index: Ptr::NULL,
            out: self.arena.x.ptr(),
            rows: self.tokens(),
            width: self.shape.hidden.used,
            stride: self.shape.hidden.stride,
            eps: self.shape.eps,
            store: 0,
        }
    }
}
