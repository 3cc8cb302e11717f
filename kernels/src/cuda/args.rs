//! The argument of each kernel: one structure, by value, laid out as in the kernel's file under `kernels/cuda`.
//!
//! What the fields mean, and the shapes, is said there. Names are the same, and `T` and `R`, the tokens and the
//! logit rows of a step, are read from the device (`rows`).

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::ptr::Ptr;

/// Declares argument structures with public fields.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }
        )*
    };
}
pub(super) use arguments;

arguments! {
    /// `pack.cu`: rows to tiles of a packed weight.
    PackArgs {
        /// Rows `[n][k]` of `kind`.
        src: Ptr<u8>,
        /// Packed tiles, [`packed_len`](super::packed_len) elements in all.
        dst: Ptr<bf16>,
        /// Rows.
        n: u32,
        /// Columns.
        k: u32,
        /// Where tile 0 goes.
        first_tile: u32,
        /// Distance of the tiles in `dst`.
        tile_step: u32,
        /// 0 bf16, 1 f16, 2 f32.
        kind: u32,
    }

    /// `embed.cu`: rows of a packed table.
    EmbedArgs {
        /// Packed table.
        table: Ptr<bf16>,
        /// `[T]`.
        ids: Ptr<u32>,
        /// `[T][stride]`.
        h: Ptr<bf16>,
        /// T.
        rows: Ptr<u32>,
        /// Set to 1 by an id beyond the table.
        fault: Ptr<u32>,
        /// Rows of the table.
        vocab: u32,
        /// 32-blocks of a row.
        kb: u32,
        /// Elements.
        stride: u32,
    }

    /// `norm.cu`: RMSNorm, after a residual addition or not.
    NormArgs {
        /// `[T][stride]`, changed when `store` is 1.
        h: Ptr<bf16>,
        /// `[T][stride]` or null.
        delta: Ptr<bf16>,
        /// `[width]`.
        weight: Ptr<bf16>,
        /// Rows to read, or null.
        index: Ptr<u32>,
        /// `[T][stride]`.
        out: Ptr<bf16>,
        /// T.
        rows: Ptr<u32>,
        /// Features.
        width: u32,
        /// Elements, a multiple of 32.
        stride: u32,
        /// Added to the mean square.
        eps: f32,
        /// 1: h = h + delta.
        store: u32,
    }

    /// `linear.cu`.
    LinearArgs {
        /// Packed weight.
        w: Ptr<bf16>,
        /// `[T][x_stride]`.
        x: Ptr<bf16>,
        /// `[n]` or null.
        bias: Ptr<bf16>,
        /// `[T][y_stride]`, bf16 or f32.
        y: Ptr<u8>,
        /// T.
        rows: Ptr<u32>,
        /// Columns of y.
        n: u32,
        /// 32-blocks of K.
        kb: u32,
        /// Elements, a multiple of 32.
        x_stride: u32,
        /// Elements.
        y_stride: u32,
        /// 4, or 8 for o and down.
        slices: u32,
        /// 1: f32 logits.
        f32_out: u32,
        /// Logits from here on are minus infinity.
        n_real: u32,
    }

    /// `fold.cu`: the ranks' partial sums of a row-parallel layer to its output.
    FoldArgs {
        /// `[ranks][rank_step]`, of each rank `[T][stride]`.
        partials: Ptr<f32>,
        /// `[n]` or null.
        bias: Ptr<bf16>,
        /// `[T][stride]`.
        delta: Ptr<bf16>,
        /// T.
        rows: Ptr<u32>,
        /// 1 to 8.
        ranks: u32,
        /// Elements, a multiple of 4.
        rank_step: u32,
        /// Columns.
        n: u32,
        /// Elements, a multiple of 32.
        stride: u32,
    }

    /// `fold.cu`: the ranks' parts of the vocabulary to rows of logits.
    UnshardArgs {
        /// `[ranks][rank_step]`, of each rank `[R][width]`.
        shards: Ptr<f32>,
        /// `[R][stride]`.
        logits: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// Elements, a multiple of 4.
        rank_step: u32,
        /// Columns of a rank, a multiple of 4.
        width: u32,
        /// Columns that exist.
        n: u32,
        /// Logits from here on are minus infinity.
        n_real: u32,
        /// Elements, a multiple of 4.
        stride: u32,
    }

    /// `qkv.cu`: norm and rotation of heads, cache write.
    QkvArgs {
        /// `[T][stride]`: q, k, v.
        qkv: Ptr<bf16>,
        /// One layer of the cache.
        kv: Ptr<bf16>,
        /// `[HD]` or null.
        q_norm: Ptr<bf16>,
        /// `[HD]` or null.
        k_norm: Ptr<bf16>,
        /// `[positions][2][HD / 2]`.
        rope: Ptr<f32>,
        /// `[T]`.
        positions: Ptr<u32>,
        /// `[T]`.
        token_row: Ptr<u32>,
        /// `[rows][table_stride]` of pages.
        tables: Ptr<u32>,
        /// T.
        rows: Ptr<u32>,
        /// Query heads.
        q_heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Elements of a row of `qkv`.
        stride: u32,
        /// Pages of a row of `tables`.
        table_stride: u32,
        /// Added to the mean square.
        eps: f32,
    }

    /// `attention.cu` and `attention_merge.cu`.
    AttnArgs {
        /// `[T][q_stride]`.
        q: Ptr<bf16>,
        /// One layer of the cache.
        kv: Ptr<bf16>,
        /// `[rows + 1]`.
        row: Ptr<AttnRow>,
        /// `[rows][table_stride]` of pages.
        tables: Ptr<u32>,
        /// `[T]`.
        token_row: Ptr<u32>,
        /// [`AttnPlan::partials`](super::AttnPlan::partials) values.
        partials: Ptr<f32>,
        /// `[T][out_stride]`.
        out: Ptr<bf16>,
        /// Rows of the step.
        rows: Ptr<u32>,
        /// T.
        tokens: Ptr<u32>,
        /// Query heads.
        q_heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Elements.
        q_stride: u32,
        /// Elements.
        out_stride: u32,
        /// Pages of a row of `tables`.
        table_stride: u32,
        /// Of the scores, times log2 e.
        scale: f32,
    }

    /// `silu.cu`.
    SiluArgs {
        /// `[T][x_stride]`, gate and up interleaved by tiles of 16.
        x: Ptr<bf16>,
        /// `[T][y_stride]`.
        y: Ptr<bf16>,
        /// T.
        rows: Ptr<u32>,
        /// Features.
        width: u32,
        /// Elements.
        x_stride: u32,
        /// Elements, a multiple of 32.
        y_stride: u32,
    }

    /// `stats.cu`: first pass over the logits.
    StatsArgs {
        /// `[R][stride]`.
        logits: Ptr<f32>,
        /// `[R][ceil(vocab / 128)]`.
        tiles: Ptr<TileStats>,
        /// R.
        rows: Ptr<u32>,
        /// Columns that count.
        vocab: u32,
        /// Elements.
        stride: u32,
    }

    /// `signals.cu`: second pass.
    SignalArgs {
        /// `[R][stride]`.
        logits: Ptr<f32>,
        /// From the first pass; used up.
        tiles: Ptr<TileStats>,
        /// `[R]`.
        signals: Ptr<RowSignals>,
        /// `[R][top]`.
        top_ids: Ptr<u32>,
        /// `[R][top]`.
        top_logits: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// Largest logits wanted, at most `top`.
        wanted: Ptr<u32>,
        /// Columns that count.
        vocab: u32,
        /// Elements.
        stride: u32,
        /// Room for largest logits, 2 to 128.
        top: u32,
    }

    /// `named.cu`.
    NamedArgs {
        /// `[R][stride]`.
        logits: Ptr<f32>,
        /// `[R]`.
        ids: Ptr<u32>,
        /// `[R]`.
        out: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// Columns that count.
        vocab: u32,
        /// Elements.
        stride: u32,
    }

    /// `sample.cu`.
    SampleArgs {
        /// `[R][stride]`.
        logits: Ptr<f32>,
        /// `[R][stride]`.
        work: Ptr<f32>,
        /// `[R][vocab]`, zero before the first launch.
        counts: Ptr<u32>,
        /// `[R]`.
        draws: Ptr<RowSample>,
        /// Ids of all rows' biases.
        bias_ids: Ptr<u32>,
        /// Their values.
        bias_values: Ptr<f32>,
        /// Forbidden ids of all rows.
        forbidden_ids: Ptr<u32>,
        /// Prompt and output of all rows.
        history_ids: Ptr<u32>,
        /// `[R]`.
        token: Ptr<u32>,
        /// `[R]`: 1 where the logits allow no draw.
        fault: Ptr<u32>,
        /// `[R]`: the token's raw logit.
        logit: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// Columns that count.
        vocab: u32,
        /// Elements.
        stride: u32,
    }
}

/// One row of an attention step, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AttnRow {
    /// Its first token in the step.
    pub first: u32,
    /// Tokens fed.
    pub tokens: u32,
    /// Position of the first one.
    pub start: u32,
    /// Work items of all rows before it.
    pub item: u32,
    /// Partial rows of all rows before it.
    pub part: u32,
}

/// Statistics of 128 logits, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct TileStats {
    /// Rank key of the largest logit.
    pub key: u64,
    /// Sum of `exp(x - m)`.
    pub s: f32,
    /// Sum of `(x - m) exp(x - m)`.
    pub u: f32,
}

/// What routers want to know about a row, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RowSignals {
    /// `ln(sum(exp(logits)))`.
    pub lse: f32,
    /// Entropy of the softmax in nats.
    pub entropy: f32,
    /// Probability of the best token less that of the second.
    pub margin: f32,
    /// The largest logit.
    pub max: f32,
    /// Its lowest id.
    pub argmax: u32,
    /// Entries of the lists of largest logits that count.
    pub top_len: u32,
}

/// How one row is drawn, in device memory. Ranges name parts of the shared lists.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RowSample {
    /// Seed of the request.
    pub seed: u64,
    /// Choice of the request.
    pub choice: u32,
    /// Position of the token that is drawn.
    pub position: u32,
    /// `purpose << 16 | model`.
    pub tag: u32,
    /// As in [`SamplingParams`](crate::sampling::SamplingParams), like the next six.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 and above keep all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 is neutral.
    pub repetition: f32,
    /// 0 is neutral.
    pub presence: f32,
    /// 0 is neutral.
    pub frequency: f32,
    /// First entry of the biases.
    pub bias: u32,
    /// How many.
    pub bias_len: u32,
    /// First entry of the forbidden ids.
    pub forbidden: u32,
    /// How many.
    pub forbidden_len: u32,
    /// First entry of the history.
    pub history: u32,
    /// How many.
    pub history_len: u32,
    /// How much of it is prompt.
    pub prompt_len: u32,
    /// Nothing.
    pub spare: u32,
}

impl RowSample {
    /// A draw without lists; `key` names the random number.
    pub fn new(params: &crate::sampling::SamplingParams, key: &crate::rng::DrawKey) -> Self {
        Self {
            seed: key.seed,
            choice: key.choice,
            position: key.position,
            tag: (key.purpose as u32) << 16 | (key.model & 0xffff),
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            ..Self::default()
        }
    }
}
