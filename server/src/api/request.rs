//! A checked request, and the limits it was checked against.

use crate::api::ApiError;
use crate::api::settings::ChatSettings;
use crate::api::split::OutputPlan;
use crate::api::token_routing::RoutingLimits;
use crate::api::truncate::Truncate;
use crate::text::{RenderedPrompt, TextModel};
use tokenrouter_engine::SamplingParams;
use tokenrouter_scheduler::{RouteId, Threshold};

/// What the server as configured accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiLimits {
    /// Tokens of prompt and answer together: the smallest context over all models, if the cache holds as much.
    pub context_len: usize,
    /// Token ids below this exist in every model.
    pub real_vocab: usize,
    /// Tokens of an empty prompt ([`TextModel::empty_prompt_tokens`]).
    pub empty_prompt_tokens: usize,
    /// Most answers to one prompt.
    pub max_n: u32,
    /// Most prompts in one request.
    pub max_prompts: usize,
    /// Most answers in one request, over all its prompts: what the engine can hold at all.
    pub max_choices: usize,
    /// Most messages in one chat.
    pub max_messages: usize,
    /// Names of the served routes; the index is the [`RouteId`].
    pub routes: Vec<String>,
    /// The route of a request that names no model.
    pub default_route: RouteId,
    /// Sampling parameters of a request that gives none (from `generation_config.json`, or the neutral ones).
    pub default_sampling: SamplingParams,
    /// How chats are rendered and their answers taken apart.
    pub chat: ChatSettings,
    /// What requests may set about routing.
    pub routing: RoutingLimits,
}

impl ApiLimits {
    /// The usual limits for one tokenizer, context and list of route names; the first route is the default.
    pub fn new(text: &TextModel, context_len: usize, routes: Vec<String>) -> Self {
        Self {
            context_len,
            real_vocab: text.real_vocab(),
            empty_prompt_tokens: text.empty_prompt_tokens(),
            max_n: 8,
            max_prompts: 64,
            max_choices: 320,
            max_messages: 4096,
            routes,
            default_route: RouteId(0),
            default_sampling: SamplingParams::default(),
            chat: ChatSettings::default(),
            routing: RoutingLimits::default(),
        }
    }

    /// The route a request's `model` names.
    pub(crate) fn route(&self, model: Option<&str>) -> Result<(RouteId, String), ApiError> {
        let index = match model.filter(|name| !name.is_empty()) {
            None => Some(usize::from(self.default_route.0)),
            Some(name) => self.routes.iter().position(|route| route == name),
        };
        let served = index.and_then(|i| Some((RouteId(u16::try_from(i).ok()?), self.routes.get(i)?.clone())));
        served.ok_or_else(|| ApiError::model_not_found(&self.routes))
    }
}

/// Which endpoint a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKind {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

impl ApiKind {
    /// What response ids start with: `cmpl-` or `chatcmpl-`.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Completion => "cmpl-",
            Self::Chat => "chatcmpl-",
        }
    }
}

/// One prompt, not yet tokenized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// Raw text; `add_special` lets the tokenizer add its special tokens.
    Text {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its special tokens.
        add_special: bool,
    },
    /// Token ids, checked against the vocabulary.
    Ids(Vec<u32>),
    /// A rendered chat.
    Chat(RenderedPrompt),
}

/// How much the answer says about routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutingReturn {
    /// Nothing.
    #[default]
    None,
    /// Counts per model.
    Summary,
    /// Counts, and who wrote each token.
    Tokens,
}

impl RoutingReturn {
    /// The value of `token_routing.return` or of the header `X-Token-Routing`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "summary" => Some(Self::Summary),
            "tokens" => Some(Self::Tokens),
            _ => None,
        }
    }
}

/// A checked request. Everything in it is within the limits; only lengths in tokens remain to be checked
/// ([`crate::api::prepare`]).
#[derive(Clone, Debug, PartialEq)]
pub struct ApiRequest {
    /// The endpoint.
    pub kind: ApiKind,
    /// The route that answers.
    pub route: RouteId,
    /// Its name, echoed as `model`.
    pub served_name: String,
    /// The prompts; a chat has one.
    pub prompts: Vec<PromptInput>,
    /// Answers per prompt.
    pub n: u32,
    /// Send tokens as they come.
    pub stream: bool,
    /// End the stream with a usage chunk.
    pub include_usage: bool,
    /// Put running usage in every chunk.
    pub continuous_usage: bool,
    /// Report token ids.
    pub return_token_ids: bool,
    /// Most tokens to write, when the client said so; 0 only with `echo`.
    pub max_tokens: Option<u32>,
    /// Log-probabilities are wanted, and those of so many of the likeliest tokens beside each (0 to 20).
    pub logprobs: Option<u8>,
    /// Give the prompt back in front of the answer; its log-probabilities too, if any are wanted.
    pub echo: bool,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Seed of every draw, when the client gave one (the bits of its signed number).
    pub seed: Option<u64>,
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Leave the stop string (or the text of a stop id) in the answer.
    pub include_stop: bool,
    /// Ids that end the answer.
    pub stop_ids: Vec<u32>,
    /// End-of-sequence ids do not end the answer.
    pub ignore_eos: bool,
    /// Stop strings and ids end the answer only after this many tokens.
    pub min_tokens: u32,
    /// Overrides the route's threshold.
    pub threshold: Option<Threshold>,
    /// The most of the answer that models beside the entry may write, 0 to 1.
    pub max_llm_fraction: Option<f32>,
    /// A score of the whole query, 0 to 1, for routes that choose by it.
    pub query_score: Option<f32>,
    /// Keep only the end of each prompt.
    pub truncate: Option<Truncate>,
    /// How the text is taken apart.
    pub output: OutputPlan,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// How much to say about routing.
    pub routing_return: RoutingReturn,
    /// The client's own name for the request, 1 to 128 printable ASCII characters.
    pub request_id: Option<String>,
    /// Lower is handled earlier (as in vLLM); 0 when the client gave none.
    pub priority: i32,
    /// Only requests with the same salt share cached pages; 1 to 1024 characters.
    pub cache_salt: Option<String>,
}

impl ApiRequest {
    /// How many answers the request has in all: prompts times `n`, ordered by prompt.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// Which prompt a choice answers.
    pub fn prompt_of(&self, choice: usize) -> usize {
        choice / self.n.max(1) as usize
    }

    /// Which of the answers to its prompt a choice is; keys its random draws together with the seed.
    pub fn draw_of(&self, choice: usize) -> u32 {
        (choice % self.n.max(1) as usize) as u32
    }
}
