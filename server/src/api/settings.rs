//! What the operator says about chats.

use crate::api::tools::ToolFormat;
use crate::text::TextModel;

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

impl ChatSettings {
    /// Whether the template or the vocabulary has blocks of thoughts: what `reasoning_parser = "auto"` goes by.
    pub fn has_thoughts(text: &TextModel) -> bool {
        text.knows_markup("<think>") && text.knows_markup("</think>")
    }

    /// How the template writes calls: what `tool_parser = "auto"` goes by. `None` also for forms that are not
    /// understood here, such as calls in XML.
    pub fn tools_of(text: &TextModel) -> Option<ToolFormat> {
        let template = text.template().sources();
        let writes = |markup: &str| template.contains(markup);
        if writes("<tool_call>") && !writes("<function=") && !writes("<arg_key>") {
            return Some(ToolFormat::Hermes);
        }
        (writes("\"parameters\"") && (writes("ipython") || writes("<|python_tag|>")))
            .then_some(ToolFormat::Llama3Json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixtures;
    use serde_json::json;

    #[test]
    fn parsers_by_the_template() {
        let with =
            |template: &str| fixtures::load(&fixtures::metaspace_json(), &json!({"chat_template": template}));
        for (template, thoughts, tools) in [
            ("{{ 1 }}", false, None),
            ("<think></think>", true, None),
            ("{{ '<tool_call>\\n{\"name\": \"' }}", false, Some(ToolFormat::Hermes)),
            ("<tool_call><function=f>", false, None),
            ("ipython {{ '\"parameters\": ' }}", false, Some(ToolFormat::Llama3Json)),
            ("{{ '\"parameters\": ' }}", false, None),
        ] {
            let text = with(template);
            let found = (ChatSettings::has_thoughts(&text), ChatSettings::tools_of(&text));
            assert_eq!(found, (thoughts, tools), "{template}");
        }
        // The vocabulary alone says it too.
        assert!(ChatSettings::has_thoughts(&fixtures::byte_level()));
        assert!(ChatSettings::has_thoughts(&fixtures::demo()));
    }
}
