//! Answers as bytes: status lines, headers, whole bodies, and streams in which each event is one chunk.

use std::time::{SystemTime, UNIX_EPOCH};

use super::HttpFault;
use super::date::http_date;

/// Further headers of an answer.
pub type Headers = Vec<(&'static str, String)>;

/// An answer with a known body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// `Content-Type`; empty for no body.
    pub content_type: &'static str,
    /// Further headers.
    pub headers: Headers,
    /// The body. For HEAD its length is announced and the bytes are left out.
    pub body: Vec<u8>,
}

impl Response {
    /// A JSON answer.
    pub fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, content_type: "application/json", headers: Vec::new(), body }
    }

    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Self { status, content_type: "", headers: Vec::new(), body: Vec::new() }
    }

    /// An OpenAI error object; `type` follows from the status.
    pub fn error(status: u16, code: Option<&str>, message: &str) -> Self {
        let body = serde_json::json!({"error": {
            "message": message, "type": error_type(status), "param": null, "code": code,
        }});
        Self::json(status, body.to_string().into_bytes())
    }

    /// The answer to a request that is no proper HTTP.
    pub fn fault(fault: HttpFault) -> Self {
        let code = if fault.status == 413 { Some("request_too_large") } else { None };
        Self::error(fault.status, code, fault.message)
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The `type` of an OpenAI error object for a status code.
pub fn error_type(status: u16) -> &'static str {
    match status {
        403 => "permission_error",
        408 | 504 => "timeout_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

/// What the request says about the shape of its answer.
#[derive(Clone, Debug)]
pub struct AnswerShape {
    /// HTTP/1.1 (false: 1.0).
    pub http11: bool,
    /// Whether the connection stays open afterwards.
    pub keep_alive: bool,
    /// The request was HEAD: no body bytes.
    pub head_only: bool,
    /// Value of `x-request-id`; empty for none.
    pub request_id: String,
    /// Headers for the browser of the page that asked.
    pub cors: Headers,
}

/// Appends a whole answer.
pub fn response(out: &mut Vec<u8>, response: &Response, shape: &AnswerShape) {
    head(out, response.status, shape);
    if !response.content_type.is_empty() {
        header(out, "Content-Type", response.content_type);
    }
    for (name, value) in &response.headers {
        header(out, name, value);
    }
    // RFC 9110 section 8.6: no Content-Length with 1xx and 204.
    if response.status != 204 {
        header(out, "Content-Length", &response.body.len().to_string());
    }
    out.extend_from_slice(b"\r\n");
    if !shape.head_only {
        out.extend_from_slice(&response.body);
    }
}

/// Appends the head of an event stream. HTTP/1.1 gets a chunked body; HTTP/1.0 a body that ends with the
/// connection.
pub fn stream_head(out: &mut Vec<u8>, headers: &Headers, shape: &AnswerShape) {
    head(out, 200, shape);
    header(out, "Content-Type", "text/event-stream; charset=utf-8");
    header(out, "Cache-Control", "no-cache");
    header(out, "X-Accel-Buffering", "no");
    for (name, value) in headers {
        header(out, name, value);
    }
    if shape.http11 {
        header(out, "Transfer-Encoding", "chunked");
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends server-sent events, each ending with an empty line, as one chunk per event.
pub fn stream_events(out: &mut Vec<u8>, events: &[u8], http11: bool) {
    if !http11 {
        out.extend_from_slice(events);
        return;
    }
    for event in split_events(events) {
        out.extend_from_slice(format!("{:x}\r\n", event.len()).as_bytes());
        out.extend_from_slice(event);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the end of a stream.
pub fn stream_end(out: &mut Vec<u8>, http11: bool) {
    if http11 {
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// Splits a run of server-sent events after each empty line. Event text is one-line JSON, so an empty line
/// ends an event and nothing else.
pub fn split_events(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.windows(2).position(|pair| pair == b"\n\n").map_or(rest.len(), |at| at + 2);
        let (event, tail) = rest.split_at(end);
        rest = tail;
        Some(event)
    })
}

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn head(out: &mut Vec<u8>, status: u16, shape: &AnswerShape) {
    let version = if shape.http11 { "1.1" } else { "1.0" };
    out.extend_from_slice(format!("HTTP/{version} {status} {}\r\n", reason(status)).as_bytes());
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    header(out, "Date", &http_date(unix));
    header(out, "Connection", if shape.keep_alive { "keep-alive" } else { "close" });
    if !shape.request_id.is_empty() {
        header(out, "x-request-id", &shape.request_id);
    }
    for (name, value) in &shape.cors {
        header(out, name, value);
    }
    // Clients that repeat what failed with 5xx must not repeat what cannot get better.
    if matches!(status, 501 | 505) {
        header(out, NO_RETRY.0, NO_RETRY.1);
    }
}

/// Tells client libraries not to send the request again.
pub const NO_RETRY: (&str, &str) = ("x-should-retry", "false");

fn header(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Reason phrase: bench tools report only this text when a request fails.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        411 => "Length Required",
        499 => "Client Closed Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}
