//! `/tokenize`, `/detokenize` and `/v1/chat/completions/render`: what the tokenizer and the template make of a request,
//! without the engine.
//!
//! Shapes as in vLLM. The names of llama.cpp are understood too: `content` for the text, in and out; with it
//! `add_special` (default false) says what `add_special_tokens` (default true) says with `prompt`.

use crate::api::chat::Conversation;
use crate::api::fields::{Fields, ids_text, token_ids};
use crate::api::prepare::refuse_hopeless;
use crate::api::request::{ApiLimits, PromptInput};
use crate::api::{ApiError, json, parse_chat, prepare};
use crate::text::TextModel;
use serde_json::{Map, Value};

/// The body of an answer to `/tokenize`: the ids of a text, or of a chat as its template renders it.
///
/// # Errors
/// As for the requests that generate: 400, 404 for an unknown model, 422 for what this server lacks.
pub fn tokenize(body: &[u8], limits: &ApiLimits, text: &TextModel) -> Result<Vec<u8>, ApiError> {
    let map = json::parse_object(body)?;
    let fields = Fields::new(&map);
    limits.route(fields.text("model")?)?;
    let strings = fields.flag("return_token_strs", false)?;
    let (param, ids) = if fields.get("messages").is_some() {
        let prompt = Conversation::new(&fields, limits)?.render(text, limits)?;
        ("messages", text.encode_rendered(&prompt))
    } else {
        let (name, flag, default) = match (fields.text("prompt")?, fields.text("content")?) {
            (None, Some(_)) => ("content", "add_special", false),
            _ => ("prompt", "add_special_tokens", true),
        };
        let right = "a string; or give messages";
        let prompt = fields.text(name)?.ok_or_else(|| fields.invalid(name, right))?;
        refuse_hopeless(name, prompt.len(), limits, text)?;
        (name, text.encode_prompt(prompt, fields.flag(flag, default)?))
    };
    let ids = ids.map_err(|error| ApiError::from_text(param, &error))?;
    let mut answer = counted(&ids, limits);
    answer.insert("tokens".into(), ids.as_slice().into());
    if strings {
        let spelled: Vec<Value> = ids.iter().map(|&id| text.token_text(id).into()).collect();
        answer.insert("token_strs".into(), spelled.into());
    }
    Ok(json::to_vec(&Value::Object(answer)))
}

/// The body of an answer to `/detokenize`: the text of ids, control tokens included.
///
/// # Errors
/// 400 for anything but a list of ids that have a token; 404 for an unknown model.
pub fn detokenize(body: &[u8], limits: &ApiLimits, text: &TextModel) -> Result<Vec<u8>, ApiError> {
    let map = json::parse_object(body)?;
    let fields = Fields::new(&map);
    limits.route(fields.text("model")?)?;
    let right = ids_text(limits.real_vocab);
    let list = fields.list("tokens")?.ok_or_else(|| fields.invalid("tokens", &right))?;
    let ids = token_ids(list, limits.real_vocab).ok_or_else(|| fields.invalid("tokens", &right))?;
    let prompt = Value::from(text.decode(&ids, false));
    let mut answer = Map::new();
    answer.insert("prompt".into(), prompt.clone());
    answer.insert("content".into(), prompt);
    Ok(json::to_vec(&Value::Object(answer)))
}

/// The body of an answer to `/v1/chat/completions/render`: text and ids of the prompt of a chat request, which is
/// checked as if it were to be answered.
///
/// # Errors
/// As for the chat request.
pub fn render(body: &[u8], limits: &ApiLimits, text: &TextModel) -> Result<Vec<u8>, ApiError> {
    let request = parse_chat(body, limits, text)?;
    let prompt = match request.prompts.first() {
        Some(PromptInput::Chat(prompt)) => prompt.plain(),
        _ => String::new(),
    };
    let prepared = prepare(&request, text, limits)?;
    let ids = prepared.first().map_or(&[][..], |prepared| &prepared.ids);
    let mut answer = counted(ids, limits);
    answer.insert("prompt".into(), prompt.into());
    answer.insert("prompt_token_ids".into(), ids.into());
    Ok(json::to_vec(&Value::Object(answer)))
}

fn counted(ids: &[u32], limits: &ApiLimits) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert("count".into(), ids.len().into());
    answer.insert("max_model_len".into(), limits.context_len.into());
    answer
}
