//! Log-probabilities in answers: what is kept of them, and how each endpoint shows them.
//!
//! There is one entry per committed token, whichever chunk it is told with. A token's string is its text; where its
//! bytes are no whole characters it is `bytes:` and each byte as `\xf0`, so that different tokens stay different.

use crate::api::choice::Choice;
use crate::api::echo::Echo;
use crate::api::request::{ApiKind, ApiRequest, RoutingReturn};
use crate::text::TextModel;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::ops::Range;
use tokenrouter_engine::TokenLogprobs;

/// What was said about the tokens of one choice.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Characters of prompt (if it is echoed) and answer so far.
    chars: usize,
    /// Of the prompt's tokens but the first.
    prompt: Vec<TokenLogprobs>,
    tokens: Vec<Entry>,
}

/// A token of the answer.
#[derive(Debug)]
struct Entry {
    /// Where it begins, in characters.
    offset: usize,
    logprobs: Option<Box<TokenLogprobs>>,
}

impl Log {
    /// A log of an answer that stands behind so many characters.
    pub(crate) fn new(chars: usize) -> Self {
        Self { chars, ..Self::default() }
    }

    /// Tokens of the prompt from `start` (at least 1) on.
    pub(crate) fn add_prompt(&mut self, start: usize, scores: Vec<TokenLogprobs>) {
        // Parts follow on each other; a part that did not would be a fault of ours, and is not shown at wrong places.
        if self.prompt.len() + 1 == start {
            self.prompt.extend(scores);
        }
    }

    /// The next token of the answer.
    pub(crate) fn add_token(&mut self, logprobs: Option<Box<TokenLogprobs>>) {
        self.tokens.push(Entry { offset: self.chars, logprobs });
    }

    /// The text that became known with it.
    pub(crate) fn add_text(&mut self, text: &str) {
        self.chars += text.chars().count();
    }
}

/// The member `logprobs` of a chunk or body for the tokens of `range`, and of an echoed prompt if it is told of with them.
/// Null when the request does not ask, or nothing is told.
pub(crate) fn member(
    request: &ApiRequest,
    choice: &Choice,
    text: &TextModel,
    range: Range<usize>,
    prompt: Option<&Echo>,
) -> Value {
    let Some(log) = &choice.log else { return Value::Null };
    if range.is_empty() && prompt.is_none() {
        return Value::Null;
    }
    match request.kind {
        ApiKind::Completion => arrays(choice, log, text, range, prompt),
        ApiKind::Chat => {
            let entries = range.map(|at| entry_of(request, choice, log, text, at));
            json!({"content": entries.collect::<Vec<_>>()})
        }
    }
}

/// What a token event of the line protocol says about token `at`.
pub(crate) fn of_token(request: &ApiRequest, choice: &Choice, text: &TextModel, at: usize) -> Option<Value> {
    choice.log.as_ref().map(|log| entry_of(request, choice, log, text, at))
}

/// An entry of a chat's `content`.
fn entry_of(request: &ApiRequest, choice: &Choice, log: &Log, text: &TextModel, at: usize) -> Value {
    let said = log.tokens.get(at).and_then(|entry| entry.logprobs.as_deref());
    let mut entry = token_members(text, choice.ids[at], said.map(|said| said.logprob));
    let top = said.map_or(&[][..], |said| &said.top);
    let top = top.iter().map(|(id, logprob)| Value::Object(token_members(text, *id, Some(*logprob))));
    entry.insert("top_logprobs".into(), top.collect());
    if request.routing_return == RoutingReturn::Tokens {
        entry.insert("model_index".into(), choice.models[at].into());
    }
    Value::Object(entry)
}

fn token_members(text: &TextModel, id: u32, logprob: Option<f32>) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("token".into(), token_string(text, id).into());
    map.insert("logprob".into(), logprob.map_or(Value::Null, number));
    map.insert("bytes".into(), text.token_bytes(id).unwrap_or_default().into());
    map
}

/// The parallel arrays of a completion.
fn arrays(choice: &Choice, log: &Log, text: &TextModel, range: Range<usize>, prompt: Option<&Echo>) -> Value {
    let mut arrays =
        Arrays { text, tokens: Vec::new(), own: Vec::new(), top: Vec::new(), offsets: Vec::new() };
    if let Some(echo) = prompt {
        for (at, (id, offset)) in echo.ids.iter().zip(&echo.offsets).enumerate() {
            let said = at.checked_sub(1).and_then(|before| log.prompt.get(before));
            arrays.push(*id, *offset, said);
        }
    }
    for at in range {
        if let Some(entry) = log.tokens.get(at) {
            arrays.push(choice.ids[at], entry.offset, entry.logprobs.as_deref());
        }
    }
    json!({
        "tokens": arrays.tokens,
        "token_logprobs": arrays.own,
        "top_logprobs": arrays.top,
        "text_offset": arrays.offsets,
    })
}

struct Arrays<'a> {
    text: &'a TextModel,
    tokens: Vec<Value>,
    own: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
}

impl Arrays<'_> {
    fn push(&mut self, id: u32, offset: usize, said: Option<&TokenLogprobs>) {
        let token = token_string(self.text, id);
        self.own.push(said.map_or(Value::Null, |said| number(said.logprob)));
        self.top.push(said.map_or(Value::Null, |said| self.list(id, &token, said)));
        self.tokens.push(token.into());
        self.offsets.push(offset.into());
    }

    /// The likeliest tokens by their strings, the token itself at the end if it is none of them. Of two with one string the
    /// likelier counts.
    fn list(&self, id: u32, token: &str, said: &TokenLogprobs) -> Value {
        let mut map = Map::new();
        for (id, logprob) in &said.top {
            map.entry(token_string(self.text, *id)).or_insert_with(|| number(*logprob));
        }
        if !said.top.iter().any(|(other, _)| *other == id) {
            map.entry(token).or_insert_with(|| number(said.logprob));
        }
        Value::Object(map)
    }
}

/// The shortest decimal that gives the number back.
fn number(x: f32) -> Value {
    // Adding 0 turns -0 into 0. The engine's values are finite.
    (x + 0.0).to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn token_string(text: &TextModel, id: u32) -> String {
    let bytes = text.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(String::from("bytes:"), |mut out, byte| {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
            out
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_come_back() {
        for (x, shown) in
            [(-0.0f32, "0.0"), (-0.1, "-0.1"), (-9999.0, "-9999.0"), (-1.234_567_9, "-1.2345679")]
        {
            let value = number(x);
            assert_eq!(value.to_string(), shown);
            assert_eq!(value.as_f64().unwrap() as f32, x);
        }
    }
}
