//! The parts of a choice as JSON: the `message` of a plain chat answer, the `delta` of a chunk, members of a line.

use crate::api::choice::Choice;
use crate::api::request::ApiRequest;
use crate::api::settings::ReasoningField;
use crate::api::split::Delta;
use crate::api::tools::CallDelta;
use serde_json::{Map, Value, json};

/// The `message` of a plain chat answer. Its content is null where the model only called tools, or was cut short
/// while it thought.
pub(crate) fn message(request: &ApiRequest, id: &str, index: usize, choice: &Choice) -> Map<String, Value> {
    let whole = &choice.whole;
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    let silent = whole.content.is_empty() && (choice.thinking() || !whole.calls.is_empty());
    let content = if silent { Value::Null } else { whole.content.clone().into() };
    message.insert("content".into(), content);
    reasoning(&mut message, request.output.reasoning_field, whole);
    if !whole.calls.is_empty() {
        let calls: Vec<Value> = whole.calls.iter().map(|call| full_call(id, index, call)).collect();
        message.insert("tool_calls".into(), calls.into());
    }
    message
}

/// The `delta` of a chunk that is not the last of its choice.
pub(crate) fn delta(
    request: &ApiRequest,
    id: &str,
    index: usize,
    delta: &Delta,
    first: bool,
) -> Map<String, Value> {
    let mut map = Map::new();
    if first {
        map.insert("role".into(), "assistant".into());
    }
    // Some clients want a string with the role.
    if !delta.content.is_empty() || delta.is_empty() {
        map.insert("content".into(), delta.content.clone().into());
    }
    parts(&mut map, request, id, index, delta);
    map
}

/// Everything of a delta but its content, as members of a chunk's `delta` or of a line.
pub(crate) fn parts(
    map: &mut Map<String, Value>,
    request: &ApiRequest,
    id: &str,
    index: usize,
    delta: &Delta,
) {
    reasoning(map, request.output.reasoning_field, delta);
    if !delta.calls.is_empty() {
        let calls: Vec<Value> = delta.calls.iter().map(|call| call_delta(id, index, call)).collect();
        map.insert("tool_calls".into(), calls.into());
    }
}

fn reasoning(map: &mut Map<String, Value>, field: ReasoningField, delta: &Delta) {
    if !delta.reasoning.is_empty() {
        for &name in field.names() {
            map.insert(name.into(), delta.reasoning.clone().into());
        }
    }
}

/// The id of a call: that of the answer, the choice and the call's number.
fn call_id(id: &str, choice: usize, call: &CallDelta) -> String {
    let unique = id.split_once('-').map_or(id, |(_, unique)| unique);
    format!("call_{unique}_{choice}_{}", call.index)
}

fn full_call(id: &str, choice: usize, call: &CallDelta) -> Value {
    json!({"id": call_id(id, choice, call), "type": "function",
           "function": {"name": call.name, "arguments": call.arguments}})
}

fn call_delta(id: &str, choice: usize, call: &CallDelta) -> Value {
    match &call.name {
        None => json!({"index": call.index, "function": {"arguments": call.arguments}}),
        Some(_) => {
            let mut value = json!({"index": call.index});
            if let (Some(map), Value::Object(full)) = (value.as_object_mut(), full_call(id, choice, call)) {
                map.extend(full);
            }
            value
        }
    }
}
