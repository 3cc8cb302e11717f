//! What the operator says about chats.

use crate::api::tools::ToolFormat;

/// The settings of a deployment's chats, with `auto` resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatSettings {
    /// Tell the model's thoughts from its answer.
    pub reasoning: bool,
    /// What the field with the thoughts is called.
    pub reasoning_field: ReasoningField,
    /// How the model writes tool calls; `None` leaves them in the content and refuses tools.
    pub tools: Option<ToolFormat>,
    /// A request may bring its own template.
    pub request_template: bool,
}

/// The names of the field that carries a model's thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningField {
    /// `reasoning_content`: SGLang, llama.cpp, DeepSeek.
    #[default]
    ReasoningContent,
    /// `reasoning`: newer vLLM.
    Reasoning,
    /// Both, with the same text.
    Both,
}

impl ReasoningField {
    /// The names to write.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Self::ReasoningContent => &["reasoning_content"],
            Self::Reasoning => &["reasoning"],
            Self::Both => &["reasoning_content", "reasoning"],
        }
    }
}
