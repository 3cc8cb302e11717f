//! Answers that need no engine: health, readiness, served models. They read atomics only.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokenrouter_engine::handle::{EngineInfo, EngineState, EngineStatus};
use tokenrouter_scheduler::MAX_MODELS;

use super::http::write::Response;

/// Prepared answers and the memory of the stall check.
pub(crate) struct Info {
    list: Vec<u8>,
    models: Vec<(String, Vec<u8>)>,
    names: Vec<String>,
    stall: Duration,
    /// Per model: start of the step in flight, and when it was first seen here.
    seen: [(u64, Instant); MAX_MODELS],
}

impl Info {
    /// `served` are the names in `/v1/models`; `created` is the start of the process in Unix seconds.
    pub(crate) fn new(served: &[String], engine: &EngineInfo, created: u64, stall: Duration) -> Self {
        let object = |name: &String| {
            serde_json::json!({
                "id": name, "object": "model", "created": created, "owned_by": "tokenrouter",
                "root": name, "parent": null, "max_model_len": engine.context_len, "permission": [],
            })
        };
        let objects: Vec<_> = served.iter().map(object).collect();
        let models =
            served.iter().zip(&objects).map(|(name, json)| (name.clone(), json.to_string().into_bytes()));
        let models = models.collect();
        let list = serde_json::json!({"object": "list", "data": objects}).to_string().into_bytes();
        let names = engine.models.iter().map(|model| model.name.clone()).collect();
        Self { list, models, names, stall, seen: [(0, Instant::now()); MAX_MODELS] }
    }

    /// `/v1/models`.
    pub(crate) fn list(&self) -> Response {
        Response::json(200, self.list.clone())
    }

    /// `/v1/models/{id}`.
    pub(crate) fn model(&self, name: &str) -> Response {
        match self.models.iter().find(|(served, _)| served == name) {
            Some((_, body)) => Response::json(200, body.clone()),
            None => Response::error(404, Some("model_not_found"), "there is no such model; see /v1/models"),
        }
    }

    /// `/health`: 503 when the engine has ended, or when a step has been in flight since longer than the
    /// stall limit, as far as earlier calls have seen.
    pub(crate) fn health(&mut self, status: &EngineStatus, now: Instant) -> Response {
        if status.state() == EngineState::Stopped {
            return unhealthy("engine_dead", "the engine has stopped");
        }
        let mut stalled = false;
        for (seen, model) in self.seen.iter_mut().zip(&status.models) {
            let since = model.in_flight_since.load(Ordering::Relaxed);
            if since != seen.0 {
                *seen = (since, now);
            }
            stalled |= since != 0 && now.duration_since(seen.1) >= self.stall;
        }
        if stalled {
            return unhealthy("engine_stalled", "a step of the engine does not finish");
        }
        Response::json(200, b"{\"status\":\"ok\"}".to_vec())
    }

    /// `/ready`: 503 while draining, or when the engine takes nothing.
    pub(crate) fn ready(&self, status: &EngineStatus, draining: bool) -> Response {
        let state = match status.state() {
            EngineState::Stopped => "stopped",
            EngineState::Draining => "draining",
            EngineState::Ready if draining => "draining",
            EngineState::Ready => "ready",
        };
        let models: serde_json::Map<_, _> =
            self.names.iter().map(|name| (name.clone(), serde_json::json!(state))).collect();
        let body = serde_json::json!({"status": state, "models": models}).to_string().into_bytes();
        if state == "ready" { Response::json(200, body) } else { busy(Response::json(503, body)) }
    }
}

fn unhealthy(code: &str, message: &str) -> Response {
    busy(Response::error(503, Some(code), message))
}

fn busy(response: Response) -> Response {
    response.with("Retry-After", "1")
}
