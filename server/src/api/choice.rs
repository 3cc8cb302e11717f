//! One answer under way: ids in, text out, and when it ends. Knows nothing of formats.

use crate::api::echo::Echo;
use crate::api::logprobs::Log;
use crate::api::request::ApiRequest;
use crate::api::split::{Delta, Splitter};
use crate::text::{Detokenizer, TextModel};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;
use tokenrouter_scheduler::{FinishReason, MAX_MODELS, Usage};

/// How a choice ended, as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// `stop`, `length`, `tool_calls` or `abort`.
    pub reason: &'static str,
    /// The stop string or stop id, or null.
    pub stop_reason: Value,
}

/// One choice of an API request.
pub(crate) struct Choice {
    detok: Detokenizer,
    split: Splitter,
    /// Tokens of the answer so far, hidden ones (end of sequence) included.
    pub ids: Vec<u32>,
    /// Who wrote each of them.
    pub models: Vec<u8>,
    /// How many of `ids` are thoughts, the tags around them included.
    pub reasoning_tokens: usize,
    /// How many of `ids` the client has been told of.
    pub reported: usize,
    /// Whether a chunk of this choice has been sent.
    pub opened: bool,
    /// Everything told so far; kept only where it is sent in one piece.
    pub whole: Delta,
    /// The prompt, when it is given back.
    pub echo: Option<Arc<Echo>>,
    /// Whether it was.
    pub echoed: bool,
    /// Log-probabilities, when they are wanted.
    pub log: Option<Log>,
    /// Index of the stop string that matched.
    stopped: Option<usize>,
    /// Set once the choice is over.
    pub finish: Option<Finish>,
    /// The engine's account, once the choice is over.
    pub usage: Usage,
}

impl Choice {
    pub(crate) fn new(request: &ApiRequest, text: &Arc<TextModel>, echo: Option<Arc<Echo>>) -> Self {
        let chars = echo.as_ref().map_or(0, |echo| echo.chars);
        let mut detok = match &echo {
            Some(echo) => echo.detokenizer(),
            None => Detokenizer::new(Arc::clone(text), request.skip_special_tokens),
        };
        detok.show(request.output.tags());
        Self {
            detok,
            log: request.logprobs.map(|_| Log::new(chars)),
            echo,
            echoed: false,
            split: Splitter::new(request),
            ids: Vec::new(),
            models: Vec::new(),
            reasoning_tokens: 0,
            reported: 0,
            opened: false,
            whole: Delta::default(),
            stopped: None,
            finish: None,
            usage: Usage::default(),
        }
    }

    /// Whether the text so far ends among the model's thoughts.
    pub(crate) fn thinking(&self) -> bool {
        self.split.thinking()
    }

    /// Whether further tokens are ignored.
    pub(crate) fn closed(&self) -> bool {
        self.finish.is_some() || self.stopped.is_some()
    }

    /// Adds a committed token and appends what it makes visible. True when it completed a stop string: then
    /// the first `ids.len()` tokens count and no others.
    pub(crate) fn push(
        &mut self,
        request: &ApiRequest,
        eos: &[u32],
        token: u32,
        model: u8,
        out: &mut Delta,
    ) -> bool {
        self.ids.push(token);
        self.models.push(model);
        let thinking = self.split.thinking();
        let stopped = !self.hidden(request, eos, token) && {
            let mut piece = String::new();
            self.detok.push(token, &mut piece);
            if let Some(log) = &mut self.log {
                log.add_text(&piece);
            }
            let matched = self.split.push(&piece, self.stoppable(request), out);
            self.stopped = self.stopped.or(matched);
            matched.is_some()
        };
        if thinking || self.split.thinking() {
            self.reasoning_tokens = self.ids.len();
        }
        stopped
    }

    /// Whether this token, the last of `ids`, ends the answer and is therefore no part of its text.
    fn hidden(&self, request: &ApiRequest, eos: &[u32], token: u32) -> bool {
        let before = self.ids.len() - 1;
        let ends = before >= request.min_tokens as usize;
        let is_eos = !request.ignore_eos && eos.contains(&token);
        let is_stop = request.stop_ids.contains(&token) && !request.include_stop;
        ends && (is_eos || is_stop)
    }

    /// Stop strings count only in text that comes after the first `min_tokens` tokens.
    fn stoppable(&self, request: &ApiRequest) -> bool {
        self.ids.len() > request.min_tokens as usize
    }

    /// Ends the choice and appends what was held back.
    pub(crate) fn end(
        &mut self,
        request: &ApiRequest,
        reason: &FinishReason,
        usage: &Usage,
        out: &mut Delta,
    ) {
        if self.stopped.is_none() {
            let mut piece = String::new();
            self.detok.finish(&mut piece);
            self.stopped = self.split.push(&piece, self.stoppable(request), out);
        }
        let matched = self.split.finish(self.stoppable(request), out);
        self.stopped = self.stopped.or(matched);
        self.usage = *usage;
        let stop_string = self.stopped.map(|index| Value::from(self.split.stop(index)));
        let (reason, stop_reason) = match (stop_string, reason) {
            (Some(stop), _) => ("stop", stop),
            (None, FinishReason::StopId(id)) => ("stop", Value::from(*id)),
            (None, FinishReason::Eos(_) | FinishReason::Stop) => ("stop", Value::Null),
            (None, FinishReason::Length) => ("length", Value::Null),
            (None, FinishReason::Cancelled | FinishReason::Failed(_)) => ("abort", Value::Null),
        };
        let reason = if reason == "stop" && self.split.calls() { "tool_calls" } else { reason };
        self.finish = Some(Finish { reason, stop_reason });
    }

    /// Tokens by writer. After a stop string those up to the stop: the engine may have gone on for a step.
    pub(crate) fn committed(&self) -> [u32; MAX_MODELS] {
        if self.finish.is_some() && self.stopped.is_none() {
            return self.usage.committed;
        }
        let mut committed = [0; MAX_MODELS];
        for &model in &self.models {
            if let Some(count) = committed.get_mut(usize::from(model)) {
                *count += 1;
            }
        }
        committed
    }

    /// Tokens that count.
    pub(crate) fn completion_tokens(&self) -> u64 {
        let over = self.finish.is_some() && self.stopped.is_none();
        if over { u64::from(self.usage.completion_tokens) } else { self.ids.len() as u64 }
    }

    /// The tokens the client has not been told of; it is now.
    pub(crate) fn take_unreported(&mut self) -> Range<usize> {
        let range = self.reported..self.ids.len();
        self.reported = self.ids.len();
        range
    }
}
