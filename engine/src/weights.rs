//! Memory-mapped weights, every one checked by name, shape and type before a model is built.
//!
//! What counts as the output matrix (bug-log L06), as the model classes do it:
//!
//! | `tie_word_embeddings` | `lm_head.weight` in the files | result |
//! | --- | --- | --- |
//! | true | no | the embedding is shared |
//! | true | yes | the embedding is shared, the tensor ignored with a warning |
//! | false | yes | the tensor is used |
//! | false | no | refused, naming flag and tensor |
//! | absent (the classes default to false) | yes | the tensor is used |
//! | absent | no | the embedding is shared: nothing else could be meant |
//!
//! Tensors that nobody asked for: old `rotary_emb.inv_freq` buffers are ignored (they follow from the
//! configuration). Others are refused when they belong to what we compute (under `model.` or
//! `lm_head.`), because a bias or a norm left out is another model; the rest is ignored with a warning.

mod files;
mod int8;
mod layout;
mod map;
mod slice;

use std::path::Path;

pub(crate) use int8::check_int8;
pub use int8::{Int8, WeightForm};
pub(crate) use map::MappedFile;
pub use map::Tensor;

use tokenrouter_kernels::cpu::Matrix;

use crate::config::ModelConfig;
use crate::error::LoadError;

/// The weights of one decoder layer. Matrices are `[out, in]`, as stored.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// RMS norm before attention, `[hidden]`.
    pub input_norm: Tensor,
    /// Query projection, `[q_heads * head_dim, hidden]`.
    pub q_proj: Linear,
    /// Key projection, `[kv_heads * head_dim, hidden]`.
    pub k_proj: Linear,
    /// Value projection, `[kv_heads * head_dim, hidden]`.
    pub v_proj: Linear,
    /// Norms of queries and keys per head, each `[head_dim]` (Qwen3 only).
    pub qk_norm: Option<(Tensor, Tensor)>,
    /// Output projection, `[hidden, q_heads * head_dim]`.
    pub o_proj: Linear,
    /// RMS norm before the feed-forward layer, `[hidden]`.
    pub post_norm: Tensor,
    /// Gate projection, `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// Up projection, `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// Down projection, `[hidden, intermediate]`.
    pub down_proj: Linear,
}

/// A matrix and its bias.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`, as stored. When there is an 8-bit form, products do not read it, and of a layer that is cut by inputs
    /// it is the whole one.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// What products read instead of `weight`.
    pub int8: Option<Int8>,
}

/// Weight and bias of a LayerNorm (router heads; the decoders have RMS norms without a bias).
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[width]`.
    pub weight: Tensor,
    /// `[width]`.
    pub bias: Tensor,
}

/// Everything a model computes with. Cheap to clone: tensors are places in shared maps.
#[derive(Clone, Debug)]
pub struct ModelWeights {
    /// Embedding table, `[vocab, hidden]`.
    pub embed: Tensor,
    /// One entry per decoder layer.
    pub layers: Vec<LayerWeights>,
    /// RMS norm before the output matrix, `[hidden]`.
    pub final_norm: Tensor,
    /// Output matrix, `[vocab, hidden]`, without a bias: the embedding itself when tied.
    pub lm_head: Linear,
    /// Whether the weight of `lm_head` is the embedding.
    pub tied: bool,
}

impl ModelWeights {
    /// Opens the safetensors files of `dir` and finds every tensor that `config` asks for.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and tensor: missing, doubled, unexpected, wrong in shape or type;
    /// a file that is missing, empty, truncated, or whose header lies.
    pub fn open(dir: &Path, config: &ModelConfig) -> Result<Self, LoadError> {
        layout::build(files::Checkpoint::open(dir)?, config)
    }

    /// Bytes of all weights in the files, a shared matrix counted once.
    pub fn bytes(&self) -> u64 {
        let mut sum = self.embed.bytes() + self.final_norm.bytes();
        if !self.tied {
            sum += self.lm_head.bytes();
        }
        sum + self.layers.iter().map(LayerWeights::bytes).sum::<u64>()
    }
}

impl Linear {
    /// A layer as it is stored.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, int8: None }
    }

    /// What products read.
    pub fn matrix(&self) -> Matrix<'_> {
        match &self.int8 {
            Some(int8) => int8.view().into(),
            None => self.weight.view().into(),
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.int8.as_ref().map_or_else(|| self.weight.rows(), Int8::rows)
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.int8.as_ref().map_or_else(|| self.weight.cols(), Int8::cols)
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.weight.bytes() + self.bias.as_ref().map_or(0, Tensor::bytes)
    }
}

impl Norm {
    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.weight.bytes() + self.bias.bytes()
    }
}

impl LayerWeights {
    fn linears(&self) -> [&Linear; 7] {
        let Self { q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, .. } = self;
        [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]
    }

    fn bytes(&self) -> u64 {
        let linears: u64 = self.linears().iter().map(|l| l.bytes()).sum();
        let qk: u64 = self.qk_norm.iter().map(|(q, k)| q.bytes() + k.bytes()).sum();
        linears + qk + self.input_norm.bytes() + self.post_norm.bytes()
    }
}
