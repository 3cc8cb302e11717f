//! One streamed answer of an OpenAI-compatible server.

use std::time::Instant;

use serde_json::{Value, json};

use super::http::{Client, Fault};
use super::sse::Events;

/// Which of the two ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
}

impl Api {
    pub(super) fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }
}

/// Which fields beside those of every server may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// `token_routing`: our server.
    pub(super) routing: bool,
    /// `return_token_ids`.
    pub(super) token_ids: bool,
    /// `cache_salt`.
    pub(super) salt: bool,
    /// `ignore_eos`.
    pub(super) ignore_eos: bool,
    /// `stream_options`.
    pub(super) usage: bool,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    /// Messages of a chat: role and content.
    Messages(Vec<(&'static str, String)>),
    Text(String),
    Ids(Vec<u32>),
}

/// How it is to be answered.
#[derive(Clone, Debug)]
pub(super) struct Terms<'a> {
    pub(super) api: Api,
    pub(super) fields: Fields,
    /// The served name.
    pub(super) model: &'a str,
    /// The router's threshold for this request.
    pub(super) threshold: Option<&'a Value>,
    pub(super) max_tokens: u32,
    /// Answer to the last token, whatever the model says.
    pub(super) to_the_end: bool,
    pub(super) temperature: f64,
    pub(super) seed: u64,
    /// Requests of different salts share no cached pages.
    pub(super) salt: &'a str,
}

/// Tokens that came together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: Instant,
    pub(super) tokens: u32,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// What of it is text: the message's content, or the reasoning where there is no more.
    pub(super) text: String,
    /// Token ids, where the server says them.
    pub(super) ids: Vec<u32>,
    /// Tokens of the answer: by the server's usage, or by the pieces that came.
    pub(super) tokens: u32,
    /// Those of the pieces, which is less where a server sends several at once and does not say how many.
    pub(super) seen: u32,
    pub(super) prompt_tokens: Option<u64>,
    /// Tokens of the prompt that the server found in a cache.
    pub(super) cached_tokens: Option<u64>,
    /// Our server's summary.
    pub(super) routing: Value,
}

/// The body of the request.
fn body(prompt: &Prompt, terms: &Terms<'_>) -> Value {
    let mut body = json!({
        "model": terms.model, "max_tokens": terms.max_tokens, "stream": true,
        "temperature": terms.temperature, "seed": terms.seed,
    });
    let (key, value): (&str, Value) = match prompt {
        Prompt::Messages(list) => {
            let message = |(role, content): &(&str, String)| json!({"role": role, "content": content});
            ("messages", list.iter().map(message).collect())
        }
        Prompt::Text(text) => ("prompt", text.as_str().into()),
        Prompt::Ids(ids) => ("prompt", ids.as_slice().into()),
    };
    body[key] = value;
    let Fields { routing, token_ids, salt, ignore_eos, usage } = terms.fields;
    if routing {
        body["token_routing"] = json!({"return": "summary"});
        if let Some(threshold) = terms.threshold {
            body["token_routing"]["threshold"] = threshold.clone();
        }
    }
    if token_ids {
        body["return_token_ids"] = true.into();
    }
    if salt {
        body["cache_salt"] = terms.salt.into();
    }
    if ignore_eos && terms.to_the_end {
        body["ignore_eos"] = true.into();
    }
    if usage {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// Asks, and hands on tokens as they come.
///
/// # Errors
/// Why there is no whole answer.
pub(super) fn ask(
    client: &mut Client<'_>,
    prompt: &Prompt,
    terms: &Terms<'_>,
    on_piece: &mut dyn FnMut(Piece),
) -> Result<Answer, Fault> {
    let (mut events, mut reader) = (Events::default(), Reader::default());
    let body = body(prompt, terms).to_string();
    client.call("POST", terms.api.path(), &body, &mut |bytes| {
        let at = Instant::now();
        events.push(bytes, &mut |data| {
            let tokens = reader.event(data);
            if tokens > 0 {
                on_piece(Piece { at, tokens });
            }
        });
    })?;
    reader.finish()
}

/// Gathers an answer from its events.
#[derive(Debug, Default)]
struct Reader {
    answer: Answer,
    reasoning: String,
    usage: Option<u32>,
    ended: bool,
    error: Option<String>,
}

impl Reader {
    /// How many tokens an event brings.
    fn event(&mut self, data: &str) -> u32 {
        if data.trim() == "[DONE]" {
            self.ended = true;
            return 0;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            self.error.get_or_insert_with(|| "an event is not JSON".into());
            return 0;
        };
        if !event["error"].is_null() {
            let said = event["error"]["message"].as_str().map(str::to_owned);
            self.error.get_or_insert_with(|| said.unwrap_or_else(|| event["error"].to_string()));
        }
        let usage = &event["usage"];
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.usage = Some(tokens as u32);
            self.answer.prompt_tokens = usage["prompt_tokens"].as_u64();
            self.answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        }
        if event["token_routing"].is_object() {
            self.answer.routing = event["token_routing"].clone();
        }
        let choice = &event["choices"][0];
        self.ended |= choice["finish_reason"].is_string();
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("");
        let thought = ["reasoning_content", "reasoning"];
        let thought = thought.iter().find_map(|key| choice["delta"][*key].as_str()).unwrap_or("");
        self.answer.text.push_str(text);
        self.reasoning.push_str(thought);
        let tokens = match choice["token_ids"].as_array() {
            Some(ids) => {
                self.answer.ids.extend(ids.iter().filter_map(Value::as_u64).map(|id| id as u32));
                ids.len() as u32
            }
            None => u32::from(!(text.is_empty() && thought.is_empty())),
        };
        self.answer.seen += tokens;
        tokens
    }

    fn finish(mut self) -> Result<Answer, Fault> {
        if let Some(error) = self.error {
            return Err(Fault::Broken(error));
        }
        if !self.ended {
            return Err(Fault::Broken("the stream ended without a finish_reason or [DONE]".into()));
        }
        self.answer.tokens = self.usage.unwrap_or(self.answer.seen);
        if self.answer.text.is_empty() {
            self.answer.text = self.reasoning;
        }
        Ok(self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[&str]) -> (Vec<u32>, Result<Answer, Fault>) {
        let mut reader = Reader::default();
        let pieces = events.iter().map(|e| reader.event(e)).collect();
        (pieces, reader.finish())
    }

    #[test]
    fn tokens_are_counted_by_ids_or_by_pieces_and_corrected_by_the_usage() {
        let (pieces, answer) = read(&[
            r#"{"choices":[{"text":"ab","token_ids":[5,6]}],"usage":null}"#,
            r#"{"choices":[{"text":"","token_ids":[],"finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}},
                "token_routing":{"switches":3}}"#,
            "[DONE]",
        ]);
        let answer = answer.expect("whole");
        assert_eq!(pieces, [2, 0, 0, 0]);
        assert_eq!((answer.ids, answer.tokens, answer.seen), (vec![5, 6], 2, 2));
        assert_eq!((answer.prompt_tokens, answer.cached_tokens), (Some(4), Some(1)));
        assert_eq!(answer.routing["switches"], 3);
        let (pieces, answer) = read(&[
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"content":"two words"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"completion_tokens":4}}"#,
        ]);
        let answer = answer.expect("whole");
        assert_eq!((pieces, answer.tokens, answer.seen), (vec![0, 1, 1, 0], 4, 2));
        assert_eq!(answer.text, "two words");
    }

    #[test]
    fn errors_in_the_stream_and_early_ends_are_faults() {
        let told = read(&[r#"{"error":{"message":"model large is lost"}}"#, "[DONE]"]).1;
        assert_eq!(told.expect_err("told"), Fault::Broken("model large is lost".into()));
        assert!(read(&[r#"{"choices":[{"text":"a"}]}"#]).1.is_err());
        assert!(read(&["{", "[DONE]"]).1.is_err());
    }

    #[test]
    fn only_what_a_server_knows_is_sent() {
        let threshold = json!(0.5);
        let terms = |fields| Terms {
            api: Api::Completions,
            fields,
            model: "m",
            threshold: Some(&threshold),
            max_tokens: 7,
            to_the_end: true,
            temperature: 0.0,
            seed: 3,
            salt: "s",
        };
        let plain = body(&Prompt::Ids(vec![1, 2]), &terms(Fields::default()));
        let keys: Vec<&str> = plain.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["model", "max_tokens", "stream", "temperature", "seed", "prompt"]);
        let all = Fields { routing: true, token_ids: true, salt: true, ignore_eos: true, usage: true };
        let full = body(&Prompt::Messages(vec![("user", "hi".into())]), &terms(all));
        assert_eq!(full["token_routing"], json!({"return": "summary", "threshold": 0.5}));
        assert_eq!((&full["ignore_eos"], &full["messages"][0]["content"]), (&json!(true), &json!("hi")));
    }
}
