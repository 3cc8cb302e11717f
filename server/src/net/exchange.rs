//! One API request between the tokenizer threads, the engine and its connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokenrouter_engine::handle::{ClientId, RefuseError};
use tokenrouter_engine::{ModelInfo, TokenLogprobs};
use tokenrouter_scheduler::{FailKind, FinishReason, ModelId, SubmitError, Usage};

use super::frontend::{AnswerWriter, Refusal};
use super::overdue::Deadlines;
use super::record::Record;
use crate::api::ApiError;

/// An API request from its arrival to the end of its answer.
pub(crate) struct Exchange {
    /// The connection that asked.
    pub(crate) conn: u64,
    /// What the log will say.
    pub(crate) record: Record,
    /// When it is overdue.
    pub(crate) deadlines: Deadlines,
    /// Where it is.
    pub(crate) phase: Phase,
}

/// Where an exchange is.
pub(crate) enum Phase {
    /// With the tokenizer threads; the flag tells them that the client left.
    Preparing(Arc<AtomicBool>),
    /// With the engine.
    Running(Run),
}

impl Exchange {
    /// Tells the tokenizer threads, or names the choices that the engine must cancel.
    pub(crate) fn abandon(&self) -> Vec<ClientId> {
        match &self.phase {
            Phase::Preparing(cancelled) => {
                cancelled.store(true, Ordering::Relaxed);
                Vec::new()
            }
            Phase::Running(run) => run.live().collect(),
        }
    }
}

/// One choice of an answer.
struct Choice {
    client: ClientId,
    /// A stop string matched; later tokens do not count.
    stopped: bool,
    /// The engine has said its last word.
    over: bool,
    /// Tokens that came.
    received: u32,
    /// Its time is up: what has come by then is the answer.
    cut: bool,
}

/// What the engine says about one choice.
#[derive(Clone, Debug)]
pub(crate) enum ChoiceEvent {
    /// Scores of the prompt.
    Prompt { start: usize, scores: Vec<TokenLogprobs> },
    /// A token.
    Token { token: u32, model: u8, logprobs: Option<Box<TokenLogprobs>> },
    /// The end.
    Finished { reason: FinishReason, usage: Box<Usage> },
}

/// What an event led to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The answer goes on.
    More,
    /// It goes on without further tokens of this choice.
    Stop { client: ClientId, committed_len: u32 },
    /// All choices are done.
    Done,
    /// The answer cannot be finished.
    Failed(Refusal),
}

/// The answer while the engine works on it.
pub(crate) struct Run {
    answer: Box<dyn AnswerWriter>,
    /// Written piece by piece.
    pub(crate) stream: bool,
    choices: Vec<Choice>,
    /// Events that wait for room in the outbox; bounded by the tokens asked for.
    held: VecDeque<(usize, ChoiceEvent)>,
}

impl Run {
    /// An answer whose choices have the client ids `first`, `first + 1`, ...
    pub(crate) fn new(answer: Box<dyn AnswerWriter>, stream: bool, first: ClientId, choices: usize) -> Self {
        let choice = |client| Choice { client, stopped: false, over: false, received: 0, cut: false };
        let choices = (first..).take(choices).map(choice).collect();
        Self { answer, stream, choices, held: VecDeque::new() }
    }

    /// Counts an event before anything is done with it. False when it comes too late to count.
    pub(crate) fn receive(&mut self, choice: usize, event: &mut ChoiceEvent) -> bool {
        let state = &mut self.choices[choice];
        match event {
            ChoiceEvent::Token { .. } => state.received += 1,
            ChoiceEvent::Finished { reason, .. } => {
                state.over = true;
                let ended = !matches!(reason, FinishReason::Failed(_) | FinishReason::Cancelled);
                if state.cut && ended {
                    *reason = FinishReason::Length;
                }
            }
            ChoiceEvent::Prompt { .. } => {}
        }
        !(state.cut && matches!(event, ChoiceEvent::Token { .. }))
    }

    /// A choice has ended without an event of its own.
    pub(crate) fn set_over(&mut self, choice: usize) {
        self.choices[choice].over = true;
    }

    /// The time is up: every choice ends with what it has. The choices to stop, with their lengths; `None` when one
    /// has nothing yet.
    pub(crate) fn cut(&mut self) -> Option<Vec<(ClientId, u32)>> {
        let mut open: Vec<_> = self.choices.iter_mut().filter(|one| !one.over && !one.stopped).collect();
        if open.iter().any(|choice| choice.received == 0) {
            return None;
        }
        open.iter_mut().for_each(|choice| choice.cut = true);
        Some(open.iter().map(|choice| (choice.client, choice.received)).collect())
    }

    /// Choices that the engine still works on.
    pub(crate) fn live(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.choices.iter().filter(|choice| !choice.over).map(|choice| choice.client)
    }

    /// All choices, over or not.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.choices.iter().map(|choice| choice.client)
    }

    /// The client id of a choice whose tokens still count.
    pub(crate) fn counts(&self, choice: usize) -> Option<ClientId> {
        self.choices.get(choice).filter(|choice| !choice.stopped).map(|choice| choice.client)
    }

    /// Whether events wait.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Lets an event wait.
    pub(crate) fn hold(&mut self, choice: usize, event: ChoiceEvent) {
        self.held.push_back((choice, event));
    }

    /// The event that has waited longest.
    pub(crate) fn release(&mut self) -> Option<(usize, ChoiceEvent)> {
        self.held.pop_front()
    }

    /// Applies an event; bytes to stream are appended to `out`.
    /// `models` name what is lost.
    pub(crate) fn apply(
        &mut self,
        choice: usize,
        event: ChoiceEvent,
        models: &[ModelInfo],
        out: &mut Vec<u8>,
    ) -> Outcome {
        match event {
            ChoiceEvent::Token { .. } if self.choices[choice].stopped => Outcome::More,
            ChoiceEvent::Prompt { start, scores } => {
                self.answer.on_prompt(choice, start, scores, out);
                Outcome::More
            }
            ChoiceEvent::Token { token, model, logprobs } => {
                match self.answer.on_token(choice, token, model, logprobs, out) {
                    Some(committed_len) => {
                        self.choices[choice].stopped = true;
                        Outcome::Stop { client: self.choices[choice].client, committed_len }
                    }
                    None => Outcome::More,
                }
            }
            ChoiceEvent::Finished { reason: FinishReason::Failed(kind), .. } => {
                if let FailKind::ModelLost { model } = kind {
                    return Outcome::Failed(model_lost(model, models));
                }
                let text = format!("the answer could not be finished: {kind}");
                let refusal = Refusal::new(500, Some("engine_error"), &text);
                Outcome::Failed(if is_lasting(&kind) { refusal.hopeless() } else { refusal })
            }
            ChoiceEvent::Finished { reason: FinishReason::Cancelled, .. } => Outcome::Failed(shutting_down()),
            ChoiceEvent::Finished { reason, usage } => {
                self.answer.on_finished(choice, &reason, &usage, out);
                if self.answer.is_done() { Outcome::Done } else { Outcome::More }
            }
        }
    }

    /// Headers of an HTTP answer.
    pub(crate) fn headers(&self) -> Vec<(&'static str, String)> {
        self.answer.headers()
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn final_body(&mut self) -> Vec<u8> {
        self.answer.final_body()
    }
}

/// Whether the same request would most likely meet the same failure: one request of a kind that breaks a model must
/// not become three.
fn is_lasting(kind: &FailKind) -> bool {
    matches!(kind, FailKind::Row { .. } | FailKind::OutOfReach { .. } | FailKind::NoProgress { .. })
}

/// The refusal of a line without a right key before it.
pub(crate) fn no_key() -> Refusal {
    let text = "an API key is needed: send the line {\"op\":\"auth\",\"key\":\"<key>\"} first";
    Refusal::new(401, Some("invalid_api_key"), text)
}

/// The refusal of a client that speaks no TLS where it must.
pub(crate) fn plain_on_tls() -> Refusal {
    Refusal::new(400, None, "this port speaks TLS; use https, or TLS for the raw port")
}

/// The refusal while the models are loaded.
pub(crate) fn loading() -> Refusal {
    Refusal::new(503, Some("loading"), "the models are being loaded; try again later")
}

/// The refusal for a request that waited too long for its first token.
pub(crate) fn waited_too_long() -> Refusal {
    Refusal::new(503, Some("queue_timeout"), "the request waited too long; try again later")
}

/// The refusal for a request whose whole time went by without a token.
pub(crate) fn took_too_long() -> Refusal {
    Refusal::new(504, Some("request_timeout"), "the request took too long").hopeless()
}

/// The refusal for requests that meet a shutdown.
pub(crate) fn shutting_down() -> Refusal {
    Refusal::new(503, Some("draining"), "the server is shutting down")
}

/// The refusal for a full queue.
pub(crate) fn queue_full() -> Refusal {
    Refusal::new(429, Some("queue_full"), "too many requests are waiting; try again later")
}

/// The refusal when the engine has ended.
pub(crate) fn engine_dead() -> Refusal {
    Refusal::new(503, Some("engine_dead"), "the engine has stopped")
}

/// The answer to a request that the engine did not accept.
pub(crate) fn refused(error: &RefuseError, models: &[ModelInfo]) -> Refusal {
    if let RefuseError::Submit(SubmitError::ModelLost { model }) = error {
        return model_lost(*model, models);
    }
    Refusal::from(&ApiError::from_refusal(error))
}

/// The answer to a request that needs a lost model. Not its fault: elsewhere, or later, the same request may work.
fn model_lost(model: ModelId, models: &[ModelInfo]) -> Refusal {
    let name = models.get(model.index()).map_or("", |info| &info.name);
    let text = format!("the model \"{name}\" is lost, and the request needs it");
    Refusal::new(503, Some("model_lost"), &text)
}

/// The refusal when all requests together hold too many bytes.
pub(crate) fn overloaded() -> Refusal {
    Refusal::new(503, Some("overloaded"), "too many large requests are arriving; try again later")
}

/// The refusal for a connection above the limit.
pub(crate) fn too_many_connections() -> Refusal {
    Refusal::new(503, Some("too_many_connections"), "too many connections; try again later")
}

/// The refusal for a line whose id is running already.
pub(crate) fn id_in_use() -> Refusal {
    Refusal::new(400, None, "a request with this id is running on this connection")
}
