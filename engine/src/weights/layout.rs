//! The tensors that a configuration asks for, taken out of the files; and what to do with the rest.

use std::collections::HashSet;

use super::files::Checkpoint;
use super::map::Tensor;
use super::{LayerWeights, Linear, ModelWeights};
use crate::config::ModelConfig;
use crate::error::LoadError;

const EMBED: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm.weight";
const HEAD: &str = "lm_head.weight";

/// Takes every tensor that `config` asks for, then judges the ones left over.
pub(super) fn build(files: Checkpoint, config: &ModelConfig) -> Result<ModelWeights, LoadError> {
    let mut taken = Taken { files, names: HashSet::new() };
    let matrix = [config.vocab_size, config.hidden_size];
    let embed = taken.tensor(EMBED, &matrix)?;
    let layers = (0..config.layers).map(|i| taken.layer(i, config)).collect::<Result<_, _>>()?;
    let final_norm = taken.tensor(NORM, &[config.hidden_size])?;
    let tied = taken.tied(config)?;
    let lm_head = Linear::new(if tied { embed.clone() } else { taken.tensor(HEAD, &matrix)? }, None);
    taken.judge_rest(config, tied)?;
    Ok(ModelWeights { embed, layers, final_norm, lm_head, tied })
}

struct Taken {
    files: Checkpoint,
    names: HashSet<String>,
}

impl Taken {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let file = self.files.file(name).ok_or_else(|| {
            LoadError::field(&self.files.listing, name, format!("is missing; shape {shape:?} is needed"))
        })?;
        self.names.insert(name.to_owned());
        file.tensor(name, shape, "config.json")
    }

    fn linear(&mut self, prefix: &str, shape: [usize; 2], bias: bool) -> Result<Linear, LoadError> {
        let weight = self.tensor(&format!("{prefix}.weight"), &shape)?;
        let bias = if bias { Some(self.tensor(&format!("{prefix}.bias"), &shape[..1])?) } else { None };
        Ok(Linear::new(weight, bias))
    }

    fn layer(&mut self, index: usize, c: &ModelConfig) -> Result<LayerWeights, LoadError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        let qk_norm = if c.qk_norm {
            let q = self.tensor(&name("self_attn.q_norm.weight"), &[c.head_dim])?;
            Some((q, self.tensor(&name("self_attn.k_norm.weight"), &[c.head_dim])?))
        } else {
            None
        };
        Ok(LayerWeights {
            input_norm: self.tensor(&name("input_layernorm.weight"), &[hidden])?,
            q_proj: self.linear(&name("self_attn.q_proj"), [c.q_width(), hidden], c.biases.qkv)?,
            k_proj: self.linear(&name("self_attn.k_proj"), [c.kv_width(), hidden], c.biases.qkv)?,
            v_proj: self.linear(&name("self_attn.v_proj"), [c.kv_width(), hidden], c.biases.qkv)?,
            qk_norm,
            o_proj: self.linear(&name("self_attn.o_proj"), [hidden, c.q_width()], c.biases.output)?,
            post_norm: self.tensor(&name("post_attention_layernorm.weight"), &[hidden])?,
            gate_proj: self.linear(&name("mlp.gate_proj"), [inner, hidden], c.biases.mlp)?,
            up_proj: self.linear(&name("mlp.up_proj"), [inner, hidden], c.biases.mlp)?,
            down_proj: self.linear(&name("mlp.down_proj"), [hidden, inner], c.biases.mlp)?,
        })
    }

    /// The table at the top of [`crate::weights`].
    fn tied(&self, config: &ModelConfig) -> Result<bool, LoadError> {
        let present = self.files.file(HEAD).is_some();
        match (config.tie_word_embeddings, present) {
            (Some(true), true) => {
                tracing::warn!(
                    "tie_word_embeddings is true: {HEAD} is ignored, the embedding is the output matrix"
                );
                Ok(true)
            }
            (Some(true), false) => Ok(true),
            (Some(false) | None, true) => Ok(false),
            (None, false) => {
                tracing::info!("no {HEAD} and no tie_word_embeddings: the embedding is the output matrix");
                Ok(true)
            }
            (Some(false), false) => Err(LoadError::field(
                &self.files.listing,
                HEAD,
                "is missing although tie_word_embeddings in config.json is false: add the tensor, or set the flag to true",
            )),
        }
    }

    /// Refuses left-over tensors that would change what we compute, reports the others.
    fn judge_rest(&self, config: &ModelConfig, tied: bool) -> Result<(), LoadError> {
        let rest = self.files.names().filter(|n| !self.names.contains(*n));
        let rest: Vec<&str> =
            rest.filter(|n| !(n.ends_with("rotary_emb.inv_freq") || tied && *n == HEAD)).collect();
        let ours: Vec<&str> =
            rest.iter().copied().filter(|n| n.starts_with("model.") || n.starts_with("lm_head.")).collect();
        if let Some(first) = ours.first() {
            let more = if ours.len() > 1 { format!(" ({} more)", ours.len() - 1) } else { String::new() };
            let problem = format!(
                "is not part of a {} with {} layers as config.json describes it{more}: it would change the mathematics",
                config.architecture.class_name(),
                config.layers
            );
            return Err(LoadError::field(&self.files.listing, *first, problem));
        }
        if !rest.is_empty() {
            tracing::warn!(tensors = rest.join(", "), "tensors that the model does not use are ignored");
        }
        Ok(())
    }
}
