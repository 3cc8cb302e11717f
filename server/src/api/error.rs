//! Errors as OpenAI clients expect them: a status and an object with message, type, param and code.

use crate::api::json;
use crate::text::TextError;
use serde_json::{Value, json};
use tokenrouter_engine::RefuseError;
use tokenrouter_scheduler::{FailKind, SubmitError};

/// A refusal or failure, ready to be answered. Messages never contain bytes of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// What is wrong and what would be right.
    pub message: String,
    /// The `type` of the error object.
    pub kind: &'static str,
    /// The field at fault.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl ApiError {
    /// Any error; `param` and `code` are unset.
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None }
    }

    /// 400: a field is missing or has a bad value.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_owned()), ..Self::new(400, INVALID, message) }
    }

    /// 400: the body is no JSON object.
    pub fn invalid_json(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_json"), ..Self::new(400, INVALID, message) }
    }

    /// 422: well formed, but this server lacks the feature.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        let code = Some("unsupported_feature");
        Self { param: Some(param.to_owned()), code, ..Self::new(422, INVALID, message) }
    }

    /// 404: no route of that name.
    pub fn model_not_found(served: &[String]) -> Self {
        let message = format!("the model does not exist; served here: {}", served.join(", "));
        let code = Some("model_not_found");
        Self { param: Some("model".into()), code, ..Self::new(404, INVALID, message) }
    }

    /// 400: prompt and answer do not fit.
    pub fn context_length(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::invalid(param, message) }
    }

    /// 429: too many requests wait.
    pub fn queue_full(message: impl Into<String>) -> Self {
        let code = Some("queue_full");
        Self { code, ..Self::new(429, "rate_limit_error", message) }
    }

    /// 500: something broke, for this request only.
    pub fn engine(message: impl Into<String>) -> Self {
        Self { code: Some("engine_error"), ..Self::new(500, SERVER, message) }
    }

    /// 503: not now; `code` is `loading`, `draining` or `engine_dead`.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(503, SERVER, message) }
    }

    /// The engine did not accept a request.
    pub fn from_submit(error: &SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { .. } => Self::queue_full(message),
            SubmitError::ContextExceeded { .. } | SubmitError::CapacityExceeded { .. } => {
                Self::context_length("max_tokens", message)
            }
            SubmitError::EmptyPrompt => Self::invalid("prompt", message),
            SubmitError::NothingToWrite => Self::invalid("max_tokens", message),
            SubmitError::MinTokens { .. } => Self::invalid("min_tokens", message),
            SubmitError::ThresholdNotANumber | SubmitError::ThresholdRefused { .. } => {
                Self::invalid("token_routing.threshold", message)
            }
            SubmitError::FractionOutOfRange { .. } => {
                Self::invalid("token_routing.max_llm_fraction", message)
            }
            SubmitError::NoQueryScore { .. } => Self::invalid("token_routing.query_score", message),
            SubmitError::ModelLost { .. } => Self::unavailable("model_lost", message),
            SubmitError::UnknownRoute { .. } | SubmitError::EntryOutOfReach { .. } => Self::engine(message),
        }
    }

    /// The engine could not finish an answer.
    pub fn from_failure(why: &FailKind) -> Self {
        match why {
            // Not the request's fault: elsewhere, or later, the same request may work.
            FailKind::ModelLost { .. } => Self::unavailable("model_lost", why.to_string()),
            _ => Self::engine(why.to_string()),
        }
    }

    /// The engine did not accept a request, or takes none any more.
    pub fn from_refusal(error: &RefuseError) -> Self {
        match error {
            RefuseError::Submit(error) => Self::from_submit(error),
            RefuseError::UnknownToken { .. } => Self::invalid("prompt", error.to_string()),
            RefuseError::Draining => Self::unavailable("draining", error.to_string()),
        }
    }

    /// A request's text could not be turned into tokens; `param` is the field that holds it.
    pub fn from_text(param: &str, error: &TextError) -> Self {
        match error {
            TextError::NoTemplate => Self::unsupported(param, format!("{error}; use /v1/completions")),
            TextError::Continue => Self::invalid("continue_final_message", error.to_string()),
            TextError::Template(_) => Self::invalid("chat_template", error.to_string()),
            TextError::File { .. } => Self::engine("the tokenizer files cannot be used"),
            _ => Self::invalid(param, error.to_string()),
        }
    }

    /// The `error` object.
    pub fn object(&self) -> Value {
        json!({"message": self.message, "type": self.kind, "param": self.param, "code": self.code})
    }

    /// The body of the answer: `{"error": {...}}`.
    pub fn to_json(&self) -> Vec<u8> {
        json::to_vec(&json!({"error": self.object()}))
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}
