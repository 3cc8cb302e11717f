//! What the network part asks of the API part: bytes of a request to engine requests, engine events to bytes.
//!
//! A trait, so that sockets and the shutdown are tested with scripted answers and without a tokenizer.

use tokenrouter_engine::TokenLogprobs;
use tokenrouter_engine::handle::EngineRequest;
use tokenrouter_scheduler::{FinishReason, Usage};

use super::http::write::Response;
use crate::api::ApiError;

/// Where a body came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCall {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
    /// A line of the raw TCP port, which says itself what it is.
    Line,
}

/// Parses, applies the chat template and tokenizes. Runs on tokenizer threads; may take long.
pub trait Frontend: Send + Sync {
    /// Turns the body of a request into engine requests and the state of its answer. `unique` goes into the
    /// answer's id.
    ///
    /// # Errors
    /// The refusal to send: bad JSON, bad values, an unknown model, a template that raised.
    fn prepare(&self, call: ApiCall, body: &[u8], unique: &str) -> Result<Prepared, Refusal>;
}

/// A request that is ready for the engine.
pub struct Prepared {
    /// One per choice, in the order of the choices; the field `client` is filled in later.
    pub choices: Vec<EngineRequest>,
    /// The answer is written piece by piece: server-sent events on HTTP, always on the raw port. Otherwise there
    /// is one body at the end.
    pub stream: bool,
    /// Writes the answer.
    pub answer: Box<dyn AnswerWriter>,
}

/// The state of one answer.
pub trait AnswerWriter: Send {
    /// Tokens of a choice's prompt were scored, those from index `start` on. Only for requests with `prompt_logprobs`, before
    /// the first token, in parts that follow on each other.
    fn on_prompt(&mut self, choice: usize, start: usize, scores: Vec<TokenLogprobs>, out: &mut Vec<u8>) {
        let _ = (choice, start, scores, out);
    }

    /// A committed token of a choice. When streaming, whole server-sent events or lines go to `out`. `Some(n)`: a stop string
    /// matched, the first `n` tokens of this choice count; no further token of it is delivered.
    fn on_token(
        &mut self,
        choice: usize,
        token: u32,
        model: u8,
        logprobs: Option<Box<TokenLogprobs>>,
        out: &mut Vec<u8>,
    ) -> Option<u32>;

    /// A choice has ended, not by failure. After the last one the events that close the stream follow.
    fn on_finished(&mut self, choice: usize, reason: &FinishReason, usage: &Usage, out: &mut Vec<u8>);

    /// All choices have ended.
    fn is_done(&self) -> bool;

    /// The body of an answer without streaming. Asked once, when done.
    fn final_body(&mut self) -> Vec<u8>;

    /// Headers of the HTTP answer, beside those that every answer has. Asked before the first byte is written:
    /// for a stream at its first event, else when done.
    fn headers(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A refused or failed request: a status and an OpenAI error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// The body, `{"error":{..}}`.
    pub body: Vec<u8>,
}

impl From<&ApiError> for Refusal {
    fn from(error: &ApiError) -> Self {
        Self { status: error.status, body: error.to_json() }
    }
}

impl Refusal {
    /// A refusal without `param`; `type` follows from the status.
    pub fn new(status: u16, code: Option<&str>, message: &str) -> Self {
        Self { status, body: Response::error(status, code, message).body }
    }

    /// As a whole answer. 429 and 503 tell when to try again.
    pub fn response(&self) -> Response {
        let response = Response::json(self.status, self.body.clone());
        if matches!(self.status, 429 | 503) { response.with("Retry-After", "1") } else { response }
    }

    /// As the end of an event stream that has begun.
    pub fn events(&self) -> Vec<u8> {
        [b"data: ", self.body.as_slice(), b"\n\ndata: [DONE]\n\n"].concat()
    }

    /// As the last event of a request on the raw port, with its line feed.
    pub fn line(&self, id: &serde_json::Value) -> Vec<u8> {
        // The body is an object with the one member `error`; the event is the same object with two more.
        let members = self.body.strip_prefix(b"{").unwrap_or(b"}");
        [format!("{{\"id\":{id},\"event\":\"error\",").as_bytes(), members, b"\n"].concat()
    }
}
