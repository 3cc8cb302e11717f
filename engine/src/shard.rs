//! Which part of a model one rank holds (DESIGN rule 9): pure functions of the configuration.
//!
//! Tensor parallelism as Megatron-LM cuts a decoder (arXiv 1909.08053, section 3): q, k, v, gate and up are cut by
//! outputs, o and down by inputs, and the partial sums of the latter are joined over the ranks; the output matrix is cut
//! by vocabulary rows. Embedding and norms stand whole on every rank, so the hidden states are the same everywhere.

use std::ops::Range;

use crate::config::ModelConfig;

/// Columns of one tile of the output matrix on CUDA; no tile is cut.
pub const VOCAB_TILE: usize = 128;
/// What every slice of K must be a multiple of on CUDA: the depth of one stage of the products.
pub const CUDA_K_STEP: usize = 32;
/// The most ranks of one model on CUDA: what the kernels fold.
pub const CUDA_MAX_SHARDS: usize = 8;

/// One of the equal parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, below `count`. Part 0 samples.
    pub index: usize,
    /// How many parts, at least 1.
    pub count: usize,
}

/// A model cannot be cut into so many parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardError {
    /// The field of `config.json` (or `devices`) that stands against it.
    pub field: &'static str,
    /// Its value and what would be right.
    pub problem: String,
}

impl std::fmt::Display for ShardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.field, self.problem)
    }
}

impl std::error::Error for ShardError {}

impl Shard {
    /// The whole model on one rank.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// All parts of a model on `count` ranks, in order.
    pub fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(move |index| Self { index, count })
    }

    /// Whether there are other parts.
    pub fn is_cut(self) -> bool {
        self.count > 1
    }

    /// Whether this part draws tokens and hands out results.
    pub fn samples(self) -> bool {
        self.index == 0
    }

    /// Query heads of this part.
    pub fn q_heads(self, config: &ModelConfig) -> Range<usize> {
        self.equal(config.q_heads)
    }

    /// Key and value heads of this part: those that its query heads read. With fewer heads than parts, each stands on
    /// `count / kv_heads` neighbouring parts.
    pub fn kv_heads(self, config: &ModelConfig) -> Range<usize> {
        if config.kv_heads < self.count {
            let head = self.index * config.kv_heads / self.count;
            head..head + 1
        } else {
            self.equal(config.kv_heads)
        }
    }

    /// Outputs of `q_proj` and inputs of `o_proj` of this part.
    pub fn q_features(self, config: &ModelConfig) -> Range<usize> {
        scaled(self.q_heads(config), config.head_dim)
    }

    /// Outputs of `k_proj` and `v_proj` of this part.
    pub fn kv_features(self, config: &ModelConfig) -> Range<usize> {
        scaled(self.kv_heads(config), config.head_dim)
    }

    /// Outputs of `gate_proj` and `up_proj` and inputs of `down_proj` of this part.
    pub fn intermediate(self, config: &ModelConfig) -> Range<usize> {
        self.equal(config.intermediate_size)
    }

    /// Rows of the output matrix of this part on the CPU, where any row may be a border.
    pub fn vocab_rows(self, config: &ModelConfig) -> Range<usize> {
        let border = |i: usize| i * config.vocab_size / self.count;
        border(self.index)..border(self.index + 1)
    }

    /// Columns of the logits that every part computes on CUDA, padding included: whole tiles, the same for all parts, so
    /// that column `c` of the model is column `c % width` of part `c / width`.
    pub fn cuda_vocab_width(self, config: &ModelConfig) -> usize {
        config.vocab_size.div_ceil(VOCAB_TILE).div_ceil(self.count) * VOCAB_TILE
    }

    /// Rows of the output matrix of this part on CUDA. The last parts may have fewer than
    /// [`Self::cuda_vocab_width`], even none.
    pub fn cuda_vocab_rows(self, config: &ModelConfig) -> Range<usize> {
        let width = self.cuda_vocab_width(config);
        let border = |i: usize| (i * width).min(config.vocab_size);
        border(self.index)..border(self.index + 1)
    }

    /// The configuration of this part alone: its heads and its intermediate features. The vocabulary stays whole, since
    /// the embedding does and the part that samples reads all logits.
    pub fn local_config(self, config: &ModelConfig) -> ModelConfig {
        ModelConfig {
            q_heads: self.q_heads(config).len(),
            kv_heads: self.kv_heads(config).len(),
            intermediate_size: self.intermediate(config).len(),
            ..config.clone()
        }
    }

    fn equal(self, n: usize) -> Range<usize> {
        let each = n / self.count;
        self.index * each..(self.index + 1) * each
    }
}

fn scaled(range: Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

/// Whether `count` ranks can share the model on any device.
///
/// # Errors
/// [`ShardError`] with the field, its value and what would be right: heads or features that do not divide.
pub fn check(config: &ModelConfig, count: usize) -> Result<(), ShardError> {
    let wrong = |field, problem| Err(ShardError { field, problem });
    if count == 0 {
        return wrong("devices", "is empty, at least one device is needed".to_owned());
    }
    let divides = |n: usize| n.is_multiple_of(count);
    if !divides(config.q_heads) {
        return wrong("num_attention_heads", uneven(config.q_heads, count));
    }
    let kv = config.kv_heads;
    if kv < count && !count.is_multiple_of(kv) {
        let problem = format!(
            "is {kv}, fewer than the {count} devices of the model: then it must divide their number, so that each head \
             stands on equally many; give the model a multiple or a divisor of {kv} devices"
        );
        return wrong("num_key_value_heads", problem);
    }
    if kv >= count && !divides(kv) {
        return wrong("num_key_value_heads", uneven(kv, count));
    }
    if !divides(config.intermediate_size) {
        return wrong("intermediate_size", uneven(config.intermediate_size, count));
    }
    if config.vocab_size < count {
        return wrong("vocab_size", format!("is {}, fewer than {count} devices", config.vocab_size));
    }
    Ok(())
}

fn uneven(n: usize, count: usize) -> String {
    format!(
        "is {n}, which {count} devices cannot share equally: give the model a number of devices that divides {n}"
    )
}

/// Whether `count` ranks can share the model on the CPU, where 1, 2 and 4 agree to the bit: the inputs of `o_proj` and
/// `down_proj` are summed in four fixed segments, so a part holds whole segments.
///
/// # Errors
/// As [`check`]; and another number of ranks than 1, 2 and 4, or inputs that four does not divide.
pub fn check_cpu(config: &ModelConfig, count: usize) -> Result<(), ShardError> {
    check(config, count)?;
    if !matches!(count, 1 | 2 | 4) {
        let problem = format!("names {count} devices; on the CPU a model runs on 1, 2 or 4");
        return Err(ShardError { field: "devices", problem });
    }
    let inputs = [("num_attention_heads", config.q_width()), ("intermediate_size", config.intermediate_size)];
    for (field, k) in inputs {
        if count > 1 && !k.is_multiple_of(4) {
            let what = if field == "intermediate_size" { "" } else { "times head_dim " };
            let problem = format!(
                "{what}is {k}: on {count} devices a multiple of 4 is needed, so that no part cuts one of the four \
                 segments in which products are summed; give the model one device"
            );
            return Err(ShardError { field, problem });
        }
    }
    Ok(())
}

/// Whether `count` ranks can share the model on CUDA.
///
/// # Errors
/// As [`check`]; and more than [`CUDA_MAX_SHARDS`] ranks, or cut slices of K that are no multiples of [`CUDA_K_STEP`]; a
/// whole K is padded.
pub fn check_cuda(config: &ModelConfig, count: usize) -> Result<(), ShardError> {
    check(config, count)?;
    if count > CUDA_MAX_SHARDS {
        let problem = format!("names {count} devices, a model has at most {CUDA_MAX_SHARDS}");
        return Err(ShardError { field: "devices", problem });
    }
    let inputs = [("num_attention_heads", config.q_width()), ("intermediate_size", config.intermediate_size)];
    for (field, k) in inputs {
        let slice = k / count;
        if count > 1 && !slice.is_multiple_of(CUDA_K_STEP) {
            let what = if field == "intermediate_size" { "" } else { "times head_dim " };
            let problem = format!(
                "{what}is {k}, of which each of {count} devices holds {slice}: a multiple of {CUDA_K_STEP} is needed on \
                 CUDA; give the model fewer devices"
            );
            return Err(ShardError { field, problem });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
