//! `/v1/completions`: the prompt in its four shapes.

use crate::api::fields::{Fields, ids_text, token_ids};
use crate::api::request::{ApiKind, ApiLimits, ApiRequest, PromptInput};
use crate::api::validate::{self, Defaults};
use crate::api::{ApiError, json};
use serde_json::{Map, Value};

/// Checks the body of a completion request.
///
/// # Errors
/// 400 for malformed JSON and bad values, 404 for an unknown model, 422 for what this server lacks.
pub fn parse_completion(body: &[u8], limits: &ApiLimits) -> Result<ApiRequest, ApiError> {
    completion(&json::parse_object(body)?, limits, false)
}

/// Checks a completion request; `stream` is the default of that field.
pub(crate) fn completion(
    map: &Map<String, Value>,
    limits: &ApiLimits,
    stream: bool,
) -> Result<ApiRequest, ApiError> {
    let fields = Fields::new(map);
    let add_special = fields.flag("add_special_tokens", true)?;
    let prompts = prompts(&fields, limits, add_special)?;
    validate::request(map, limits, Defaults { kind: ApiKind::Completion, stream }, prompts)
}

const SHAPES: &str = "a string, a list of strings, a list of token ids, or a list of lists of token ids";

fn prompts(fields: &Fields<'_>, limits: &ApiLimits, add_special: bool) -> Result<Vec<PromptInput>, ApiError> {
    let text = |text: &str| {
        if text.is_empty() && !(add_special && limits.empty_prompt_tokens > 0) {
            return Err(ApiError::invalid("prompt", "prompt must not be empty"));
        }
        Ok(PromptInput::Text { text: text.to_owned(), add_special })
    };
    let ids = |list: &[Value]| match token_ids(list, limits.real_vocab) {
        Some(ids) if ids.is_empty() => Err(ApiError::invalid("prompt", "prompt must not be empty")),
        Some(ids) => Ok(PromptInput::Ids(ids)),
        None => Err(fields.invalid("prompt", &ids_text(limits.real_vocab))),
    };
    let list = match fields.get("prompt") {
        None => return Err(fields.invalid("prompt", SHAPES)),
        Some(Value::String(one)) => return Ok(vec![text(one)?]),
        Some(Value::Array(list)) => list.as_slice(),
        Some(_) => return Err(fields.invalid("prompt", SHAPES)),
    };
    if list.is_empty() || list.iter().all(Value::is_number) {
        return Ok(vec![ids(list)?]);
    }
    if list.len() > limits.max_prompts {
        let right = format!("a list of at most {} prompts", limits.max_prompts);
        return Err(fields.invalid("prompt", &right));
    }
    let same = list.iter().all(Value::is_string) || list.iter().all(Value::is_array);
    if !same {
        return Err(fields.invalid("prompt", SHAPES));
    }
    let one = |value: &Value| match value {
        Value::String(string) => text(string),
        Value::Array(list) => ids(list),
        _ => Err(fields.invalid("prompt", SHAPES)),
    };
    list.iter().map(one).collect()
}
