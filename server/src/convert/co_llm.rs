//! Co-LLM: the defer token's row of an extended checkpoint's output matrix, or that row in a file of its own
//! (`gperp_init.bin`).

use std::path::Path;

use serde_json::Value as Json;
use tokenrouter_engine::heads::{CoLlmShape, HeadShape, NamedTensor};
use tokenrouter_engine::model::Model;

use super::Found;
use super::pickle::{Pickle, Value};
use super::torch::TorchFile;

/// The name of the row in router files.
const ROW: &str = "defer_row";
/// The token that the official scripts add.
const DEFER: &str = "<|defer|>";

/// Whether the file's root is one tensor.
pub(super) fn is_one(pickle: &Pickle<'_>) -> bool {
    matches!(pickle.root(), Value::Tensor(_))
}

/// Reads a row in a file of its own: `[1, hidden]` or `[hidden]`.
pub(super) fn read_row(file: &mut TorchFile, pickle: &Pickle<'_>) -> Result<Found, String> {
    let tensor = file.tensor(pickle, ROW, pickle.root())?;
    match tensor.shape[..] {
        [hidden] | [1, hidden] if hidden > 0 => Ok(found(tensor.values, None)),
        _ => Err(file.error("the tensor", format!("has shape {:?}; one row is needed", tensor.shape))),
    }
}

/// Reads the row of the defer token in the output matrix of the checkpoint in `dir`. The id is `id` where it is given, else
/// that of `<|defer|>` in the tokenizer; it is never assumed to be the last one.
pub(super) fn read_checkpoint(dir: &Path, id: Option<u32>) -> Result<Found, String> {
    let id = match id {
        Some(id) => id,
        None => defer_id(dir)?,
    };
    let model = Model::open(dir).map_err(|e| e.to_string())?;
    let row = model.output_row(id).ok_or_else(|| {
        let rows = model.config().vocab_size;
        format!("{}: the defer token's id is {id}, the output matrix has {rows} rows", dir.display())
    })?;
    Ok(found(row, Some(id)))
}

fn found(values: Vec<f32>, defer_id: Option<u32>) -> Found {
    let hidden = values.len();
    let tensor = NamedTensor { name: ROW.into(), shape: vec![1, hidden], values };
    Found { shape: HeadShape::CoLlm(CoLlmShape { defer_id }), hidden, threshold: None, tensors: vec![tensor] }
}

/// The id of `<|defer|>` in `tokenizer.json`: an added token, or an entry of the vocabulary.
fn defer_id(dir: &Path) -> Result<u32, String> {
    let path = dir.join("tokenizer.json");
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let bytes = std::fs::read(&path)
        .map_err(|e| named(&format!("cannot be read ({e}); name the defer token's id with --defer-id")))?;
    let json: Json = serde_json::from_slice(&bytes).map_err(|e| named(&format!("is not valid JSON: {e}")))?;
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter(|t| t["content"] == DEFER).find_map(|t| t["id"].as_u64());
    let id = added.or_else(|| json["model"]["vocab"][DEFER].as_u64()).and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| named(&format!("holds no token {DEFER}; name the defer token's id with --defer-id")))
}
