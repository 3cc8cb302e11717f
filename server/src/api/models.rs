//! `/v1/models`: what is served, by route name.

use crate::api::{ApiError, json};
use serde_json::{Value, json};

/// One model of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Index in the configuration; the `model_index` of its tokens.
    pub index: u8,
    /// Name from the configuration.
    pub name: String,
    /// What it does in the route, in a word: `entry` or `peer`.
    pub role: &'static str,
}

/// One served route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRoute {
    /// The id clients use as `model`.
    pub name: String,
    /// Name of its router.
    pub algorithm: String,
    /// Index of the model that starts every answer.
    pub entry: u8,
    /// The models it reaches, ascending by index.
    pub models: Vec<ServedModel>,
}

const OWNER: &str = "tokenrouter";

fn entry(route: &ServedRoute, created: u64, context_len: usize) -> Value {
    let models: Vec<Value> = route
        .models
        .iter()
        .map(|model| json!({"index": model.index, "name": model.name, "role": model.role}))
        .collect();
    json!({
        "id": route.name,
        "object": "model",
        "created": created,
        "owned_by": OWNER,
        "root": route.name,
        "parent": null,
        "max_model_len": context_len,
        "permission": [],
        "token_routing": {"algorithm": route.algorithm, "models": models},
    })
}

/// The body of `GET /v1/models`. `created` is the start of the process in Unix seconds.
pub fn models_json(routes: &[ServedRoute], created: u64, context_len: usize) -> Vec<u8> {
    let data: Vec<Value> = routes.iter().map(|route| entry(route, created, context_len)).collect();
    json::to_vec(&json!({"object": "list", "data": data}))
}

/// The body of `GET /v1/models/{id}`; `path` is the rest of the path after `/v1/models/`, percent-encoded or not.
///
/// # Errors
/// 404 for a name that is not served.
pub fn model_json(
    routes: &[ServedRoute],
    path: &str,
    created: u64,
    context_len: usize,
) -> Result<Vec<u8>, ApiError> {
    let name = percent_decoded(path.trim_end_matches('/'));
    let route = routes.iter().find(|route| route.name.as_bytes() == name);
    let missing =
        || ApiError::model_not_found(&routes.iter().map(|route| route.name.clone()).collect::<Vec<_>>());
    route.map(|route| json::to_vec(&entry(route, created, context_len))).ok_or_else(missing)
}

/// Replaces every well-formed `%XX`; anything else stays as it is.
fn percent_decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits =
            bytes.get(at + 1..at + 3).filter(|d| bytes[at] == b'%' && d.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        out.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures;

    #[test]
    fn the_list_names_every_route() {
        let routes = fixtures::routes();
        let list: Value = serde_json::from_slice(&models_json(&routes, 7, 64)).unwrap();
        assert_eq!(list["object"], "list");
        let ids: Vec<_> =
            list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["org/pair", "small", "large"]);
        let pair = &list["data"][0];
        assert_eq!((&pair["created"], &pair["max_model_len"]), (&json!(7), &json!(64)));
        assert_eq!(pair["token_routing"]["models"][1], json!({"index": 1, "name": "large", "role": "peer"}));
    }

    #[test]
    fn one_model_by_name_encoded_or_not() {
        let routes = fixtures::routes();
        for path in ["org/pair", "org%2Fpair", "org%2fpair/", "%6Frg/pair"] {
            let one: Value = serde_json::from_slice(&model_json(&routes, path, 7, 64).unwrap()).unwrap();
            assert_eq!(one["id"], "org/pair", "{path}");
        }
        for path in ["", "org", "org%2", "org%zzpair", "secret\u{2028}", "%ff"] {
            let error = model_json(&routes, path, 7, 64).unwrap_err();
            assert_eq!((error.status, error.code), (404, Some("model_not_found")));
            assert!(!error.message.contains("secret"));
        }
    }
}
