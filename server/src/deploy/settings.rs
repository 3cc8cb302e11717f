//! Sections of the configuration in the words of the parts that read them.

use tokenrouter_engine::FaultOptions;
use tokenrouter_scheduler::PeerLoss;

use crate::api::{ChatSettings, ReasoningField, RoutingLimits, ServedRoute, ToolFormat};
use crate::config::{self, Config, OnPeerLoss, ReasoningParser, ToolParser};
use crate::text::{TextModel, TextOptions};

/// `[chat]`, with `auto` resolved by the template.
pub(super) fn chat(config: &Config, text: &TextModel) -> ChatSettings {
    let chat = &config.chat;
    ChatSettings {
        reasoning: match chat.reasoning_parser {
            ReasoningParser::Auto => ChatSettings::has_thoughts(text),
            ReasoningParser::None => false,
            ReasoningParser::Qwen3 => true,
        },
        reasoning_field: match chat.reasoning_field {
            config::ReasoningField::ReasoningContent => ReasoningField::ReasoningContent,
            config::ReasoningField::Reasoning => ReasoningField::Reasoning,
            config::ReasoningField::Both => ReasoningField::Both,
        },
        tools: match chat.tool_parser {
            ToolParser::Auto => ChatSettings::tools_of(text),
            ToolParser::None => None,
            ToolParser::Hermes => Some(ToolFormat::Hermes),
            ToolParser::Llama3Json => Some(ToolFormat::Llama3Json),
        },
        request_template: chat.allow_request_template,
    }
}

/// What `[chat]` says to the text side.
pub(super) fn text(config: &Config) -> TextOptions {
    TextOptions { template: config.chat.template.clone(), guard_text: config.chat.guard_text }
}

/// `[request_limits]`.
pub(super) fn routing(config: &Config, routes: Vec<ServedRoute>) -> RoutingLimits {
    let limits = &config.request_limits;
    RoutingLimits {
        threshold: limits.threshold,
        max_llm_fraction: limits.max_llm_fraction,
        router: limits.router,
        routes,
    }
}

/// `[faults]`.
pub(super) fn faults(config: &Config) -> FaultOptions {
    FaultOptions {
        on_peer_loss: match config.faults.on_peer_loss {
            OnPeerLoss::Fail => PeerLoss::Fail,
            OnPeerLoss::Continue => PeerLoss::Continue,
        },
        step_timeout: config.faults.step_timeout(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::text::fixtures;

    fn config(more: &str) -> Config {
        let text = format!("[[model]]\nname = \"one\"\npath = \"x\"\n{more}");
        Config::parse(&text, Path::new("")).expect("good")
    }

    #[test]
    fn auto_goes_by_the_template_and_words_go_before_it() {
        let thinks = json!({"chat_template": "<think></think>{{ '<tool_call>' }}"});
        let thinks = fixtures::load(&fixtures::metaspace_json(), &thinks);
        let found = |more: &str| {
            let settings = chat(&config(more), &thinks);
            (settings.reasoning, settings.tools)
        };
        assert_eq!(found(""), (true, Some(ToolFormat::Hermes)));
        assert_eq!(found("[chat]\nreasoning_parser = \"none\"\ntool_parser = \"none\""), (false, None));
        assert_eq!(found("[chat]\ntool_parser = \"llama3_json\"").1, Some(ToolFormat::Llama3Json));
        let plain = fixtures::demo();
        assert!(chat(&config("[chat]\nreasoning_parser = \"qwen3\""), &plain).reasoning);
        let both = config("[chat]\nreasoning_field = \"both\"\nallow_request_template = true");
        let settings = chat(&both, &plain);
        assert_eq!((settings.reasoning_field, settings.request_template), (ReasoningField::Both, true));
    }

    #[test]
    fn faults_are_passed_on_and_the_defaults_are_the_engines() {
        assert_eq!(faults(&config("")), FaultOptions::default());
        let found = faults(&config("[faults]\non_peer_loss = \"continue\"\nstep_timeout_s = 0"));
        assert_eq!(found, FaultOptions { on_peer_loss: PeerLoss::Continue, step_timeout: None });
    }
}
