//! `config.json` to a checked type. What the engine computes is written here in full; anything that
//! would change the mathematics and is not supported is refused with the file and field named.

mod eos;
mod fields;
mod refuse;
mod rope;

use std::path::Path;

pub(crate) use fields::{Fields, read_object};
pub use rope::{RopeConfig, RopeScaling};

use crate::error::LoadError;

/// The decoder families that the engine computes. All are: RMS norm, grouped causal attention with
/// rotary positions, a SiLU-gated feed-forward layer, residual adds; they differ in biases and in the
/// norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `Qwen3ForCausalLM`: per-head norm of queries and keys; biases only with `attention_bias`.
    Qwen3,
    /// `Qwen2ForCausalLM` (also Qwen2.5): biases on q, k and v, always.
    Qwen2,
    /// `LlamaForCausalLM`: no biases unless `attention_bias` or `mlp_bias`.
    Llama,
}

impl Architecture {
    const ALL: [Self; 3] = [Self::Qwen3, Self::Qwen2, Self::Llama];

    /// The class name in the field `architectures`.
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }

    /// The name in the field `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen2 => "qwen2",
            Self::Llama => "llama",
        }
    }
}

/// Which linear layers carry a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// `q_proj`, `k_proj` and `v_proj`.
    pub qkv: bool,
    /// `o_proj`.
    pub output: bool,
    /// `gate_proj`, `up_proj` and `down_proj`.
    pub mlp: bool,
}

/// A checkpoint's shape and mathematics, checked. Sizes are counts of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The decoder family.
    pub architecture: Architecture,
    /// Rows of the embedding and of the logits, padding rows included.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; divides `q_heads`.
    pub kv_heads: usize,
    /// Width of one head, even. Not always `hidden_size / q_heads` (bug-log L08).
    pub head_dim: usize,
    /// The epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// The longest context, in tokens.
    pub max_position_embeddings: usize,
    /// `tie_word_embeddings` as written. All three classes default to untied; see
    /// [`crate::weights`] for what absence means beside the tensors that are there (bug-log L06).
    pub tie_word_embeddings: Option<bool>,
    /// Which linear layers carry a bias.
    pub biases: Biases,
    /// Whether queries and keys are normalised per head before rotation.
    pub qk_norm: bool,
    /// Rotary position settings.
    pub rope: RopeConfig,
    /// End-of-sequence ids declared by `config.json` and `generation_config.json`, sorted.
    pub eos_ids: Vec<u32>,
}

/// Bounds that no real checkpoint reaches; they keep every later product far from overflow.
const MAX_WIDTH: u64 = 1 << 20;
const MAX_VOCAB: u64 = 1 << 24;
const MAX_LAYERS: u64 = 4096;
const MAX_HEADS: u64 = 4096;
const MAX_HEAD_DIM: u64 = 1024;
const MAX_POSITIONS: u64 = 1 << 28;

impl ModelConfig {
    /// Reads and checks `config.json` (and `generation_config.json` when present) in `dir`.
    ///
    /// # Errors
    /// A [`LoadError`] that names file, field, value found and what would be right: for an unknown
    /// architecture, quantized weights, a sliding window in use, experts, unsupported RoPE or
    /// activation, and sizes that are missing, zero, absurd or do not divide.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join("config.json");
        let map = read_object(&file)?;
        let config = Fields::new(&file, &map);
        let architecture = architecture(&config)?;
        refuse::unsupported(&config)?;
        let layers = config.required_integer("num_hidden_layers", 1, MAX_LAYERS)?;
        let max_position_embeddings = config.required_integer("max_position_embeddings", 1, MAX_POSITIONS)?;
        refuse::sliding_window(&config, layers, max_position_embeddings)?;
        let vocab_size = config.required_integer("vocab_size", 1, MAX_VOCAB)?;
        let hidden_size = config.required_integer("hidden_size", 1, MAX_WIDTH)?;
        let (q_heads, kv_heads, head_dim) = heads(&config, hidden_size)?;
        Ok(Self {
            architecture,
            vocab_size,
            hidden_size,
            intermediate_size: config.required_integer("intermediate_size", 1, MAX_WIDTH)?,
            layers,
            q_heads,
            kv_heads,
            head_dim,
            rms_norm_eps: config.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            max_position_embeddings,
            tie_word_embeddings: config.flag("tie_word_embeddings")?,
            biases: biases(&config, architecture)?,
            qk_norm: architecture == Architecture::Qwen3,
            rope: RopeConfig::read(&config, max_position_embeddings)?,
            eos_ids: eos::eos_ids(dir, &config, vocab_size)?,
        })
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Softmax scale of the attention scores: `1 / sqrt(head_dim)`.
    pub fn attention_scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Tokens that a request may hold: the model's limit, cut to `wanted`.
    pub fn context_len(&self, wanted: usize) -> usize {
        self.max_position_embeddings.min(wanted)
    }
}

/// `architectures` decides; `model_type` must not contradict it, and decides when it stands alone.
fn architecture(config: &Fields<'_>) -> Result<Architecture, LoadError> {
    let supported = "supported are Qwen3ForCausalLM, Qwen2ForCausalLM and LlamaForCausalLM";
    let model_type = config.text("model_type")?;
    let by_class = match config.get("architectures") {
        None => None,
        Some(value) => {
            let names = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let [name] = names else {
                return Err(
                    config.wrong("architectures", &format!("a list of one name is needed; {supported}"))
                );
            };
            let found = Architecture::ALL.into_iter().find(|a| name.as_str() == Some(a.class_name()));
            Some(found.ok_or_else(|| config.wrong("architectures", supported))?)
        }
    };
    match (by_class, model_type) {
        (Some(a), None) => Ok(a),
        (Some(a), Some(t)) if t == a.model_type() => Ok(a),
        (Some(a), Some(_)) => Err(config.wrong(
            "model_type",
            &format!("but architectures says {}: {:?} is needed", a.class_name(), a.model_type()),
        )),
        (None, Some(t)) => Architecture::ALL
            .into_iter()
            .find(|a| a.model_type() == t)
            .ok_or_else(|| config.wrong("model_type", supported)),
        (None, None) => Err(config.wrong("architectures", supported)),
    }
}

/// Query heads, KV heads and head width. An explicit `head_dim` wins; the quotient stands in only when
/// it is absent or null. A wrong guess cannot pass: the shapes of the projections are checked.
fn heads(config: &Fields<'_>, hidden_size: usize) -> Result<(usize, usize, usize), LoadError> {
    let q_heads = config.required_integer("num_attention_heads", 1, MAX_HEADS)?;
    let kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS)?.unwrap_or(q_heads);
    if q_heads % kv_heads != 0 {
        return Err(config.wrong(
            "num_key_value_heads",
            &format!("a divisor of num_attention_heads ({q_heads}) is needed"),
        ));
    }
    let head_dim = match config.integer("head_dim", 1, MAX_HEAD_DIM)? {
        Some(dim) => dim,
        None if hidden_size.is_multiple_of(q_heads) => hidden_size / q_heads,
        None => {
            let problem = format!(
                "is {q_heads}, which does not divide hidden_size ({hidden_size}), and head_dim is absent"
            );
            return Err(config.error("num_attention_heads", problem));
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim as u64 > MAX_HEAD_DIM {
        let problem = format!("is {head_dim}, an even number up to {MAX_HEAD_DIM} is needed");
        return Err(config.error("head_dim", problem));
    }
    Ok((q_heads, kv_heads, head_dim))
}

/// As the three model classes read the flags: Qwen2 ignores them (q, k, v always, the rest never).
fn biases(config: &Fields<'_>, architecture: Architecture) -> Result<Biases, LoadError> {
    let attention = config.flag("attention_bias")?.unwrap_or(false);
    let mlp = config.flag("mlp_bias")?.unwrap_or(false);
    Ok(match architecture {
        Architecture::Qwen2 => Biases { qkv: true, output: false, mlp: false },
        Architecture::Qwen3 => Biases { qkv: attention, output: attention, mlp: false },
        Architecture::Llama => Biases { qkv: attention, output: attention, mlp },
    })
}
