//! Joins the network part to the API part: bytes of a request to engine requests, engine events to bytes.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokenrouter_engine::{EngineRequest, TokenLogprobs};
use tokenrouter_scheduler::{FinishReason, Usage};

use crate::api::{
    Answer, AnswerContext, ApiError, ApiLimits, ApiRequest, Prepared as Prompt, RoutingReturn, Sink,
    detokenize, parse_chat, parse_completion, parse_line, prepare, render, tokenize,
};
use crate::net::frontend::{AnswerWriter, ApiCall, CallContext, Frontend, Prepared, Refusal};

/// The OpenAI-compatible front end.
pub struct ApiFrontend {
    limits: ApiLimits,
    context: Arc<AnswerContext>,
    /// Makes the seeds of requests that bring none; each is different, and none is a client's to guess wrong.
    unseeded: AtomicU64,
    /// Makes numbers of cache salts: SipHash under a key that is random per process and never leaves it. A salt
    /// keeps tenants apart, so a client must not be able to look for a text with the number of another's salt; with
    /// an unkeyed hash it could, offline. By chance two of a million salts meet with a probability of 3e-8.
    salts: RandomState,
    /// Whether prompts and answers go to the log.
    log_texts: bool,
}

impl ApiFrontend {
    /// A front end for these limits.
    pub fn new(limits: ApiLimits, context: Arc<AnswerContext>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        ApiFrontend {
            limits,
            context,
            unseeded: AtomicU64::new(now),
            salts: RandomState::new(),
            log_texts: false,
        }
    }

    /// Writes every prompt and every answer to the log, as they are to the models: `log.prompts`.
    #[must_use]
    pub fn logging_texts(self, log_texts: bool) -> Self {
        Self { log_texts, ..self }
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
            // These are answered without the engine and never get here.
            ApiCall::Tokenize | ApiCall::Detokenize | ApiCall::Render => {
                Err(ApiError::engine("this call generates nothing"))
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
    fn prepare(&self, call: ApiCall, body: &[u8], context: &CallContext) -> Result<Prepared, Refusal> {
        let (mut request, sink) = self.parse(call, body).map_err(|e| Refusal::from(&e))?;
        heed_header(&mut request, context.token_routing.as_deref()).map_err(|e| Refusal::from(&e))?;
        let prompts = prepare(&request, &self.context.text, &self.limits).map_err(|e| Refusal::from(&e))?;
        let keys = Keys {
            seed: self.seed(&request),
            cache_salt: request.cache_salt.as_ref().map(|salt| self.salts.hash_one(salt)),
        };
        let choices = (0..request.choices()).map(|i| engine_request(&request, &prompts, i, keys)).collect();
        let id = format!("{}{}", request.kind.id_prefix(), context.unique);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let stream = request.stream || call == ApiCall::Line;
        let texts = self
            .log_texts
            .then(|| Texts::new(&context.request_id, &prompts, request.choices(), &self.context));
        let ids = prompts.into_iter().map(|p| p.ids).collect();
        let answer = Answer::new(request, id, created, self.context.clone(), ids, sink);
        Ok(Prepared { choices, stream, answer: Box::new(Writer(answer, texts)) })
    }

    fn answer(&self, call: ApiCall, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (limits, text) = (&self.limits, &self.context.text);
        let answer = match call {
            ApiCall::Tokenize => tokenize(body, limits, text),
            ApiCall::Detokenize => detokenize(body, limits, text),
            ApiCall::Render => render(body, limits, text),
            ApiCall::Completion | ApiCall::Chat | ApiCall::Line => {
                Err(ApiError::engine("the engine answers this call"))
            }
        };
        answer.map_err(|e| Refusal::from(&e))
    }
}

/// The header says what the body's `token_routing.return` does not.
fn heed_header(request: &mut ApiRequest, header: Option<&str>) -> Result<(), ApiError> {
    let Some(header) = header else { return Ok(()) };
    let wanted = RoutingReturn::parse(header).ok_or_else(|| {
        ApiError::invalid("x-token-routing", "the header x-token-routing must be none, summary or tokens")
    })?;
    if request.routing_return == RoutingReturn::None {
        request.routing_return = wanted;
    }
    Ok(())
}

/// What the front end makes of a request beside its text; the same for all its choices.
#[derive(Clone, Copy)]
struct Keys {
    seed: u64,
    cache_salt: Option<u64>,
}

/// One engine request per choice; the network part fills in `client`.
fn engine_request(request: &ApiRequest, prompts: &[Prompt], choice: usize, keys: Keys) -> EngineRequest {
    let prompt = &prompts[request.prompt_of(choice)];
    EngineRequest {
        route: request.route,
        threshold: request.threshold,
        max_llm_fraction: request.max_llm_fraction,
        query_score: request.query_score,
        sampling: request.sampling.clone(),
        seed: keys.seed,
        choice: request.draw_of(choice),
        ignore_eos: request.ignore_eos,
        stop_ids: request.stop_ids.clone(),
        min_tokens: request.min_tokens,
        // Clients count as vLLM does, lower first; the engine counts the other way round.
        priority: request.priority.saturating_neg(),
        cache_salt: keys.cache_salt,
        logprobs: request.logprobs,
        // Without a token to write, reading the prompt is all there is to do.
        prompt_logprobs: request.echo && (request.logprobs.is_some() || prompt.max_new_tokens == 0),
        ..EngineRequest::new(prompt.ids.clone(), prompt.max_new_tokens)
    }
}

/// What an answer leaves in the log when texts are wanted there.
struct Texts {
    request_id: String,
    context: Arc<AnswerContext>,
    /// The tokens of every choice so far.
    answers: Vec<Vec<u32>>,
}

impl Texts {
    /// Writes the prompts.
    fn new(request_id: &str, prompts: &[Prompt], choices: usize, context: &Arc<AnswerContext>) -> Self {
        for (index, prompt) in prompts.iter().enumerate() {
            let text = context.text.decode(&prompt.ids, false);
            tracing::info!(id = request_id, index, text, "prompt");
        }
        Self {
            request_id: request_id.to_owned(),
            context: context.clone(),
            answers: vec![Vec::new(); choices],
        }
    }

    fn token(&mut self, choice: usize, token: u32) {
        if let Some(answer) = self.answers.get_mut(choice) {
            answer.push(token);
        }
    }

    fn finished(&self, choice: usize, usage: &Usage) {
        let tokens = self.answers.get(choice).map_or(&[][..], |tokens| tokens);
        let counted = tokens.get(..usage.completion_tokens as usize).unwrap_or(tokens);
        let text = self.context.text.decode(counted, false);
        tracing::info!(id = self.request_id, choice, text, "answer");
    }
}

struct Writer(Answer, Option<Texts>);

impl AnswerWriter for Writer {
    fn on_prompt(&mut self, choice: usize, start: usize, scores: Vec<TokenLogprobs>, _: &mut Vec<u8>) {
        self.0.on_prompt(choice, start, scores);
    }

    fn on_token(
        &mut self,
        choice: usize,
        token: u32,
        model: u8,
        logprobs: Option<Box<TokenLogprobs>>,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        if let Some(texts) = &mut self.1 {
            texts.token(choice, token);
        }
        self.0.on_token(choice, token, model, logprobs, out).map(|at| at.committed_len)
    }

    fn on_finished(&mut self, choice: usize, reason: &FinishReason, usage: &Usage, out: &mut Vec<u8>) {
        if let Some(texts) = &self.1 {
            texts.finished(choice, usage);
        }
        self.0.on_finished(choice, reason, usage, out);
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn final_body(&mut self) -> Vec<u8> {
        self.0.final_body()
    }

    fn id(&self) -> &str {
        self.0.id()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![("x-token-routing", self.0.algorithm().to_owned())];
        if self.0.is_done() {
            headers.push(("x-token-routing-fraction", format!("{:.4}", self.0.routed_fraction())));
            if self.0.is_degraded() {
                headers.push(("x-token-routing-degraded", "true".to_owned()));
            }
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures;
    use crate::text::fixtures as text;
    use serde_json::{Value, json};

    fn front_end() -> ApiFrontend {
        let model = Arc::new(text::demo());
        ApiFrontend::new(fixtures::limits(&model, 64), fixtures::context(&model))
    }

    fn call_context() -> CallContext {
        let (unique, request_id) = ("1".to_owned(), "r".to_owned());
        CallContext { unique, request_id, token_routing: None, client: ([127, 0, 0, 1], 1).into() }
    }

    fn engine_requests(front_end: &ApiFrontend, name: &str, value: &Value) -> Vec<EngineRequest> {
        let mut body = json!({"prompt": "hi", "n": 2});
        body[name] = value.clone();
        let prepared = front_end.prepare(ApiCall::Completion, body.to_string().as_bytes(), &call_context());
        prepared.unwrap_or_else(|refusal| panic!("{}", String::from_utf8_lossy(&refusal.body))).choices
    }

    #[test]
    fn the_header_asks_where_the_body_does_not() {
        let parse = |body: &str| front_end().parse(ApiCall::Completion, body.as_bytes()).unwrap().0;
        let plain = "{\"prompt\":\"hi\"}";
        let tokens = "{\"prompt\":\"hi\",\"token_routing\":{\"return\":\"tokens\"}}";
        for (body, header, wanted) in [
            (plain, None, RoutingReturn::None),
            (plain, Some("summary"), RoutingReturn::Summary),
            (tokens, Some("summary"), RoutingReturn::Tokens),
            (tokens, None, RoutingReturn::Tokens),
        ] {
            let mut request = parse(body);
            heed_header(&mut request, header).unwrap();
            assert_eq!(request.routing_return, wanted);
        }
        let error = heed_header(&mut parse(plain), Some("everything")).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("x-token-routing")));
    }

    #[test]
    fn a_lower_priority_is_a_higher_one_for_the_engine() {
        let front_end = front_end();
        for (asked, engine) in [(0, 0), (-3, 3), (7, -7), (i32::MAX, -i32::MAX), (-i32::MAX, i32::MAX)] {
            let requests = engine_requests(&front_end, "priority", &json!(asked));
            assert_eq!(requests.iter().map(|r| r.priority).collect::<Vec<_>>(), [engine; 2], "{asked}");
        }
    }

    #[test]
    fn equal_salts_share_a_number_that_no_other_process_gives_them() {
        let front_ends = [front_end(), front_end()];
        let salt_at = |at: usize, salt: &str| {
            let requests = engine_requests(&front_ends[at], "cache_salt", &json!(salt));
            assert_eq!(requests[0].cache_salt, requests[1].cache_salt, "the choices of a request share");
            requests[0].cache_salt
        };
        assert_eq!(salt_at(0, "tenant a"), salt_at(0, "tenant a"));
        let salts = ["tenant a", "tenant b", "tenant", " tenant a", "\u{0}", "a"];
        let mut numbers: Vec<_> = salts.iter().map(|salt| salt_at(0, salt)).collect();
        numbers.push(engine_requests(&front_ends[0], "cache_salt", &Value::Null)[0].cache_salt);
        for (i, one) in numbers.iter().enumerate() {
            assert!(!numbers[..i].contains(one), "{numbers:?}");
        }
        assert_ne!(salt_at(0, "tenant a"), salt_at(1, "tenant a"), "the key is random");
    }
}
