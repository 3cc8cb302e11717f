//! The OpenAI-compatible interface as pure code: bytes to a checked request, engine events to bytes. No sockets.
//!
//! The way of a request: [`parse_completion`], [`parse_chat`] or [`parse_line`] check the body; [`prepare`] (on a
//! worker thread) tokenizes and checks lengths; the caller submits one engine request per choice and feeds the
//! engine's events to an [`Answer`], which writes server-sent events, protocol lines, or one body at the end.

mod answer;
mod chat;
mod choice;
mod completions;
mod echo;
mod error;
mod fields;
mod json;
mod line;
mod logprobs;
mod message;
pub(crate) mod messages;
mod models;
mod prepare;
mod reasoning;
mod render;
mod request;
mod routing;
mod scheduling;
mod settings;
mod split;
mod token_routing;
mod tokenize;
mod tools;
mod truncate;
mod usage;
mod validate;

pub use answer::{Answer, AnswerContext, Sink, StopAt};
pub use chat::parse_chat;
pub use completions::parse_completion;
pub use error::ApiError;
pub use line::{LineRequest, parse_line};
pub use models::{ServedModel, ServedRoute, model_json, models_json};
pub use prepare::{Prepared, prepare};
pub use reasoning::Thinking;
pub use request::{ApiKind, ApiLimits, ApiRequest, PromptInput, RoutingReturn};
pub use scheduling::scheduling_json;
pub(crate) use scheduling::words as policy_words;
pub use settings::{ChatSettings, ReasoningField};
pub use split::OutputPlan;
pub use token_routing::RoutingLimits;
pub use tokenize::{detokenize, render, tokenize};
pub use tools::ToolFormat;
pub use truncate::Truncate;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
