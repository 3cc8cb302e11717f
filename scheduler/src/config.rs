//! What a core is built from, what a request asks for, and every refusal with its numbers.

use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos, RouteId};
use crate::pilot::PlannerConfig;
use crate::policy::{Policy, PolicyError};
use crate::router::Threshold;
use std::fmt;

/// Limits of one model's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most rows in one batch.
    pub max_batch_rows: usize,
    /// Most tokens fed in one step; longer suffixes are cut into chunks.
    pub max_step_tokens: usize,
}

/// What a request takes along when its router sends it to another model. The token streams are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handoff {
    /// It keeps its pages and watermarks and stands in the peer's queue at once (design rule 3).
    #[default]
    Resume,
    /// For comparison, what standard serving does: the peer gets it as a new request. It publishes what it has
    /// computed, gives its pages back, waits for admission, is matched against the prefix cache block by block, and
    /// feeds again what the match does not cover. Without the prefix cache that is everything.
    Readmit,
}

/// What becomes of requests that need a model which is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerLoss {
    /// They fail by name ([`crate::FailKind::ModelLost`]); those that never come to need it go on.
    #[default]
    Fail,
    /// The models that are left write in its place, within the budget of the request, and its account says so
    /// ([`crate::Usage::degraded`]). Without one that is left, or may write on, they fail.
    Continue,
}

/// The shape of a core.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreConfig {
    /// One entry per model, at most [`MAX_MODELS`].
    pub models: Vec<ModelLimits>,
    /// Usable joint pages (a page reserved for padding is not among them).
    pub pages: usize,
    /// Most tokens (prompt and answer) of one request.
    pub context_len: usize,
    /// Most requests waiting for admission; further ones are refused.
    pub max_waiting: usize,
    /// Most admitted requests.
    pub max_running: usize,
    /// End-of-sequence ids: the union over the models.
    pub eos_ids: Vec<u32>,
    /// A ready request launches at the latest this long after its model went idle, or after eight steps of every
    /// model if that is longer. For faults; without one it never comes to it.
    pub guard: Nanos,
    /// When to launch.
    pub policy: Policy,
    /// Whether requests with a common prefix share its pages, and pages outlive their requests for later ones.
    pub prefix_cache: bool,
    /// Pages that must stay free beside those of its prompt when a request is admitted (never more than its whole
    /// lifetime needs), so that admitted requests can grow before one of them is preempted.
    pub reserve_pages: usize,
    /// Plans from the running estimates while `policy` is in force until there is a plan; none keeps to `policy`.
    pub planner: Option<PlannerConfig>,
    /// What a request takes along to another model.
    pub handoff: Handoff,
}

/// A request to be submitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewRequest {
    /// The caller's name for it, echoed in effects.
    pub client: u64,
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to write, at least one unless the prompt is scored.
    pub max_new_tokens: u32,
    /// Which configured route serves it.
    pub route: RouteId,
    /// Overrides the route's own threshold.
    pub threshold: Option<Threshold>,
    /// The most of the answer that models beside the route's entry may write (0 to 1), see
    /// [`Budget`](crate::router::Budget); the route's own limit holds beside it.
    pub max_llm_fraction: Option<f32>,
    /// A score of the whole query, for routes that choose by it (`query`).
    pub query_score: Option<f32>,
    /// Seed of every draw made for this request.
    pub seed: u64,
    /// Which of several answers to one prompt this is; keys the draws together with `seed`.
    pub choice: u32,
    /// End-of-sequence ids do not end it.
    pub ignore_eos: bool,
    /// Further ids that end it.
    pub stop_ids: Vec<u32>,
    /// Ids end the request only when at least this many tokens were written before them.
    pub min_tokens: u32,
    /// Higher is admitted first and preempted last; among equals the first come. Requests of a higher priority can
    /// keep lower ones waiting for as long as they keep coming.
    pub priority: i32,
    /// Only requests with the same salt share pages.
    pub cache_salt: Option<u64>,
    /// Every token of the prompt is fed to the model that the request starts at, none is found in its cache; then
    /// `max_new_tokens` may be 0, and the request ends with [`FinishReason::Length`](crate::FinishReason::Length) when
    /// its prompt has been fed.
    pub score_prompt: bool,
}

/// Why a core cannot be built.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigError {
    /// No model, or more than [`MAX_MODELS`].
    Models(usize),
    /// A limit that must be at least one is zero.
    Zero(&'static str),
    /// No route, or more than a [`RouteId`] can name.
    Routes(usize),
    /// A router starts outside its own reach.
    Entry {
        /// The router.
        router: String,
        /// Its entry model.
        entry: ModelId,
    },
    /// A router reaches models that are not configured.
    Reach {
        /// The router.
        router: String,
        /// The models that do not exist.
        unknown: ModelSet,
        /// How many models there are.
        models: usize,
    },
    /// The policy does not fit.
    Policy(PolicyError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Models(n) => write!(f, "{n} models are configured; 1 to {MAX_MODELS} are possible"),
            Self::Zero(what) => write!(f, "{what} must be at least 1"),
            Self::Routes(n) => write!(f, "{n} routes are configured; 1 to {} are possible", u16::MAX),
            Self::Entry { router, entry } => {
                write!(f, "router `{router}` starts at {entry}, which is outside its own reach")
            }
            Self::Reach { router, unknown, models } => {
                let first = unknown.iter().next().unwrap_or_default();
                write!(f, "router `{router}` reaches {first}, but only {models} models are configured")
            }
            Self::Policy(e) => write!(f, "policy: {e}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Why a request was not accepted. Nothing of it remains in the core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubmitError {
    /// The prompt has no token.
    EmptyPrompt,
    /// `max_new_tokens` is 0, and the prompt is not scored.
    NothingToWrite,
    /// Prompt and answer together exceed the context.
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_new_tokens: u32,
        /// Tokens possible.
        context_len: usize,
    },
    /// Prompt and answer together would not fit into the cache even with nothing else running.
    CapacityExceeded {
        /// Tokens needed at most.
        tokens: usize,
        /// Tokens the cache holds.
        capacity: usize,
    },
    /// Too many requests wait already; try again later.
    QueueFull {
        /// Requests waiting.
        waiting: usize,
    },
    /// No such route.
    UnknownRoute {
        /// The route asked for.
        route: RouteId,
        /// How many exist.
        routes: usize,
    },
    /// `min_tokens` is above `max_new_tokens`.
    MinTokens {
        /// Tokens required.
        min_tokens: u32,
        /// Tokens allowed.
        max_new_tokens: u32,
    },
    /// The threshold is not a number.
    ThresholdNotANumber,
    /// The route's router does not take this threshold.
    ThresholdRefused {
        /// The threshold.
        threshold: Threshold,
    },
    /// `max_llm_fraction` is not from 0 to 1.
    FractionOutOfRange {
        /// The fraction.
        fraction: f32,
    },
    /// The route chooses by a score of the whole query, and the request has none.
    NoQueryScore {
        /// The route.
        route: RouteId,
    },
    /// The router starts the request at a model outside its own reach.
    EntryOutOfReach {
        /// That model.
        entry: ModelId,
    },
    /// The request starts at a model that is lost, and none may write in its place.
    ModelLost {
        /// That model.
        model: ModelId,
    },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::EmptyPrompt => f.write_str("the prompt is empty; at least one token is needed"),
            Self::NothingToWrite => f.write_str("max_new_tokens is 0; at least 1 is needed"),
            Self::ContextExceeded { prompt, max_new_tokens, context_len } => write!(
                f,
                "a prompt of {prompt} tokens and {max_new_tokens} new tokens exceed the context of {context_len} tokens"
            ),
            Self::CapacityExceeded { tokens, capacity } => {
                write!(f, "up to {tokens} tokens are needed, but the cache holds {capacity} in all")
            }
            Self::QueueFull { waiting } => write!(f, "the queue is full: {waiting} requests are waiting"),
            Self::UnknownRoute { route, routes } => {
                write!(f, "route {} does not exist; there are {routes}", route.0)
            }
            Self::MinTokens { min_tokens, max_new_tokens } => {
                write!(f, "min_tokens {min_tokens} is above max_new_tokens {max_new_tokens}")
            }
            Self::ThresholdNotANumber => f.write_str("the threshold is not a number"),
            Self::ThresholdRefused { threshold } => write!(
                f,
                "the threshold {threshold} means nothing to this route; `always` and `never` do, and numbers from 0 to 1 where it compares with one"
            ),
            Self::FractionOutOfRange { fraction } => {
                write!(f, "max_llm_fraction is {fraction}, but must be from 0 to 1")
            }
            Self::NoQueryScore { route } => {
                write!(f, "route {} chooses by a query_score, which the request lacks", route.0)
            }
            Self::EntryOutOfReach { entry } => {
                write!(f, "the router starts the request at {entry}, which is outside its reach")
            }
            Self::ModelLost { model } => write!(f, "{model} is lost, and the request would start there"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// Why a completion was not accepted. The batch, if any, stays in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteError {
    /// The model has no batch in flight (or does not exist).
    NoBatch(ModelId),
    /// The number of results is not the number of rows.
    RowCount {
        /// The model.
        model: ModelId,
        /// Results given.
        results: usize,
        /// Rows in flight.
        rows: usize,
    },
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBatch(model) => write!(f, "{model} has no batch in flight"),
            Self::RowCount { model, results, rows } => {
                write!(f, "{results} results for the {rows} rows of {model}")
            }
        }
    }
}

impl std::error::Error for CompleteError {}

impl CoreConfig {
    /// Checks everything that does not need the routes.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.models.is_empty() || self.models.len() > MAX_MODELS {
            return Err(ConfigError::Models(self.models.len()));
        }
        self.policy.check(self.models.len()).map_err(ConfigError::Policy)?;
        let limits = [
            (self.pages, "pages"),
            (self.context_len, "context_len"),
            (self.max_waiting, "max_waiting"),
            (self.max_running, "max_running"),
        ];
        let steps = self
            .models
            .iter()
            .flat_map(|m| [(m.max_batch_rows, "max_batch_rows"), (m.max_step_tokens, "max_step_tokens")]);
        match limits.into_iter().chain(steps).find(|&(value, _)| value == 0) {
            Some((_, what)) => Err(ConfigError::Zero(what)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_carry_the_numbers() {
        let e = SubmitError::ContextExceeded { prompt: 5, max_new_tokens: 9, context_len: 10 }.to_string();
        assert!(e.contains('5') && e.contains('9') && e.contains("10"), "{e}");
        let e = SubmitError::CapacityExceeded { tokens: 40, capacity: 32 }.to_string();
        assert!(e.contains("40") && e.contains("32"), "{e}");
        let e = CompleteError::RowCount { model: ModelId(1), results: 2, rows: 3 }.to_string();
        assert_eq!(e, "2 results for the 3 rows of model 1");
    }
}
