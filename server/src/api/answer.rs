//! The state of one API request from its first token to its last byte.

use crate::api::choice::Choice;
use crate::api::echo::Echo;
use crate::api::models::ServedRoute;
use crate::api::render::{ChunkChoice, Head, body_choice};
use crate::api::request::{ApiKind, ApiRequest, RoutingReturn};
use crate::api::routing::RoutingCounts;
use crate::api::split::Delta;
use crate::api::usage::Totals;
use crate::api::{ApiError, json, line, logprobs};
use crate::text::TextModel;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokenrouter_engine::TokenLogprobs;
use tokenrouter_scheduler::{FinishReason, Usage};

/// What all answers of a server share.
#[derive(Debug)]
pub struct AnswerContext {
    /// The tokenizer.
    pub text: Arc<TextModel>,
    /// The ids that end an answer: the engine's union over all sources and models.
    pub eos_ids: Vec<u32>,
    /// The served routes; the index is the route id.
    pub routes: Vec<ServedRoute>,
    /// Names of all models; the index is the one the engine reports with each token.
    pub models: Vec<String>,
    /// Price of a million tokens fed through each model, where one is configured; missing at the end means none.
    pub prices: Vec<Option<f64>>,
    /// Changes with what the configuration says about how requests are answered.
    pub system_fingerprint: String,
}

/// Where an answer goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// An HTTP response: server-sent events when the request streams, else one JSON body.
    Http,
    /// A line protocol connection; the client's id of the request.
    Lines(Value),
}

/// A stop string is complete: the engine must stop this choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopAt {
    /// How many tokens of the choice count, the one that completed the stop string included.
    pub committed_len: u32,
}

/// How the answer is written.
enum Format {
    Body,
    Events,
    Lines(Value),
}

/// One API request being answered: a choice per prompt and `n`, fed with the engine's events.
///
/// The text of an answer never contains its end-of-sequence token, nor a stop id's unless
/// `include_stop_str_in_output` is set. Such a token is counted in `usage.completion_tokens` and present in
/// `token_ids` and `model_index`, which have one entry per committed token.
///
/// Methods append whole events to `out`: server-sent events each end with an empty line, protocol lines with a
/// line feed. For a plain HTTP answer nothing is written before [`Self::final_body`].
pub struct Answer {
    request: ApiRequest,
    context: Arc<AnswerContext>,
    format: Format,
    head: Head,
    choices: Vec<Choice>,
    prompt_ids: Vec<Vec<u32>>,
    prompt_tokens: u64,
    open: usize,
    error: Option<ApiError>,
}

impl Answer {
    /// Starts an answer. `id` is the response id (see [`ApiKind::id_prefix`]), `created` Unix seconds, `prompt_ids`
    /// the tokens of every prompt in order.
    pub fn new(
        request: ApiRequest,
        id: String,
        created: u64,
        context: Arc<AnswerContext>,
        prompt_ids: Vec<Vec<u32>>,
        sink: Sink,
    ) -> Self {
        let format = match sink {
            Sink::Lines(id) => Format::Lines(id),
            Sink::Http if request.stream => Format::Events,
            Sink::Http => Format::Body,
        };
        let echo = |(prompt, ids): (_, &Vec<u32>)| {
            let echo = || Echo::new(&context.text, prompt, ids.clone(), request.skip_special_tokens);
            request.echo.then(|| Arc::new(echo()))
        };
        let echoes: Vec<_> = request.prompts.iter().zip(&prompt_ids).map(echo).collect();
        let echo = |choice| echoes.get(request.prompt_of(choice)).cloned().flatten();
        let choices: Vec<Choice> =
            (0..request.choices()).map(|i| Choice::new(&request, &context.text, echo(i))).collect();
        let prompt_tokens = prompt_ids.iter().map(|ids| ids.len() as u64).sum();
        let head = Head { id, created, fingerprint: context.system_fingerprint.clone() };
        let open = choices.len();
        let prompt_ids = if request.return_token_ids { prompt_ids } else { Vec::new() };
        Self { request, context, format, head, choices, prompt_ids, prompt_tokens, open, error: None }
    }

    /// The request being answered.
    pub fn request(&self) -> &ApiRequest {
        &self.request
    }

    /// Tokens of a choice's prompt were scored, from index `start` on. They are told of with the echoed prompt.
    pub fn on_prompt(&mut self, choice: usize, start: usize, scores: Vec<TokenLogprobs>) {
        if let Some(log) = self.choices.get_mut(choice).and_then(|choice| choice.log.as_mut()) {
            log.add_prompt(start, scores);
        }
    }

    /// A token of a choice was committed by a model, with what that model said about it. `Some`: tell the engine to stop
    /// that choice; further tokens of it are ignored.
    pub fn on_token(
        &mut self,
        choice: usize,
        token: u32,
        model: u8,
        logprobs: Option<Box<TokenLogprobs>>,
        out: &mut Vec<u8>,
    ) -> Option<StopAt> {
        if self.error.is_some() {
            return None;
        }
        let mut delta = self.echo(choice, out);
        let state = self.choices.get_mut(choice).filter(|choice| !choice.closed())?;
        if let Some(log) = &mut state.log {
            log.add_token(logprobs);
        }
        let stopped = state.push(&self.request, &self.context.eos_ids, token, model, &mut delta);
        let committed_len = u32::try_from(state.ids.len()).unwrap_or(u32::MAX);
        match &self.format {
            Format::Lines(id) if self.request.stream => {
                state.reported = state.ids.len();
                let name = self.context.models.get(usize::from(model)).map_or("", String::as_str);
                let said = logprobs::of_token(&self.request, state, &self.context.text, state.ids.len() - 1);
                line::write_token(
                    out,
                    id,
                    (&self.request, &self.head.id),
                    choice,
                    &delta,
                    (token, name),
                    said,
                );
            }
            Format::Lines(_) | Format::Body => state.whole.add(delta),
            Format::Events => self.delta_chunk(choice, &delta, out),
        }
        stopped.then_some(StopAt { committed_len })
    }

    /// A choice is over. The last one ends the answer.
    pub fn on_finished(&mut self, choice: usize, reason: &FinishReason, usage: &Usage, out: &mut Vec<u8>) {
        if let FinishReason::Failed(why) = reason {
            return self.on_error(ApiError::from_failure(why), out);
        }
        if self.error.is_some() {
            return;
        }
        let mut delta = self.echo(choice, out);
        let Some(state) = self.choices.get_mut(choice).filter(|choice| choice.finish.is_none()) else {
            return;
        };
        state.end(&self.request, reason, usage, &mut delta);
        self.open -= 1;
        match &self.format {
            Format::Body => state.whole.add(delta),
            Format::Lines(id) => {
                state.whole.add(delta);
                let prompt = state.echo.as_deref().filter(|_| !self.request.stream);
                let range = state.reported..state.ids.len();
                let said = logprobs::member(&self.request, state, &self.context.text, range, prompt);
                line::write_finish(out, id, (&self.request, &self.head.id), choice, state, said);
            }
            Format::Events => {
                self.delta_chunk(choice, &delta, out);
                self.finish_chunk(choice, out);
            }
        }
        if self.open == 0 {
            self.end(out);
        }
    }

    /// The request failed as a whole; everything after this is ignored. The caller cancels what still runs. When
    /// nothing of a stream has been sent yet, the caller may answer with the error's own status instead of `out`.
    pub fn on_error(&mut self, error: ApiError, out: &mut Vec<u8>) {
        if self.is_done() {
            return;
        }
        match &self.format {
            Format::Body => {}
            Format::Events => {
                let mut object = Map::new();
                object.insert("error".into(), error.object());
                event(out, object);
                out.extend_from_slice(DONE);
            }
            Format::Lines(id) => out.extend(line::error_line(id, &error)),
        }
        self.error = Some(error);
    }

    /// Whether nothing more will be written.
    pub fn is_done(&self) -> bool {
        self.error.is_some() || self.open == 0
    }

    /// What ended the request before its time.
    pub fn error(&self) -> Option<&ApiError> {
        self.error.as_ref()
    }

    /// Status of a plain HTTP answer: 200, or that of the error.
    pub fn status(&self) -> u16 {
        self.error.as_ref().map_or(200, |error| error.status)
    }

    /// The body of a plain HTTP answer, once it is done; of an error, its object.
    pub fn final_body(&self) -> Vec<u8> {
        if let Some(error) = &self.error {
            return error.to_json();
        }
        let choices = self.choices.iter().enumerate();
        let choices = choices.map(|(index, choice)| {
            let (tokens, prompt) = (0..choice.ids.len(), choice.echo.as_deref());
            let said = logprobs::member(&self.request, choice, &self.context.text, tokens, prompt);
            body_choice(&self.request, &self.head.id, index, choice, self.prompt_of(index), said)
        });
        let mut body = self.head.object(&self.request, false, choices.collect());
        body.insert("usage".into(), self.totals().to_json());
        self.add_chat_prompt(&mut body);
        self.add_routing(&mut body);
        json::to_vec(&Value::Object(body))
    }

    /// Tokens of the answer so far, over all choices.
    pub fn completion_tokens(&self) -> u64 {
        self.choices.iter().map(Choice::completion_tokens).sum()
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The id in its body and events.
    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// Name of the route's router, for the header `x-token-routing`.
    pub fn algorithm(&self) -> &str {
        self.route().map_or("", |route| route.algorithm.as_str())
    }

    /// Whether others wrote in a lost model's place, for `x-token-routing-degraded`.
    pub fn is_degraded(&self) -> bool {
        self.counts().is_degraded()
    }

    /// The share of tokens that other models than the entry model wrote, for `x-token-routing-fraction`.
    pub fn routed_fraction(&self) -> f64 {
        self.route().map_or(0.0, |route| self.counts().routed_fraction(route))
    }

    fn route(&self) -> Option<&ServedRoute> {
        self.context.routes.get(usize::from(self.request.route.0))
    }

    fn totals(&self) -> Totals {
        Totals {
            prompt: self.prompt_tokens,
            completion: self.completion_tokens(),
            cached: self.cached_tokens(),
            reasoning: self.choices.iter().map(|choice| choice.reasoning_tokens as u64).sum(),
        }
    }

    /// What the entry model found of each prompt, summed. The choices of one prompt find the work of the first of
    /// them, which is not what the client asks about: the least of them counts. Known when they have ended.
    fn cached_tokens(&self) -> u64 {
        let entry = usize::from(self.route().map_or(0, |route| route.entry));
        let found = |choice: &Choice| choice.usage.cached.get(entry).copied().unwrap_or(0);
        let of_prompt = |choices: &[Choice]| u64::from(choices.iter().map(found).min().unwrap_or(0));
        self.choices.chunks(self.request.n.max(1) as usize).map(of_prompt).sum()
    }

    fn counts(&self) -> RoutingCounts {
        let mut counts = RoutingCounts::default();
        self.choices.iter().for_each(|choice| counts.add(&choice.usage, &choice.committed()));
        counts
    }

    fn routing(&self) -> Value {
        self.route().map_or(Value::Null, |route| self.counts().to_json(route, &self.context.prices))
    }

    /// The prompt's tokens, when they are to be returned.
    fn prompt_of(&self, choice: usize) -> Option<&[u32]> {
        self.prompt_ids.get(self.request.prompt_of(choice)).map(Vec::as_slice)
    }

    fn add_chat_prompt(&self, body: &mut Map<String, Value>) {
        if let (ApiKind::Chat, Some(ids)) = (self.request.kind, self.prompt_of(0)) {
            body.insert("prompt_token_ids".into(), ids.into());
        }
    }

    fn add_routing(&self, body: &mut Map<String, Value>) {
        if self.request.routing_return != RoutingReturn::None {
            body.insert("token_routing".into(), self.routing());
        }
    }

    /// The beginning of a choice's text, when its prompt is given back: with its first event. On lines the prompt has an
    /// event of its own.
    fn echo(&mut self, choice: usize, out: &mut Vec<u8>) -> Delta {
        let mut delta = Delta::default();
        let Some(state) = self.choices.get_mut(choice) else { return delta };
        let Some(echo) = state.echo.clone().filter(|_| !std::mem::replace(&mut state.echoed, true)) else {
            return delta;
        };
        match &self.format {
            Format::Lines(id) if self.request.stream => {
                let said = logprobs::member(&self.request, state, &self.context.text, 0..0, Some(&echo));
                let members = [("choice", choice.into()), ("text", echo.text.clone().into())];
                let said = state.log.is_some().then_some(("logprobs", said));
                line::write(out, id, "prompt", members.into_iter().chain(said));
            }
            _ => delta.content.push_str(&echo.text),
        }
        delta
    }

    /// Sends what is new, with every token not yet told of. Nothing when there is nothing new: held-back tokens go
    /// with a later chunk.
    fn delta_chunk(&mut self, choice: usize, delta: &Delta, out: &mut Vec<u8>) {
        if !delta.is_empty() {
            self.chunk(choice, delta, false, out);
        }
    }

    fn finish_chunk(&mut self, choice: usize, out: &mut Vec<u8>) {
        let empty = Delta::default();
        // The role comes with the first token; an answer without any text still needs it, before the finish.
        if !self.choices[choice].opened && self.request.kind == ApiKind::Chat {
            self.chunk(choice, &empty, false, out);
        }
        self.chunk(choice, &empty, true, out);
    }

    fn chunk(&mut self, index: usize, delta: &Delta, finish: bool, out: &mut Vec<u8>) {
        let last = finish && self.open == 0 && !self.request.include_usage;
        let choice = &mut self.choices[index];
        let first = !std::mem::replace(&mut choice.opened, true);
        let tokens = choice.take_unreported();
        let choice = &self.choices[index];
        let finish = choice.finish.as_ref().filter(|_| finish);
        let prompt = self.prompt_of(index).filter(|_| first);
        let echo = choice.echo.as_deref().filter(|_| first);
        let logprobs = logprobs::member(&self.request, choice, &self.context.text, tokens.clone(), echo);
        let chunk = ChunkChoice { index, delta, first, finish, tokens, logprobs };
        let chunk = chunk.to_json(&self.request, &self.head.id, choice, prompt);
        let mut object = self.head.object(&self.request, true, vec![chunk]);
        if first {
            self.add_chat_prompt(&mut object);
        }
        if self.request.continuous_usage {
            object.insert("usage".into(), self.totals().to_json());
        } else if self.request.include_usage {
            object.insert("usage".into(), Value::Null);
        }
        if last {
            self.add_routing(&mut object);
        }
        event(out, object);
    }

    /// Writes what comes after the last choice.
    fn end(&self, out: &mut Vec<u8>) {
        match &self.format {
            Format::Body => {}
            Format::Events => {
                if self.request.include_usage {
                    let mut object = self.head.object(&self.request, true, Vec::new());
                    object.insert("usage".into(), self.totals().to_json());
                    self.add_routing(&mut object);
                    event(out, object);
                }
                out.extend_from_slice(DONE);
            }
            Format::Lines(id) => {
                let members = [("usage", self.totals().to_json()), ("token_routing", self.routing())];
                line::write(out, id, "done", members);
            }
        }
    }
}

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Appends one server-sent event.
fn event(out: &mut Vec<u8>, object: Map<String, Value>) {
    out.extend_from_slice(b"data: ");
    json::write(out, &Value::Object(object));
    out.extend_from_slice(b"\n\n");
}
