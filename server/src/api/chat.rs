//! `/v1/chat/completions`: messages to a rendered prompt.

use crate::api::fields::Fields;
use crate::api::request::{ApiKind, ApiLimits, ApiRequest, PromptInput};
use crate::api::validate::{self, Defaults};
use crate::api::{ApiError, json};
use crate::text::{ChatOptions, TextModel};
use serde_json::{Map, Value};

/// Checks the body of a chat request and renders its prompt.
///
/// # Errors
/// 400 for malformed JSON, bad values and messages that the template refuses, 404 for an unknown model, 422 for
/// what this server or model lacks.
pub fn parse_chat(body: &[u8], limits: &ApiLimits, text: &TextModel) -> Result<ApiRequest, ApiError> {
    chat(&json::parse_object(body)?, limits, text, false)
}

/// Checks a chat request; `stream` is the default of that field.
pub(crate) fn chat(
    map: &Map<String, Value>,
    limits: &ApiLimits,
    text: &TextModel,
    stream: bool,
) -> Result<ApiRequest, ApiError> {
    let fields = Fields::new(map);
    let messages = messages(&fields, limits)?;
    let options = options(&fields)?;
    // Everything else is checked first: rendering is the expensive part.
    let mut request = validate::request(map, limits, Defaults { kind: ApiKind::Chat, stream }, Vec::new())?;
    let prompt =
        text.chat_prompt(&messages, &options).map_err(|error| ApiError::from_text("messages", &error))?;
    request.prompts.push(PromptInput::Chat(prompt));
    Ok(request)
}

fn options(fields: &Fields<'_>) -> Result<ChatOptions, ApiError> {
    if fields.flag("continue_final_message", false)? {
        let name = "continue_final_message";
        if fields.bool("add_generation_prompt")? == Some(true) {
            return Err(ApiError::invalid(name, "continue_final_message needs add_generation_prompt: false"));
        }
        return Err(ApiError::unsupported(name, "continue_final_message is not supported by this server"));
    }
    if !fields.flag("include_reasoning", true)? {
        let message = "reasoning is not told apart by this server; include_reasoning must be true";
        return Err(ApiError::unsupported("include_reasoning", message));
    }
    let mut kwargs = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
        if effort == "none" {
            kwargs.insert("enable_thinking".into(), false.into());
        }
    }
    kwargs.extend(fields.object("chat_template_kwargs")?.cloned().unwrap_or_default());
    Ok(ChatOptions {
        tools: tools(fields)?,
        add_generation_prompt: fields.flag("add_generation_prompt", true)?,
        add_special_tokens: fields.flag("add_special_tokens", false)?,
        kwargs,
    })
}

/// Tools reach the template only with `tool_choice: "none"`: the model's calls could not be told apart.
fn tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    for name in ["functions", "function_call"] {
        let given =
            fields.get(name).is_some_and(|value| value != "none" && value != &Value::Array(Vec::new()));
        if given {
            return Err(ApiError::unsupported(name, format!("{name} is not supported by this server")));
        }
    }
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    let unsupported = |name| Err(ApiError::unsupported(name, "tool calls are not supported by this server"));
    match fields.get("tool_choice") {
        Some(Value::String(choice)) if choice == "none" => {}
        Some(Value::String(choice)) if choice == "required" => return unsupported("tool_choice"),
        Some(Value::Object(_)) => return unsupported("tool_choice"),
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(_) => return Err(fields.invalid("tool_choice", "`none`, `auto`, `required` or an object")),
    }
    let none = fields.get("tool_choice").and_then(Value::as_str) == Some("none");
    match tools {
        Some(_) if !none => unsupported("tools"),
        Some(tools) if !tools.iter().all(Value::is_object) => {
            Err(fields.invalid("tools", "a list of objects"))
        }
        tools => Ok(tools.map(|tools| Value::Array(tools.to_vec()))),
    }
}

fn messages(fields: &Fields<'_>, limits: &ApiLimits) -> Result<Value, ApiError> {
    let right = format!("a list of 1 to {} message objects", limits.max_messages);
    let wrong = || fields.invalid("messages", &right);
    let list = fields.get("messages").and_then(Value::as_array).ok_or_else(wrong)?;
    if list.is_empty() || list.len() > limits.max_messages {
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

/// One message as templates expect it: a known role and a string for content.
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
    let mut message = map.clone();
    message.insert("role".into(), if role == "developer" { "system" } else { role }.into());
    message.insert("content".into(), content.into());
    match message.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => drop(message.shift_remove("tool_calls")),
        Some(Value::Array(calls)) => calls.iter_mut().for_each(parse_arguments),
        Some(_) => return Err(".tool_calls must be a list".into()),
    }
    Ok(message)
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
