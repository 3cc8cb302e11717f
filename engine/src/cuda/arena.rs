//! The activation buffers of a shard, sized once from the step limits, zeroed once, shared by all graphs of the model.
//!
//! Rows are padded to 32 elements; nobody writes the padding, so it stays zero, which the products rely on. What lies
//! behind the rows of a step is never read. Buffers are not shared between uses: every value has one name, and the
//! largest ones (logits, their copy for sampling, penalty counts) are all alive at the same time anyway.

use bytemuck::Pod;
use half::bf16;
use tokenrouter_kernels::cuda::{Buffer, CudaError, CudaStream, TileStats};

use super::attention::AttnLimits;
use super::context::RankContext;
use super::shape::Shape;

/// Buffers `[tokens][stride]`, and `[rows][..]` for the end.
pub(super) struct Arena {
    /// The residual stream.
    pub(super) h: Buffer<bf16>,
    /// The normed input of a product.
    pub(super) x: Buffer<bf16>,
    /// Queries, keys and values.
    pub(super) qkv: Buffer<bf16>,
    /// The input of `o_proj`.
    pub(super) attended: Buffer<bf16>,
    /// What is added to the residual stream.
    pub(super) delta: Buffer<bf16>,
    /// Gate and up.
    pub(super) gate_up: Buffer<bf16>,
    /// The input of `down_proj`.
    pub(super) inner: Buffer<bf16>,
    /// Partial results of attention.
    pub(super) partials: Buffer<f32>,
    /// Hidden states of the rows that want logits.
    pub(super) hidden: Buffer<bf16>,
    /// Their logits, `[rows][vocab_stride]`.
    pub(super) logits: Buffer<f32>,
    /// A copy that penalties change.
    pub(super) work: Buffer<f32>,
    /// `[rows][vocab]`, zero between launches.
    pub(super) counts: Buffer<u32>,
    /// `[rows][tiles]`.
    pub(super) stats: Buffer<TileStats>,
    /// Of tensor parallelism; `None` on a single rank.
    pub(super) exchange: Option<Exchange>,
}

/// What the ranks of a model exchange.
pub(super) struct Exchange {
    /// This rank's partial sums, `[tokens][hidden]` f32: the sums over both ranks afterwards, when there are two.
    pub(super) partial: Buffer<f32>,
    /// Those of all ranks above two, `[ranks][tokens][hidden]`.
    pub(super) partials: Option<Buffer<f32>>,
    /// This rank's logits, `[rows][vocab_width]`.
    pub(super) logits: Buffer<f32>,
    /// Those of all ranks.
    pub(super) all_logits: Buffer<f32>,
}

/// Allocates and counts.
struct Allocator<'a> {
    context: &'a RankContext,
    stream: &'a CudaStream,
    bytes: u64,
}

impl Allocator<'_> {
    fn buffer<T: Pod>(&mut self, rows: usize, width: usize) -> Result<Buffer<T>, CudaError> {
        let len = rows.saturating_mul(width);
        self.bytes = self.bytes.saturating_add((len as u64).saturating_mul(size_of::<T>() as u64));
        Buffer::zeroed(&self.context.device, self.stream, len)
    }
}

impl Arena {
    /// Allocates; returns the bytes too.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        context: &RankContext,
        stream: &CudaStream,
        shape: &Shape,
        attention: &AttnLimits,
    ) -> Result<(Self, u64), CudaError> {
        let mut a = Allocator { context, stream, bytes: 0 };
        let (tokens, rows) = (shape.max_tokens, shape.max_rows);
        let width = |w: super::shape::Width| w.stride as usize;
        let (vocab, stride) = (shape.vocab as usize, shape.vocab_stride as usize);
        let arena = Self {
            h: a.buffer(tokens, width(shape.hidden))?,
            x: a.buffer(tokens, width(shape.hidden))?,
            qkv: a.buffer(tokens, width(shape.qkv))?,
            attended: a.buffer(tokens, width(shape.attended))?,
            delta: a.buffer(tokens, width(shape.hidden))?,
            gate_up: a.buffer(tokens, width(shape.gate_up))?,
            inner: a.buffer(tokens, width(shape.inner))?,
            partials: a.buffer(1, attention.values())?,
            hidden: a.buffer(rows, width(shape.hidden))?,
            logits: a.buffer(rows, stride)?,
            work: a.buffer(rows, stride)?,
            counts: a.buffer(rows, vocab)?,
            stats: a.buffer(rows, shape.stat_tiles())?,
            exchange: if shape.shard.is_cut() { Some(Exchange::new(&mut a, shape)?) } else { None },
        };
        Ok((arena, a.bytes))
    }
}

impl Exchange {
    fn new(a: &mut Allocator<'_>, shape: &Shape) -> Result<Self, CudaError> {
        let (ranks, tokens, rows) = (shape.shard.count, shape.max_tokens, shape.max_rows);
        let (hidden, vocab) = (shape.hidden.stride as usize, shape.vocab_width as usize);
        Ok(Self {
            partial: a.buffer(tokens, hidden)?,
            partials: if ranks > 2 { Some(a.buffer(ranks * tokens, hidden)?) } else { None },
            logits: a.buffer(rows, vocab)?,
            all_logits: a.buffer(ranks * rows, vocab)?,
        })
    }
}
