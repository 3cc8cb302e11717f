//! The `[chat]` section: which template, and how answers are taken apart.

use crate::api::{ChatSettings, ReasoningField, ToolFormat};
use crate::config::{self, ChatSection, ReasoningParser, ToolParser};
use crate::text::{TextModel, TextOptions};

/// What the entry model's text side is told.
pub(super) fn text_options(section: &ChatSection) -> TextOptions {
    TextOptions { template: section.template.clone(), guard_text: section.guard_text }
}

/// The settings, with `auto` resolved by the template and the vocabulary.
pub(super) fn settings(section: &ChatSection, text: &TextModel) -> ChatSettings {
    ChatSettings {
        reasoning: match section.reasoning_parser {
            ReasoningParser::Auto => ChatSettings::has_thoughts(text),
            ReasoningParser::None => false,
            ReasoningParser::Qwen3 => true,
        },
        reasoning_field: match section.reasoning_field {
            config::ReasoningField::ReasoningContent => ReasoningField::ReasoningContent,
            config::ReasoningField::Reasoning => ReasoningField::Reasoning,
            config::ReasoningField::Both => ReasoningField::Both,
        },
        tools: match section.tool_parser {
            ToolParser::Auto => ChatSettings::tools_of(text),
            ToolParser::None => None,
            ToolParser::Hermes => Some(ToolFormat::Hermes),
            ToolParser::Llama3Json => Some(ToolFormat::Llama3Json),
        },
        request_template: section.allow_request_template,
    }
}
