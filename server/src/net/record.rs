//! What the access log says: one line per request that was taken up, when it has ended.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokenrouter_engine::RouteInfo;
use tokenrouter_scheduler::{FinishReason, ModelId, ModelSet, Nanos, Usage};

use super::frontend::ApiCall;

/// What is known of one request. Counts are sums over its choices.
pub(crate) struct Record {
    /// What it asks for.
    pub(crate) call: ApiCall,
    /// Its name: the client's or one made here.
    pub(crate) request_id: String,
    /// When it arrived.
    pub(crate) arrived: Instant,
    /// Who asks.
    client: SocketAddr,
    /// The id in the body of its answer.
    pub(crate) answer_id: String,
    /// The route that answers, and the model that starts there.
    route: String,
    entry: ModelId,
    /// The models that may write.
    pub(crate) reach: ModelSet,
    /// Others wrote in the place of a lost one.
    pub(crate) degraded: bool,
    finish: &'static str,
    prompt: u64,
    cached: u64,
    completion: u64,
    own: u64,
    /// The longest wait of a choice until it was admitted.
    queue: Option<Nanos>,
    first_token: Option<Instant>,
    /// Tokens that came, also of choices that did not end.
    tokens: u64,
}

impl Record {
    /// A request that has just arrived.
    pub(crate) fn new(call: ApiCall, request_id: String, client: SocketAddr) -> Self {
        Self {
            call,
            request_id,
            arrived: Instant::now(),
            client,
            answer_id: String::new(),
            route: String::new(),
            entry: ModelId::default(),
            reach: ModelSet::default(),
            degraded: false,
            finish: "",
            prompt: 0,
            cached: 0,
            completion: 0,
            own: 0,
            queue: None,
            first_token: None,
            tokens: 0,
        }
    }

    /// The engine gets it.
    pub(crate) fn started(&mut self, answer_id: &str, route: Option<&RouteInfo>) {
        answer_id.clone_into(&mut self.answer_id);
        if let Some(route) = route {
            (self.entry, self.reach) = (route.entry, route.reach);
            route.name.clone_into(&mut self.route);
        }
    }

    /// A token came.
    pub(crate) fn token(&mut self, now: Instant) {
        self.first_token.get_or_insert(now);
        self.tokens += 1;
    }

    /// A choice has ended.
    pub(crate) fn choice(&mut self, reason: &FinishReason, usage: &Usage) {
        self.finish = word(reason);
        // Choices of one prompt repeat it, but the log tells what was worked on.
        self.prompt += u64::from(usage.prompt_tokens);
        self.cached += usage.cached.get(self.entry.index()).copied().map_or(0, u64::from);
        self.completion += u64::from(usage.completion_tokens);
        self.own += usage.committed.get(self.entry.index()).copied().map_or(0, u64::from);
        self.degraded |= usage.degraded;
        self.queue = self.queue.max(usage.times.admitted);
    }

    /// Writes the line. `outcome` is `finished`, `failed` or `cancelled`.
    pub(crate) fn log(&self, outcome: &str, status: u16) {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let finish = match outcome {
            "finished" => self.finish,
            "cancelled" => "abort",
            _ => "error",
        };
        // Tokens behind a stop string came as well, but do not count.
        let completion = if outcome == "finished" { self.completion } else { self.tokens };
        let routed = match self.completion {
            0 => None,
            all => Some(all.saturating_sub(self.own) as f64 / all as f64),
        };
        if !self.call.generates() {
            tracing::debug!(
                id = self.request_id,
                call = self.call.name(),
                status,
                outcome,
                total_ms = ms(self.arrived.elapsed()),
                client = %self.client,
                "request"
            );
            return;
        }
        tracing::info!(
            id = self.request_id,
            answer = self.answer_id,
            call = self.call.name(),
            route = self.route,
            status,
            outcome,
            finish,
            prompt_tokens = self.prompt,
            cached_tokens = self.cached,
            completion_tokens = completion,
            routed_fraction = routed,
            queue_ms = self.queue.map(|queue| queue as f64 / 1e6),
            ttft_ms = self.first_token.map(|at| ms(at - self.arrived)),
            total_ms = ms(self.arrived.elapsed()),
            degraded = self.degraded.then_some(true),
            client = %self.client,
            "request"
        );
    }
}

/// A finish reason in the words of the API.
fn word(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos(_) | FinishReason::StopId(_) | FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "abort",
        FinishReason::Failed(_) => "error",
    }
}

/// The line of a request that was not taken up.
pub(crate) fn refused(call: ApiCall, request_id: &str, client: SocketAddr, status: u16) {
    let call = call.name();
    tracing::info!(id = request_id, call, status, outcome = "refused", client = %client, "request");
}
