//! Which model a head belongs to: what the file says, and what the model is.

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::{Fields, ModelConfig};
use crate::error::LoadError;
use crate::weights::{ModelWeights, Tensor};

/// What identifies a model for a head: sizes, tokenizer and weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrint {
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// Layers: a copy without some of them may have all that the digest reads.
    pub layers: usize,
    /// [`tokenizer_print`] of the model's folder.
    pub tokenizer: String,
    /// Digest of parts of the weights: the final norm, then the first 4096 bytes (or all) of the embedding, of the last
    /// layer's `q_proj` and of its `down_proj`, as stored.
    pub weights: String,
}

/// What a router file says about the model it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    /// Layers; `None` in files written before they were counted.
    pub layers: Option<usize>,
    /// [`tokenizer_print`] of the model's folder.
    pub tokenizer: String,
    /// [`ModelPrint::weights`]; `None` leaves open which of several models with this tokenizer it is.
    pub weights: Option<String>,
}

/// Bytes of each matrix that count.
const SAMPLED: usize = 4096;

/// FNV-1a, 64 bits: a name for a file's content, not a defence.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    fn text(self) -> String {
        format!("fp{:016x}", self.0)
    }
}

/// `fp` and the FNV-1a digest (64 bits, 16 hexadecimal digits) of the bytes of `tokenizer.json` in `dir`; `none` when
/// there is no such file.
///
/// # Errors
/// A [`LoadError`] when the file is there and cannot be read.
pub fn tokenizer_print(dir: &Path) -> Result<String, LoadError> {
    let file = dir.join("tokenizer.json");
    match std::fs::read(&file) {
        Ok(bytes) => Ok(Digest::new().add(&bytes).text()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok("none".to_owned()),
        Err(e) => Err(LoadError::file(&file, format!("cannot be read: {e}"))),
    }
}

impl ModelPrint {
    /// The print of an opened checkpoint.
    ///
    /// # Errors
    /// As [`tokenizer_print`].
    pub(crate) fn of(dir: &Path, config: &ModelConfig, weights: &ModelWeights) -> Result<Self, LoadError> {
        let sampled = |digest: Digest, tensor: &Tensor| {
            let data = tensor.view().data();
            digest.add(&data[..data.len().min(SAMPLED)])
        };
        let mut digest = Digest::new().add(weights.final_norm.view().data());
        digest = sampled(digest, &weights.embed);
        if let Some(last) = weights.layers.last() {
            digest = sampled(digest, &last.q_proj.weight);
            digest = sampled(digest, &last.down_proj.weight);
        }
        Ok(Self {
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            layers: config.layers,
            tokenizer: tokenizer_print(dir)?,
            weights: digest.text(),
        })
    }

    /// The print of the checkpoint in `dir`.
    ///
    /// # Errors
    /// A [`LoadError`] when the checkpoint cannot be served.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        crate::model::Model::open(dir)?.print()
    }

    /// This model as a router file names it.
    pub fn owner(&self) -> Owner {
        Owner {
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            layers: Some(self.layers),
            tokenizer: self.tokenizer.clone(),
            weights: Some(self.weights.clone()),
        }
    }
}

impl Owner {
    /// Reads the object `model` of a router file.
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, LoadError> {
        super::file::known(fields, &["hidden_size", "vocab_size", "layers", "tokenizer", "weights"])?;
        let tokenizer = fields.text("tokenizer")?;
        Ok(Self {
            hidden_size: fields.required_integer("hidden_size", 1, 1 << 20)?,
            vocab_size: fields.required_integer("vocab_size", 1, 1 << 31)?,
            layers: match fields.get("layers") {
                None | Some(Value::Null) => None,
                Some(_) => Some(fields.required_integer("layers", 1, 1 << 16)?),
            },
            tokenizer: tokenizer
                .ok_or_else(|| fields.error("tokenizer", "is absent, the tokenizer's fingerprint is needed"))?
                .to_owned(),
            weights: fields.text("weights")?.map(str::to_owned),
        })
    }

    /// As it stands in a router file.
    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("hidden_size".into(), json!(self.hidden_size));
        map.insert("vocab_size".into(), json!(self.vocab_size));
        if let Some(layers) = self.layers {
            map.insert("layers".into(), json!(layers));
        }
        map.insert("tokenizer".into(), json!(self.tokenizer));
        map.insert("weights".into(), json!(self.weights));
        Value::Object(map)
    }

    /// Refuses a model that is not the one named, with both fingerprints.
    pub(super) fn check(&self, file: &Path, model: &ModelPrint) -> Result<(), LoadError> {
        let same = self.hidden_size == model.hidden_size
            && self.vocab_size == model.vocab_size
            && self.layers.is_none_or(|n| n == model.layers)
            && self.tokenizer == model.tokenizer
            && self.weights.as_ref().is_none_or(|w| *w == model.weights);
        if same {
            return Ok(());
        }
        let problem = format!("belongs to another model: the router is for {self}, the model is {model}");
        Err(LoadError::field(file, "model", problem))
    }
}

fn show(
    f: &mut fmt::Formatter<'_>,
    [hidden, vocab]: [usize; 2],
    layers: Option<usize>,
    [tokenizer, weights]: [&str; 2],
) -> fmt::Result {
    let layers = layers.map_or_else(|| "any".to_owned(), |n| n.to_string());
    write!(
        f,
        "(hidden_size {hidden}, vocab_size {vocab}, layers {layers}, tokenizer {tokenizer}, weights {weights})"
    )
}

impl fmt::Display for ModelPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, [self.hidden_size, self.vocab_size], Some(self.layers), [&self.tokenizer, &self.weights])
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = self.weights.as_deref().unwrap_or("any");
        show(f, [self.hidden_size, self.vocab_size], self.layers, [&self.tokenizer, weights])
    }
}
