//! What the network part asks of the API part: bytes of a request to engine requests, engine events to bytes.
//!
//! A trait, so that sockets and the shutdown are tested with scripted answers and without a tokenizer.

use std::net::SocketAddr;

use tokenrouter_engine::TokenLogprobs;
use tokenrouter_engine::handle::EngineRequest;
use tokenrouter_scheduler::{FinishReason, Usage};

use super::http::write::{NO_RETRY, Response};
use crate::api::ApiError;

/// Where a body came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCall {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
    /// `/tokenize`: answered without the engine, like the next two.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/chat/completions/render`, `/apply-template`.
    Render,
    /// A line of the raw TCP port, which says itself what it is.
    Line,
}

impl ApiCall {
    /// Whether the engine writes the answer; otherwise [`Frontend::answer`] does.
    pub fn generates(self) -> bool {
        matches!(self, Self::Completion | Self::Chat | Self::Line)
    }

    /// A name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completion => "completions",
            Self::Chat => "chat",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Render => "render",
            Self::Line => "line",
        }
    }
}

/// What is known of a request beside its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallContext {
    /// Different for every request of every process; goes into the answer's id.
    pub unique: String,
    /// Name of the request in logs and in `x-request-id`: the client's or one made here.
    pub request_id: String,
    /// The header `X-Token-Routing`, for clients that cannot add fields to the body.
    pub token_routing: Option<String>,
    /// Who asks.
    pub client: SocketAddr,
}

/// Parses, applies the chat template and tokenizes. Runs on tokenizer threads; may take long.
pub trait Frontend: Send + Sync {
    /// Turns the body of a request into engine requests and the state of its answer.
    ///
    /// # Errors
    /// The refusal to send: bad JSON, bad values, an unknown model, a template that raised.
    fn prepare(&self, call: ApiCall, body: &[u8], context: &CallContext) -> Result<Prepared, Refusal>;

    /// Answers a call that needs no engine: the JSON body of an answer with status 200.
    ///
    /// # Errors
    /// The refusal to send.
    fn answer(&self, call: ApiCall, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let _ = (call, body);
        Err(Refusal::new(422, Some("unsupported_feature"), "this server does not offer that"))
    }
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

    /// The id in the body of the answer, for the log and for those who end requests by it.
    fn id(&self) -> &str {
        ""
    }

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
    /// The same request would meet the same failure: clients are told not to try again.
    pub hopeless: bool,
}

impl From<&ApiError> for Refusal {
    fn from(error: &ApiError) -> Self {
        Self { status: error.status, body: error.to_json(), hopeless: false }
    }
}

impl Refusal {
    /// A refusal without `param`; `type` follows from the status.
    pub fn new(status: u16, code: Option<&str>, message: &str) -> Self {
        Self { status, body: Response::error(status, code, message).body, hopeless: false }
    }

    /// Clients that repeat what failed must not repeat this.
    #[must_use]
    pub fn hopeless(self) -> Self {
        Self { hopeless: true, ..self }
    }

    /// As a whole answer. 429 and 503 tell when to try again.
    pub fn response(&self) -> Response {
        let response = Response::json(self.status, self.body.clone());
        match self.status {
            _ if self.hopeless => response.with(NO_RETRY.0, NO_RETRY.1),
            429 | 503 => response.with("Retry-After", "1"),
            _ => response,
        }
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
