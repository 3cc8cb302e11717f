//! The JSON of responses: chunks of a stream and the one body of a plain answer.

use crate::api::choice::{Choice, Finish};
use crate::api::message;
use crate::api::request::{ApiKind, ApiRequest, RoutingReturn};
use crate::api::routing::spans;
use crate::api::split::Delta;
use serde_json::{Map, Value};
use std::ops::Range;

/// What every chunk and body of one response repeats.
pub(crate) struct Head {
    pub id: String,
    pub created: u64,
    pub fingerprint: String,
}

impl Head {
    /// A response object with these choices; further members are added by the caller.
    pub(crate) fn object(
        &self,
        request: &ApiRequest,
        streamed: bool,
        choices: Vec<Value>,
    ) -> Map<String, Value> {
        let object = match (request.kind, streamed) {
            (ApiKind::Completion, _) => "text_completion",
            (ApiKind::Chat, true) => "chat.completion.chunk",
            (ApiKind::Chat, false) => "chat.completion",
        };
        let mut map = Map::new();
        map.insert("id".into(), self.id.clone().into());
        map.insert("object".into(), object.into());
        map.insert("created".into(), self.created.into());
        map.insert("model".into(), request.served_name.clone().into());
        map.insert("system_fingerprint".into(), self.fingerprint.clone().into());
        map.insert("choices".into(), choices.into());
        map
    }
}

/// One choice in a chunk: what is new, or the finish.
pub(crate) struct ChunkChoice<'a> {
    pub index: usize,
    pub delta: &'a Delta,
    /// The first chunk of this choice.
    pub first: bool,
    pub finish: Option<&'a Finish>,
    /// Tokens told of with this chunk.
    pub tokens: Range<usize>,
    /// What is told about them.
    pub logprobs: Value,
}

impl ChunkChoice<'_> {
    /// As JSON; `id` is that of the response.
    pub(crate) fn to_json(
        &self,
        request: &ApiRequest,
        id: &str,
        choice: &Choice,
        prompt: Option<&[u32]>,
    ) -> Value {
        let mut map = Map::new();
        map.insert("index".into(), self.index.into());
        match request.kind {
            ApiKind::Completion => drop(map.insert("text".into(), self.delta.content.clone().into())),
            // The last chunk of a choice has nothing new in it.
            ApiKind::Chat if self.finish.is_some() => drop(map.insert("delta".into(), Map::new().into())),
            ApiKind::Chat => {
                let delta = message::delta(request, id, self.index, self.delta, self.first);
                map.insert("delta".into(), delta.into());
            }
        }
        finish_members(&mut map, self.finish, self.logprobs.clone());
        token_members(&mut map, request, choice, self.tokens.clone());
        if let (ApiKind::Completion, Some(ids)) = (request.kind, prompt) {
            map.insert("prompt_token_ids".into(), ids.into());
        }
        Value::Object(map)
    }
}

/// One choice in the body of a plain answer.
pub(crate) fn body_choice(
    request: &ApiRequest,
    id: &str,
    index: usize,
    choice: &Choice,
    prompt: Option<&[u32]>,
    logprobs: Value,
) -> Value {
    let mut map = Map::new();
    map.insert("index".into(), index.into());
    match request.kind {
        ApiKind::Completion => drop(map.insert("text".into(), choice.whole.content.clone().into())),
        ApiKind::Chat => {
            drop(map.insert("message".into(), message::message(request, id, index, choice).into()))
        }
    }
    finish_members(&mut map, choice.finish.as_ref(), logprobs);
    token_members(&mut map, request, choice, 0..choice.ids.len());
    if let (ApiKind::Completion, Some(ids)) = (request.kind, prompt) {
        map.insert("prompt_token_ids".into(), ids.into());
    }
    Value::Object(map)
}

fn finish_members(map: &mut Map<String, Value>, finish: Option<&Finish>, logprobs: Value) {
    map.insert("logprobs".into(), logprobs);
    map.insert("finish_reason".into(), finish.map_or(Value::Null, |finish| finish.reason.into()));
    map.insert("stop_reason".into(), finish.map_or(Value::Null, |finish| finish.stop_reason.clone()));
}

fn token_members(map: &mut Map<String, Value>, request: &ApiRequest, choice: &Choice, range: Range<usize>) {
    if request.routing_return == RoutingReturn::Tokens {
        let mut routing = Map::new();
        routing.insert("model_index".into(), choice.models[range.clone()].into());
        if choice.finish.is_some() && range.end == choice.models.len() {
            routing.insert("spans".into(), spans(&choice.models));
        }
        map.insert("token_routing".into(), routing.into());
    }
    if request.return_token_ids {
        map.insert("token_ids".into(), choice.ids[range].into());
    }
}
