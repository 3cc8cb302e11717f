//! Requests to a running engine, and what happened while all of them were decoding.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tokenrouter_engine::{
    ClientEvent, Command, EngineConfig, EngineHandle, EngineRequest, SamplingParams, start,
};
use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::{FinishReason, RouteId};

use crate::checkpoint::Random;

/// An engine with two models, and the requests that it was asked so far.
pub(crate) struct Server {
    engine: EngineHandle,
    /// Tokens of every prompt.
    prompt: usize,
    /// Prompts hold ids below this.
    vocab: usize,
    /// Tokens that a request has written before it counts as decoding.
    lead: u32,
    asked: u64,
}

/// Greedy requests of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) route: u16,
    pub(crate) count: usize,
    /// Tokens of each answer.
    pub(crate) tokens: u32,
}

/// What one model did in a window.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) steps: u64,
    /// Seconds from launch to completion, all steps together.
    pub(crate) busy: f64,
    /// Requests that it handed to the other one.
    pub(crate) handoffs: u64,
}

/// From the moment when every request was decoding until one of each kind has ended.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    /// Seconds.
    pub(crate) wall: f64,
    pub(crate) models: [Work; 2],
    /// Tokens committed.
    pub(crate) tokens: u64,
    /// Mean context of a request in tokens; right where one kind was asked.
    pub(crate) context: f64,
}

/// Of a request: tokens written, the kind of its ask, and its index there.
type Written = (u32, usize, usize);

/// The counters at a moment.
struct Moment {
    at: Instant,
    models: [Work; 2],
    tokens: u64,
}

impl Server {
    /// Starts the engine. It must be stopped by [`Self::stop`] before another one is started on the same device.
    ///
    /// # Errors
    /// The engine's own words.
    pub(crate) fn start(
        config: &EngineConfig,
        (prompt, vocab): (usize, usize),
        lead: u32,
    ) -> Result<Self, String> {
        let engine = start(config, &Registry::builtin(), Box::new(|| ())).map_err(|e| e.to_string())?;
        Ok(Self { engine, prompt, vocab, lead, asked: 0 })
    }

    /// Ends it and waits for its threads.
    pub(crate) fn stop(self) {
        // An error says that it has ended already.
        let _ = self.engine.send(Command::Shutdown);
        while self.engine.wait_report().is_some() {}
    }

    /// Asks for everything at once and waits for all answers. Of several kinds the quick ones are asked again as they end, so
    /// that all are at work until the window closes.
    ///
    /// # Errors
    /// A request that was refused or failed, an engine that ended, or no step between the last request's begin and the
    /// first one's end.
    pub(crate) fn window(&mut self, asks: &[Ask]) -> Result<Window, String> {
        let mut written: HashMap<u64, Written> = HashMap::new();
        for (kind, ask) in asks.iter().enumerate() {
            for index in 0..ask.count {
                written.insert(self.submit(ask, index)?, (0, kind, index));
            }
        }
        let (first, last) = (written.len(), self.asked);
        let (mut begin, mut end): (Option<Moment>, Option<Moment>) = (None, None);
        let (mut leading, mut ended, mut over) = (0, 0, false);
        let mut ends = vec![0u32; asks.len()];
        while ended < written.len() {
            let report = self.engine.wait_report().ok_or("the engine has ended")?;
            for event in report.events {
                match event {
                    ClientEvent::Token { client, .. } => {
                        let (count, ..) = written.get_mut(&client).ok_or("a token of no request")?;
                        *count += 1;
                        leading += usize::from(*count == self.lead && client <= last);
                    }
                    ClientEvent::Finished { client, reason: FinishReason::Failed(why), .. } => {
                        return Err(format!("request {client} failed: {why}"));
                    }
                    ClientEvent::Finished { client, .. } => {
                        ended += 1;
                        let (_, kind, index) = *written.get(&client).ok_or("the end of no request")?;
                        ends[kind] += 1;
                        over |= begin.is_some() && ends.iter().all(|n| *n > 0);
                        if !over {
                            written.insert(self.submit(&asks[kind], index)?, (0, kind, index));
                        }
                    }
                    ClientEvent::Prompt { .. } => {}
                    ClientEvent::Refused { error, .. } => return Err(error.to_string()),
                }
            }
            if begin.is_none() && leading == first {
                begin = Some(self.moment(&written));
            }
            if end.is_none() && over {
                end = Some(self.moment(&written));
            }
        }
        let (Some(begin), Some(end)) = (begin, end) else { return Err("a request wrote too little".into()) };
        self.between(&begin, &end, first)
    }

    fn between(&self, begin: &Moment, end: &Moment, requests: usize) -> Result<Window, String> {
        let mut models = end.models;
        for (model, before) in models.iter_mut().zip(begin.models) {
            model.steps -= before.steps.min(model.steps);
            model.busy -= before.busy;
            model.handoffs -= before.handoffs.min(model.handoffs);
        }
        if end.at <= begin.at || models.iter().all(|m| m.steps == 0) {
            return Err("the first answer ended before the last request was decoding".into());
        }
        Ok(Window {
            wall: (end.at - begin.at).as_secs_f64(),
            models,
            tokens: end.tokens - begin.tokens,
            context: self.prompt as f64 + (begin.tokens + end.tokens) as f64 / 2.0 / requests as f64,
        })
    }

    fn submit(&mut self, ask: &Ask, index: usize) -> Result<u64, String> {
        let request = self.request(ask, index);
        let client = request.client;
        let sent = self.engine.send(Command::Submit(Box::new(request)));
        sent.map(|()| client).map_err(|_| "the engine has ended".to_owned())
    }

    fn moment(&self, written: &HashMap<u64, Written>) -> Moment {
        let status = &self.engine.status;
        let models = [0, 1].map(|m| Work {
            steps: status.models[m].steps.load(Relaxed),
            busy: status.models[m].busy.load(Relaxed) as f64 / 1e9,
            handoffs: status.models[m].handoffs[1 - m].load(Relaxed),
        });
        Moment { at: Instant::now(), models, tokens: written.values().map(|w| u64::from(w.0)).sum() }
    }

    /// Prompts differ by index, so that no two share pages, and are the same in every window: the prefix cache then saves
    /// the time of computing them again.
    fn request(&mut self, ask: &Ask, index: usize) -> EngineRequest {
        self.asked += 1;
        let mut random = Random((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let prompt = (0..self.prompt).map(|_| (random.next() % self.vocab as u64) as u32).collect();
        EngineRequest {
            client: self.asked,
            route: RouteId(ask.route),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: index as u64,
            ignore_eos: true,
            ..EngineRequest::new(prompt, ask.tokens)
        }
    }
}

impl Window {
    /// Seconds of the wall clock for each step of a model.
    pub(crate) fn step(&self, model: usize) -> f64 {
        self.wall / self.models[model].steps as f64
    }
}
