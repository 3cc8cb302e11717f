//! Answers that need no engine: health, readiness, served models, metrics. They read atomics only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokenrouter_engine::{EngineInfo, EngineState, EngineStatus, ModelInfo, ModelState, ModelStatus};
use tokenrouter_scheduler::{MAX_MODELS, PeerLoss};

use super::http::write::Response;
use crate::api::{ServedRoute, model_json, models_json, scheduling_json};
use crate::metrics::{self, Facts, Traffic};

/// What is served, and the memory of the stall check.
pub(crate) struct Info {
    routes: Vec<ServedRoute>,
    /// The body of `/props`.
    props: Vec<u8>,
    /// Start of the process in Unix seconds.
    created: u64,
    engine: EngineInfo,
    stall: Duration,
    /// Per model: start of the step in flight, and when it was first seen here.
    seen: [(u64, Instant); MAX_MODELS],
}

impl Info {
    /// `routes` are what `/v1/models` lists.
    pub(crate) fn new(
        routes: Vec<ServedRoute>,
        props: Vec<u8>,
        engine: &EngineInfo,
        created: u64,
        stall: Duration,
    ) -> Self {
        let seen = [(0, Instant::now()); MAX_MODELS];
        Self { routes, props, created, engine: engine.clone(), stall, seen }
    }

    /// The name of the deployment: its first route's.
    fn name(&self) -> &str {
        self.routes.first().map_or("", |route| &route.name)
    }

    /// `/metrics`.
    pub(crate) fn metrics(&self, status: &EngineStatus, traffic: &Traffic) -> Response {
        let body = metrics::page(&self.facts(status, traffic));
        Response { content_type: metrics::CONTENT_TYPE, ..Response::json(200, body) }
    }

    /// `/v1/status`: what the status page shows. `dead` and `draining` as for [`Info::ready`].
    pub(crate) fn status_data(
        &self,
        status: &EngineStatus,
        traffic: &Traffic,
        dead: bool,
        draining: bool,
    ) -> Response {
        let body = metrics::status_json(&self.facts(status, traffic), state_of(status, dead, draining));
        Response::json(200, body.to_string().into_bytes())
    }

    fn facts<'a>(&'a self, status: &'a EngineStatus, traffic: &'a Traffic) -> Facts<'a> {
        Facts { name: self.name(), started: self.created, info: &self.engine, status, traffic }
    }

    /// `/v1/scheduling`.
    pub(crate) fn scheduling(&self, status: &EngineStatus) -> Response {
        Response::json(200, scheduling_json(&self.engine, status))
    }

    /// `/props`.
    pub(crate) fn props(&self) -> Response {
        Response::json(200, self.props.clone())
    }

    /// `/load`: `server_load` is what vLLM calls the sum.
    pub(crate) fn load(&self, status: &EngineStatus) -> Response {
        let gauge = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let (running, waiting) = (gauge(&status.running), gauge(&status.waiting));
        let body = serde_json::json!({
            "server_load": running + waiting, "running": running, "waiting": waiting,
        });
        Response::json(200, body.to_string().into_bytes())
    }

    /// `/v1/models`.
    pub(crate) fn list(&self) -> Response {
        Response::json(200, models_json(&self.routes, self.created, self.engine.context_len))
    }

    /// `/v1/models/{id}`.
    pub(crate) fn model(&self, name: &str) -> Response {
        match model_json(&self.routes, name, self.created, self.engine.context_len) {
            Ok(body) => Response::json(200, body),
            Err(error) => Response::json(error.status, error.to_json()),
        }
    }

    /// `/health`: 503 when the engine has ended, when a step has been in flight since longer than the stall limit (times
    /// what its size allows), as far
    /// as earlier calls have seen, or when a model is lost: a new start cures that. Where the operator lets others go on
    /// in its place, not while any of them is left.
    pub(crate) fn health(&mut self, status: &EngineStatus, dead: bool, now: Instant) -> Response {
        if dead {
            return unhealthy("engine_dead", "the engine has stopped");
        }
        let mut stalled = false;
        for (seen, model) in self.seen.iter_mut().zip(&status.models) {
            let since = model.in_flight_since.load(Ordering::Relaxed);
            if since != seen.0 {
                *seen = (since, now);
            }
            let lost = model.state() == ModelState::Lost;
            // A step that feeds much of a prompt takes its time.
            let times = model.in_flight_times.load(Ordering::Relaxed).clamp(1, u64::from(u32::MAX)) as u32;
            let late = now.duration_since(seen.1) >= self.stall.saturating_mul(times);
            stalled |= since != 0 && !lost && late;
        }
        let lost = self.lost(status);
        let fatal = match self.engine.faults.on_peer_loss {
            PeerLoss::Fail => !lost.is_empty(),
            PeerLoss::Continue => !lost.is_empty() && lost.len() == self.engine.models.len(),
        };
        if fatal {
            return unhealthy("model_lost", &format!("lost: {}", lost.join(", ")));
        }
        if stalled {
            return unhealthy("engine_stalled", "a step of the engine does not finish");
        }
        let body: &[u8] = if lost.is_empty() { b"{\"status\":\"ok\"}" } else { b"{\"status\":\"degraded\"}" };
        Response::json(200, body.to_vec())
    }

    /// The models that are lost, each with the reason.
    fn lost(&self, status: &EngineStatus) -> Vec<String> {
        let lost = |(info, model): (&ModelInfo, &ModelStatus)| {
            let why = model.trouble().unwrap_or_default();
            (model.state() == ModelState::Lost).then(|| format!("model \"{}\" ({why})", info.name))
        };
        self.engine.models.iter().zip(&status.models).filter_map(lost).collect()
    }

    /// `/ready`: 503 while draining, when the engine takes nothing, or when a model is lost or a step of it late. The body says what is going on: requests
    /// waiting and admitted, pages of the joint KV pool, and per model the requests in its queue, in its batch
    /// and away at a peer.
    pub(crate) fn ready(&self, status: &EngineStatus, dead: bool, draining: bool) -> Response {
        let state = match state_of(status, dead, draining) {
            "ready" => models_state(&self.engine.models, status),
            other => other,
        };
        let gauge = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let model = |(info, model): (&ModelInfo, &ModelStatus)| {
            let counts = serde_json::json!({
                "state": model.state().name(), "trouble": model.trouble().as_deref(),
                "ready": gauge(&model.ready), "running": gauge(&model.running),
                "pending": gauge(&model.pending), "steps": gauge(&model.steps),
            });
            (info.name.clone(), counts)
        };
        let models: serde_json::Map<_, _> =
            self.engine.models.iter().zip(&status.models).map(model).collect();
        let body = serde_json::json!({
            "status": state, "waiting": gauge(&status.waiting), "running": gauge(&status.running),
            "pages_free": gauge(&status.pages_free), "pages_total": gauge(&status.pages_total),
            "pages_cached": gauge(&status.pages_cached), "preemptions": gauge(&status.preemptions),
            "models": models,
        });
        let body = body.to_string().into_bytes();
        if state == "ready" { Response::json(200, body) } else { busy(Response::json(503, body)) }
    }
}

/// The worst state of the models.
fn models_state(models: &[ModelInfo], status: &EngineStatus) -> &'static str {
    let states = || models.iter().zip(&status.models).map(|(_, model)| model.state());
    let first = |wanted| states().any(|state| state == wanted).then_some(wanted);
    first(ModelState::Lost).or(first(ModelState::Stalled)).unwrap_or(ModelState::Ready).name()
}

fn state_of(status: &EngineStatus, dead: bool, draining: bool) -> &'static str {
    match status.state() {
        _ if dead => "stopped",
        EngineState::Stopped => "stopped",
        EngineState::Draining => "draining",
        EngineState::Ready if draining => "draining",
        EngineState::Ready => "ready",
    }
}

fn unhealthy(code: &str, message: &str) -> Response {
    busy(Response::error(503, Some(code), message))
}

fn busy(response: Response) -> Response {
    response.with("Retry-After", "1")
}
