//! The messages of a chat as templates expect them.

use crate::api::ApiError;
use crate::api::fields::Fields;
use serde_json::{Map, Value};

/// Names that a message's thoughts go by; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The checked messages of a request.
///
/// # Errors
/// 400 with `param` `messages`: no list, empty, too long, or a message that is none.
pub(crate) fn messages(fields: &Fields<'_>, most: usize) -> Result<Value, ApiError> {
    let right = format!("a list of 1 to {most} message objects");
    let wrong = || fields.invalid("messages", &right);
    let list = fields.get("messages").and_then(Value::as_array).ok_or_else(wrong)?;
    if list.is_empty() || list.len() > most {
        return Err(wrong());
    }
    let checked = list.iter().enumerate().map(|(index, value)| {
        let map = value.as_object().ok_or_else(wrong)?;
        message(map)
            .map(Value::Object)
            .map_err(|problem| ApiError::invalid("messages", format!("messages[{index}]{problem}")))
    });
    checked.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// One message: a known role and a string for content.
fn message(map: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
    let role = map.get("role").and_then(Value::as_str).filter(|role| ROLES.contains(role));
    let role = role.ok_or_else(|| format!(".role must be one of {}", ROLES.join(", ")))?;
    let content = match map.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) if !parts.is_empty() => joined_parts(parts)?,
        None | Some(Value::Null) if role == "assistant" => String::new(),
        _ if role == "assistant" => {
            return Err(".content must be a string, a list of text parts, or null".into());
        }
        _ => return Err(".content must be a string or a non-empty list of text parts".into()),
    };
    if !matches!(map.get("tool_calls"), None | Some(Value::Null | Value::Array(_))) {
        return Err(".tool_calls must be a list".into());
    }
    let mut message = map.clone();
    message.insert("role".into(), if role == "developer" { "system" } else { role }.into());
    message.insert("content".into(), content.into());
    Ok(tidy(&message))
}

/// A message without members that are null, with its thoughts under the usual name and the arguments of its calls as
/// objects. Content that is null becomes empty: templates add strings to it.
pub(crate) fn tidy(message: &Map<String, Value>) -> Map<String, Value> {
    let mut message = message.clone();
    if let Some(content) = message.get_mut("content").filter(|content| content.is_null()) {
        *content = "".into();
    }
    message.retain(|_, value| !value.is_null());
    let thoughts = REASONING.iter().find_map(|name| message.get(*name)).filter(|value| value.is_string());
    if let Some(thoughts) = thoughts.cloned() {
        message.insert(REASONING[0].into(), thoughts);
    }
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls.iter_mut().for_each(parse_arguments);
    }
    message
}

/// Text parts joined by line feeds.
fn joined_parts(parts: &[Value]) -> Result<String, String> {
    const KNOWN: [&str; 8] =
        ["image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "refusal"];
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text").and_then(Value::as_str)) {
            ("text", Some(text)) => texts.push(text),
            ("text", None) => return Err(".content: a text part must have a string `text`".into()),
            _ => {
                let kind = KNOWN.iter().find(|known| **known == kind).unwrap_or(&"of that type");
                return Err(format!(".content: parts {kind} are not supported, only text parts"));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// Templates print arguments as an object; clients send them as a string.
fn parse_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    if let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
        let object: Value = object;
        if object.is_object() {
            *arguments = object;
        }
    }
}
