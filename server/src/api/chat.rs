//! `/v1/chat/completions`: messages to a rendered prompt, and how the answer to it is to be taken apart.

use crate::api::fields::Fields;
use crate::api::messages::messages;
use crate::api::prepare::refuse_hopeless;
use crate::api::reasoning::Thinking;
use crate::api::request::{ApiKind, ApiLimits, ApiRequest, PromptInput};
use crate::api::settings::ChatSettings;
use crate::api::split::OutputPlan;
use crate::api::tools::ToolFormat;
use crate::api::validate::{self, Defaults};
use crate::api::{ApiError, json};
use crate::text::{ChatOptions, RenderedPrompt, TextModel};
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
    let conversation = Conversation::new(&fields, limits)?;
    let tools = tool_format(&fields, &limits.chat)?;
    let hide_reasoning = !fields.flag("include_reasoning", true)?;
    // Everything else is checked first: rendering is the expensive part.
    let mut request = validate::request(map, limits, Defaults { kind: ApiKind::Chat, stream }, Vec::new())?;
    let prompt = conversation.render(text, limits)?;
    request.output = OutputPlan {
        thinking: if limits.chat.reasoning { conversation.thinking(&prompt) } else { Thinking::Off },
        tools,
        reasoning_field: limits.chat.reasoning_field,
        hide_reasoning,
    };
    request.prompts.push(PromptInput::Chat(prompt));
    Ok(request)
}

/// What of a request goes into its prompt.
pub(crate) struct Conversation {
    messages: Value,
    options: ChatOptions,
}

impl Conversation {
    /// Checks the fields that the prompt is made of.
    pub(crate) fn new(fields: &Fields<'_>, limits: &ApiLimits) -> Result<Self, ApiError> {
        let messages = messages(fields, limits.max_messages)?;
        let template = fields.text("chat_template")?;
        if template.is_some() && !limits.chat.request_template {
            let message =
                "requests may not bring a chat_template; the operator can allow it (allow_request_template)";
            return Err(ApiError::unsupported("chat_template", message));
        }
        let continue_final_message = fields.flag("continue_final_message", false)?;
        let add_generation_prompt = fields.bool("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            let message = "continue_final_message and add_generation_prompt exclude each other";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let options = ChatOptions {
            tools: tools(fields)?,
            documents: objects(fields, "documents")?,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            add_special_tokens: fields.flag("add_special_tokens", false)?,
            template: template.map(str::to_owned),
            kwargs: kwargs(fields)?,
        };
        Ok(Self { messages, options })
    }

    /// Renders the prompt. Takes time proportional to the text, of which there may be more than fits: a template leaves
    /// old thoughts out.
    pub(crate) fn render(&self, text: &TextModel, limits: &ApiLimits) -> Result<RenderedPrompt, ApiError> {
        refuse_hopeless("messages", text_bytes(&self.messages), limits, text)?;
        text.chat_prompt(&self.messages, &self.options)
            .map_err(|error| ApiError::from_text("messages", &error))
    }

    /// How the answer begins: the end of the prompt says it, never `enable_thinking`.
    fn thinking(&self, prompt: &RenderedPrompt) -> Thinking {
        let last = self.messages.as_array().and_then(|messages| messages.last());
        match last.and_then(|message| message.get("content")).and_then(Value::as_str) {
            Some(content) if self.options.continue_final_message => Thinking::after_beginning(content),
            _ => Thinking::after_prompt(prompt.tail()),
        }
    }
}

/// Bytes of all strings in it.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        Value::Object(map) => map.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// The template's further variables.
fn kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        kwargs.insert("reasoning_effort".into(), effort.into());
        if effort == "none" {
            kwargs.insert("enable_thinking".into(), false.into());
        }
    }
    kwargs.extend(fields.object("chat_template_kwargs")?.cloned().unwrap_or_default());
    Ok(kwargs)
}

/// A list of objects that is not empty.
fn objects(fields: &Fields<'_>, name: &str) -> Result<Option<Value>, ApiError> {
    let Some(list) = fields.list(name)?.filter(|list| !list.is_empty()) else { return Ok(None) };
    if !list.iter().all(Value::is_object) {
        return Err(fields.invalid(name, "a list of objects"));
    }
    Ok(Some(Value::Array(list.to_vec())))
}

/// The tools that the template shows.
fn tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let tools = objects(fields, "tools")?;
    let named = |tool: &Value| match tool.get("function") {
        Some(function) => function.get("name").is_some_and(Value::is_string),
        None => tool.get("type").and_then(Value::as_str) != Some("function"),
    };
    if !tools.iter().filter_map(Value::as_array).flatten().all(named) {
        return Err(fields.invalid("tools", "a list of tools, each with a string as function.name"));
    }
    Ok(tools)
}

/// Whether calls are looked for in the answer, and how they are written. A choice that needs constrained decoding, or
/// tools whose calls nobody could tell from text, are refused, never ignored.
fn tool_format(fields: &Fields<'_>, settings: &ChatSettings) -> Result<Option<ToolFormat>, ApiError> {
    for name in ["functions", "function_call"] {
        let given =
            fields.get(name).is_some_and(|value| value != "none" && value != &Value::Array(Vec::new()));
        if given {
            return Err(ApiError::unsupported(
                name,
                format!("{name} is not supported; use tools and tool_choice"),
            ));
        }
    }
    let given = fields.list("tools")?.is_some_and(|tools| !tools.is_empty());
    match fields.get("tool_choice") {
        Some(Value::String(choice)) if choice == "none" => return Ok(None),
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "required" => return Err(constrained()),
        Some(Value::Object(_)) => return Err(constrained()),
        Some(_) => return Err(fields.invalid("tool_choice", "`none`, `auto`, `required` or an object")),
    }
    if given && settings.tools.is_none() {
        let message =
            "this server has no parser for this model's tool calls (tool_parser); tool_choice can be none";
        return Err(ApiError::unsupported("tools", message));
    }
    Ok(settings.tools.filter(|_| given))
}

fn constrained() -> ApiError {
    let message = "a call cannot be forced: tool_choice can be `auto` or `none` on this server";
    ApiError::unsupported("tool_choice", message)
}
