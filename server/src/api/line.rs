//! The raw TCP protocol: one JSON request per line in, one JSON event per line out.
//!
//! A request has the fields of `/v1/chat/completions` when it has `messages`, else those of `/v1/completions`, and
//! optionally `id`, a string or an integer, which every event about it repeats (null when absent). `stream` defaults
//! to true here. Events, each on a line of its own:
//!
//! ```text
//! {"id":1,"event":"prompt","choice":0,"text":"Who"}
//! {"id":1,"event":"token","choice":0,"text":"Max","token":77,"model":"small"}
//! {"id":1,"event":"finish","choice":0,"text":"","finish_reason":"stop","stop_reason":null}
//! {"id":1,"event":"done","usage":{...},"token_routing":{...}}
//! {"id":1,"event":"error","error":{"message":...,"type":...,"param":...,"code":...}}
//! ```
//!
//! Thoughts and tool calls are members `reasoning_content` and `tool_calls` as in a chat's stream, where there are some.
//!
//! `prompt` comes first with `echo`. There is one `token` event per committed token; its `text` is what became visible with it and may be empty
//! (half a character, a possible stop string, the end-of-sequence token). `finish` comes once per choice with the text
//! that had been held back. With `"stream": false` there are no `token` events and `finish` carries the whole
//! text, so the texts of a choice's events always make up its answer. With `return_token_ids`, `finish` has
//! `token_ids`, all of them. With `logprobs`, a `token` event has `logprobs` with the members of an entry of a chat's
//! `content`, `prompt` the arrays of a completion, and without `stream` `finish` has what the endpoint's body has. `done` or `error` is the last event of a request; a line that cannot be understood
//! gets just an `error`.

use crate::api::choice::Choice;
use crate::api::request::{ApiLimits, ApiRequest};
use crate::api::split::Delta;
use crate::api::{ApiError, chat, completions, json, message};
use crate::text::TextModel;
use serde_json::{Map, Value};

/// A request that came on a line.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRequest {
    /// The client's id: a string, an integer, or null.
    pub id: Value,
    /// The request itself.
    pub request: ApiRequest,
}

/// Checks one line (without its line feed).
///
/// # Errors
/// As [`crate::api::parse_completion`] and [`crate::api::parse_chat`]. Which id the error event carries is known to
/// the connection.
pub fn parse_line(line: &[u8], limits: &ApiLimits, text: &TextModel) -> Result<LineRequest, ApiError> {
    let map = json::parse_object(line)?;
    let id = match map.get("id") {
        None | Some(Value::Null) => Value::Null,
        Some(id) if id.is_string() || id.is_i64() || id.is_u64() => id.clone(),
        Some(_) => return Err(ApiError::invalid("id", "id must be a string or an integer")),
    };
    let request = if map.contains_key("messages") {
        chat::chat(&map, limits, text, true)?
    } else {
        completions::completion(&map, limits, true)?
    };
    Ok(LineRequest { id, request })
}

/// The `error` event with its line feed.
pub(crate) fn error_line(id: &Value, error: &ApiError) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, id, "error", [("error", error.object())]);
    out
}

/// Appends one event.
pub(crate) fn write<'a>(
    out: &mut Vec<u8>,
    id: &Value,
    event: &str,
    members: impl IntoIterator<Item = (&'a str, Value)>,
) {
    let mut map = Map::new();
    map.insert("id".into(), id.clone());
    map.insert("event".into(), event.into());
    map.extend(members.into_iter().map(|(key, value)| (key.to_owned(), value)));
    write_map(out, map);
}

fn write_map(out: &mut Vec<u8>, map: Map<String, Value>) {
    json::write(out, &Value::Object(map));
    out.push(b'\n');
}

/// Appends the `token` event of a choice. With the request goes the id of its answer, with the token its writer.
pub(crate) fn write_token(
    out: &mut Vec<u8>,
    id: &Value,
    request: (&ApiRequest, &str),
    index: usize,
    delta: &Delta,
    token: (u32, &str),
    logprobs: Option<Value>,
) {
    let mut map = Map::new();
    map.insert("id".into(), id.clone());
    map.insert("event".into(), "token".into());
    map.insert("choice".into(), index.into());
    map.insert("text".into(), delta.content.clone().into());
    message::parts(&mut map, request.0, request.1, index, delta);
    map.insert("token".into(), token.0.into());
    map.insert("model".into(), token.1.into());
    map.extend(logprobs.map(|said| ("logprobs".to_owned(), said)));
    write_map(out, map);
}

/// Appends the `finish` event of a choice.
pub(crate) fn write_finish(
    out: &mut Vec<u8>,
    id: &Value,
    request: (&ApiRequest, &str),
    index: usize,
    choice: &Choice,
    logprobs: Value,
) {
    let mut map = Map::new();
    map.insert("id".into(), id.clone());
    map.insert("event".into(), "finish".into());
    map.insert("choice".into(), index.into());
    map.insert("text".into(), choice.whole.content.clone().into());
    message::parts(&mut map, request.0, request.1, index, &choice.whole);
    if let Some(finish) = &choice.finish {
        map.insert("finish_reason".into(), finish.reason.into());
        map.insert("stop_reason".into(), finish.stop_reason.clone());
    }
    if request.0.return_token_ids {
        map.insert("token_ids".into(), choice.ids.as_slice().into());
    }
    if !logprobs.is_null() {
        map.insert("logprobs".into(), logprobs);
    }
    write_map(out, map);
}
