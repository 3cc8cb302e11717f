//! The sizes of one shard, as kernels count them.
//!
//! A checked configuration bounds every width by 2^20 and the vocabulary by 2^24, so the casts here lose nothing and
//! products stay far from overflow in 64 bits.

use std::ops::Range;

use tokenrouter_kernels::cpu::PAGE_TOKENS;
use tokenrouter_kernels::cuda::{CudaError, HEAD_DIMS, STAT_TILE};

use crate::config::ModelConfig;
use crate::model::ModelOptions;
use crate::shard::{Shard, check_cuda};

/// Elements that every row of activations is padded to a multiple of; the padding is zero and stays so.
const ROW_STEP: u32 = 32;
/// Features of a tile of packed weights.
const TILE: u32 = 16;

/// A row of activations: its features and the distance of two rows, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Width {
    /// Features.
    pub(super) used: u32,
    /// Elements from one row to the next.
    pub(super) stride: u32,
}

impl Width {
    fn new(used: usize) -> Self {
        let used = used as u32;
        Self { used, stride: used.next_multiple_of(ROW_STEP) }
    }

    /// 32-blocks of a row, as the products count them.
    pub(super) fn blocks(self) -> u32 {
        self.stride / ROW_STEP
    }
}

/// Everything about a shard that the buffers and the launches depend on.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Which shard.
    pub(super) shard: Shard,
    /// Decoder layers.
    pub(super) layers: usize,
    /// The residual stream.
    pub(super) hidden: Width,
    /// Queries, keys and values of a token.
    pub(super) qkv: Width,
    /// Attended values of a token: the input of `o_proj`.
    pub(super) attended: Width,
    /// Gate and up of a token, interleaved by tiles of 16.
    pub(super) gate_up: Width,
    /// The input of `down_proj`.
    pub(super) inner: Width,
    /// Query heads of this shard.
    pub(super) q_heads: u32,
    /// KV heads of this shard.
    pub(super) kv_heads: u32,
    /// Elements of a head.
    pub(super) head_dim: u32,
    /// Columns of the logits, padding ids included.
    pub(super) vocab: u32,
    /// Ids from here on are masked.
    pub(super) real_vocab: u32,
    /// Elements of a row of logits.
    pub(super) vocab_stride: u32,
    /// Columns of the logits that this shard computes.
    pub(super) vocab_rows: Range<u32>,
    /// Elements of a row of this shard's logits: the same on every shard.
    pub(super) vocab_width: u32,
    /// Added to every mean square.
    pub(super) eps: f32,
    /// Of the scores, times log2 e.
    pub(super) scale: f32,
    /// Tokens of the longest request.
    pub(super) context: usize,
    /// Pages of a row of the block table.
    pub(super) table_stride: u32,
    /// Tokens of the largest step.
    pub(super) max_tokens: usize,
    /// Rows of the largest step; as many may want logits.
    pub(super) max_rows: usize,
}

impl Shape {
    /// # Errors
    /// [`CudaError::Shape`] in words: a head that no kernel has, a shard that does not divide.
    pub(super) fn new(config: &ModelConfig, options: &ModelOptions, shard: Shard) -> Result<Self, CudaError> {
        check_cuda(config, shard.count).map_err(|e| CudaError::Shape(e.to_string()))?;
        let head_dim = config.head_dim as u32;
        if !HEAD_DIMS.contains(&head_dim) {
            let what = format!("head_dim is {head_dim}; on CUDA heads of 16, 32, 64 or 128 elements run");
            return Err(CudaError::Shape(what));
        }
        if options.max_step_tokens == 0 || options.max_batch_rows == 0 || options.context_len == 0 {
            return Err(CudaError::Shape("a model of steps without tokens or rows".to_owned()));
        }
        if options.real_vocab == 0 || options.real_vocab > config.vocab_size {
            let what =
                format!("vocab_size is {}, the tokenizer has {} ids", config.vocab_size, options.real_vocab);
            return Err(CudaError::Shape(what));
        }
        let context = config.context_len(options.context_len);
        let rows = shard.cuda_vocab_rows(config);
        let inner = shard.intermediate(config).len();
        let (q, kv) = (shard.q_features(config).len(), shard.kv_features(config).len());
        let vocab = config.vocab_size as u32;
        Ok(Self {
            shard,
            layers: config.layers,
            hidden: Width::new(config.hidden_size),
            qkv: Width::new(q + 2 * kv),
            attended: Width::new(q),
            gate_up: Width::new(2 * inner.next_multiple_of(TILE as usize)),
            inner: Width::new(inner),
            q_heads: shard.q_heads(config).len() as u32,
            kv_heads: shard.kv_heads(config).len() as u32,
            head_dim,
            vocab,
            real_vocab: options.real_vocab as u32,
            vocab_stride: vocab.next_multiple_of(STAT_TILE),
            vocab_rows: rows.start as u32..rows.end as u32,
            vocab_width: shard.cuda_vocab_width(config) as u32,
            eps: config.rms_norm_eps,
            scale: config.attention_scale() * std::f32::consts::LOG2_E,
            context,
            table_stride: context.div_ceil(PAGE_TOKENS) as u32,
            max_tokens: options.max_step_tokens,
            max_rows: options.max_batch_rows.min(options.max_step_tokens),
        })
    }

    /// Elements of the cache for one page of one layer.
    pub(super) fn page_elements(&self) -> usize {
        2 * self.kv_heads as usize * PAGE_TOKENS * self.head_dim as usize
    }

    /// Tiles of statistics of one row of logits.
    pub(super) fn stat_tiles(&self) -> usize {
        self.vocab.div_ceil(STAT_TILE) as usize
    }
}
