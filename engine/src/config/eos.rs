//! End-of-sequence ids: the union of every place where a checkpoint declares them (bug-log L05).

use std::path::Path;

use serde_json::Value;

use super::fields::{Fields, read_object};
use crate::error::LoadError;

/// Ids from `config.json` (already read) and from `generation_config.json`, sorted, each once.
///
/// Each place may hold an integer, a list, null, or nothing. No class default is invented: an id
/// that only the tokenizer declares is added by the server, which owns the tokenizer.
pub(super) fn eos_ids(dir: &Path, config: &Fields<'_>, vocab_size: usize) -> Result<Vec<u32>, LoadError> {
    let mut ids = declared(config)?;
    let file = dir.join("generation_config.json");
    if file.exists() {
        let map = read_object(&file)?;
        ids.extend(declared(&Fields::new(&file, &map))?);
    }
    ids.sort_unstable();
    ids.dedup();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
        tracing::warn!(id, vocab_size, "an EOS id lies outside the vocabulary and can never be sampled");
    }
    Ok(ids)
}

fn declared(fields: &Fields<'_>) -> Result<Vec<u32>, LoadError> {
    const NAME: &str = "eos_token_id";
    let wrong = || fields.wrong(NAME, "a token id, a list of token ids, or null is needed");
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong);
    match fields.get(NAME) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(value) => Ok(vec![id(value)?]),
    }
}
