//! Joins the network part to the API part: bytes of a request to engine requests, engine events to bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokenrouter_engine::EngineRequest;
use tokenrouter_scheduler::{FinishReason, Usage};

use crate::api::{
    Answer, AnswerContext, ApiError, ApiLimits, ApiRequest, Prepared as Prompt, Sink, parse_chat,
    parse_completion, parse_line, prepare,
};
use crate::net::frontend::{AnswerWriter, ApiCall, Frontend, Prepared, Refusal};

/// The OpenAI-compatible front end.
pub struct ApiFrontend {
    limits: ApiLimits,
    context: Arc<AnswerContext>,
    /// Makes the seeds of requests that bring none; each is different, and none is a client's to guess wrong.
    unseeded: AtomicU64,
}

impl ApiFrontend {
    /// A front end for these limits.
    pub fn new(limits: ApiLimits, context: Arc<AnswerContext>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        ApiFrontend { limits, context, unseeded: AtomicU64::new(now) }
    }

    fn parse(&self, call: ApiCall, body: &[u8]) -> Result<(ApiRequest, Sink), ApiError> {
        let text = &self.context.text;
        match call {
            ApiCall::Completion => Ok((parse_completion(body, &self.limits)?, Sink::Http)),
            ApiCall::Chat => Ok((parse_chat(body, &self.limits, text)?, Sink::Http)),
            ApiCall::Line => {
                let line = parse_line(body, &self.limits, text)?;
                Ok((line.request, Sink::Lines(line.id)))
            }
        }
    }

    fn seed(&self, request: &ApiRequest) -> u64 {
        request.seed.unwrap_or_else(|| {
            // An odd step visits every 64-bit value before one repeats.
            self.unseeded.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        })
    }
}

impl Frontend for ApiFrontend {
    fn prepare(&self, call: ApiCall, body: &[u8], unique: &str) -> Result<Prepared, Refusal> {
        let (request, sink) = self.parse(call, body).map_err(|e| Refusal::from(&e))?;
        let prompts = prepare(&request, &self.context.text, &self.limits).map_err(|e| Refusal::from(&e))?;
        let seed = self.seed(&request);
        let choices = (0..request.choices()).map(|i| engine_request(&request, &prompts, i, seed)).collect();
        let id = format!("{}{unique}", request.kind.id_prefix());
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let stream = request.stream || call == ApiCall::Line;
        let ids = prompts.into_iter().map(|p| p.ids).collect();
        let answer = Answer::new(request, id, created, self.context.clone(), ids, sink);
        Ok(Prepared { choices, stream, answer: Box::new(Writer(answer)) })
    }
}

/// One engine request per choice; the network part fills in `client`.
fn engine_request(request: &ApiRequest, prompts: &[Prompt], choice: usize, seed: u64) -> EngineRequest {
    let prompt = &prompts[request.prompt_of(choice)];
    EngineRequest {
        client: 0,
        prompt: prompt.ids.clone(),
        max_new_tokens: prompt.max_new_tokens,
        route: request.route,
        threshold: request.threshold,
        sampling: request.sampling.clone(),
        seed,
        choice: request.draw_of(choice),
        ignore_eos: request.ignore_eos,
        stop_ids: request.stop_ids.clone(),
        min_tokens: request.min_tokens,
        priority: 0,
        cache_salt: None,
    }
}

struct Writer(Answer);

impl AnswerWriter for Writer {
    fn on_token(&mut self, choice: usize, token: u32, model: u8, out: &mut Vec<u8>) -> Option<u32> {
        self.0.on_token(choice, token, model, out).map(|at| at.committed_len)
    }

    fn on_finished(&mut self, choice: usize, reason: &FinishReason, usage: &Usage, out: &mut Vec<u8>) {
        self.0.on_finished(choice, reason, usage, out);
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn final_body(&mut self) -> Vec<u8> {
        self.0.final_body()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![("x-token-routing", self.0.algorithm().to_owned())];
        if self.0.is_done() {
            headers.push(("x-token-routing-fraction", format!("{:.4}", self.0.routed_fraction())));
        }
        headers
    }
}
