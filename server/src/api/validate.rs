//! The fields both endpoints share: ranges, defaults, and what this server does not do.
//!
//! A bad value is 400 with `param`; a well-formed wish for something missing is 422, never ignored. Of log-probability
//! fields, `null` and `false` ask for nothing on both endpoints, and so does `top_logprobs: 0`; `logprobs: 0` of a
//! completion does ask for something: the sampled token's own.

use crate::api::ApiError;
use crate::api::fields::{Fields, integer};
use crate::api::request::{ApiKind, ApiLimits, ApiRequest, PromptInput};
use crate::api::split::OutputPlan;
use crate::api::token_routing::token_routing;
use crate::api::truncate::Truncate;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use tokenrouter_engine::{MAX_LOGPROBS, SamplingParams};

const MAX_STOPS: usize = 16;
const MAX_STOP_IDS: usize = 256;
/// Longest stop string in bytes. Every choice looks for every one of them.
const MAX_STOP_BYTES: usize = 1024;
const MAX_BIASES: usize = 1024;
/// Logits are divided and multiplied by it: further out they would not stay finite.
const REPETITION_PENALTY: RangeInclusive<f64> = 0.01..=100.0;
/// Symmetric, so that the engine's order, which is the other way round, can name every value.
const PRIORITY: RangeInclusive<i64> = -(i32::MAX as i64)..=i32::MAX as i64;
/// Longest salt in characters.
const MAX_SALT: usize = 1024;
/// No request writes more than this, whatever the context.
const MAX_TOKENS: i64 = u32::MAX as i64;

/// What the two endpoints and the line protocol do differently.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub kind: ApiKind,
    pub stream: bool,
}

/// Checks everything but the prompt.
pub(crate) fn request(
    map: &Map<String, Value>,
    limits: &ApiLimits,
    defaults: Defaults,
    prompts: Vec<PromptInput>,
) -> Result<ApiRequest, ApiError> {
    let fields = Fields::new(map);
    log_unknown(map);
    refuse_missing_features(&fields, defaults.kind)?;
    let (route, served_name) = limits.route(fields.text("model")?)?;
    let n = choices_per_prompt(&fields, limits, prompts.len())?;
    let stream = fields.flag("stream", defaults.stream)?;
    let (include_usage, continuous_usage) = stream_options(&fields, stream)?;
    let echo = fields.flag("echo", false)?;
    let max_tokens = max_tokens(&fields, echo)?;
    let most = max_tokens.unwrap_or(u32::MAX);
    let min_tokens = fields.int("min_tokens", 0..=i64::from(most))?.unwrap_or(0) as u32;
    let routing = token_routing(&fields, limits, route)?;
    fields.flag("spaces_between_special_tokens", true)?;
    Ok(ApiRequest {
        kind: defaults.kind,
        route: routing.route,
        served_name,
        prompts,
        n,
        stream,
        include_usage,
        continuous_usage,
        return_token_ids: fields.flag("return_token_ids", false)?,
        max_tokens,
        logprobs: log_probabilities(&fields, defaults.kind)?,
        echo,
        sampling: sampling(&fields, limits)?,
        seed: fields.int("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        stop: stops(&fields)?,
        include_stop: fields.flag("include_stop_str_in_output", false)?,
        stop_ids: fields.ids("stop_token_ids", limits.real_vocab, MAX_STOP_IDS)?,
        ignore_eos: fields.flag("ignore_eos", false)?,
        min_tokens,
        threshold: routing.threshold,
        max_llm_fraction: routing.max_llm_fraction,
        query_score: routing.query_score,
        truncate: Truncate::parse(&fields, limits.context_len)?,
        output: OutputPlan::default(),
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
        routing_return: routing.back,
        request_id: request_id(&fields)?,
        priority: fields.int("priority", PRIORITY)?.map_or(0, |priority| priority as i32),
        cache_salt: cache_salt(&fields)?,
    })
}

/// Every field some endpoint reads.
const KNOWN: [&str; 50] = [
    "add_generation_prompt",
    "add_special_tokens",
    "best_of",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "id",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "priority",
    "prompt",
    "reasoning_effort",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_token_ids",
    "seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "token_routing",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    "use_beam_search",
];

/// Unknown fields are ignored, as clients send many; the log tells who looks for the reason.
fn log_unknown(map: &Map<String, Value>) {
    let known = |key: &String| KNOWN.contains(&key.as_str()) || UNSUPPORTED.contains(&key.as_str());
    let unknown: Vec<&String> = map.keys().filter(|key| !known(key)).take(16).collect();
    if !unknown.is_empty() {
        tracing::debug!(fields = ?unknown, "unknown request fields are ignored");
    }
}

/// `n`, so that all prompts together have no more choices than the engine can hold. A chat's one prompt comes later.
fn choices_per_prompt(fields: &Fields<'_>, limits: &ApiLimits, prompts: usize) -> Result<u32, ApiError> {
    let n = fields.int("n", 1..=i64::from(limits.max_n))?.unwrap_or(1) as u32;
    if (n as usize).saturating_mul(prompts.max(1)) > limits.max_choices {
        let most = limits.max_choices;
        return Err(ApiError::invalid("n", format!("prompts times n must be at most {most}")));
    }
    Ok(n)
}

/// With `echo` an answer may have no token: then its prompt is what the client is after.
fn max_tokens(fields: &Fields<'_>, echo: bool) -> Result<Option<u32>, ApiError> {
    let least = i64::from(!echo);
    let old = fields.int("max_tokens", least..=MAX_TOKENS)?;
    let new = fields.int("max_completion_tokens", least..=MAX_TOKENS)?;
    Ok(new.or(old).map(|tokens| tokens as u32))
}

fn stream_options(fields: &Fields<'_>, stream: bool) -> Result<(bool, bool), ApiError> {
    let Some(options) = fields.object("stream_options")? else { return Ok((false, false)) };
    if !stream {
        return Err(ApiError::invalid("stream_options", "stream_options needs stream: true"));
    }
    let options = Fields::nested(options, "stream_options.");
    let include = options.flag("include_usage", false)?;
    let continuous = options.flag("continuous_usage_stats", false)?;
    Ok((include, include && continuous))
}

fn sampling(fields: &Fields<'_>, limits: &ApiLimits) -> Result<SamplingParams, ApiError> {
    let default = &limits.default_sampling;
    let vocab = u32::try_from(limits.real_vocab).unwrap_or(u32::MAX);
    let top_k = match fields.int("top_k", -1..=i64::from(u32::MAX))? {
        None => default.top_k,
        Some(-1) => 0,
        Some(k) => (k as u32).min(vocab),
    };
    Ok(SamplingParams {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(default.temperature),
        top_k,
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(default.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
        repetition_penalty: fields
            .number("repetition_penalty", REPETITION_PENALTY)?
            .unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0..=2.0)?
            .unwrap_or(default.frequency_penalty),
        logit_bias: logit_bias(fields, vocab)?,
    })
}

fn logit_bias(fields: &Fields<'_>, vocab: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let wrong = || {
        let last = vocab.saturating_sub(1);
        let right = format!(
            "a map of at most {MAX_BIASES} token ids (\"0\" to \"{last}\") to numbers from -100 to 100"
        );
        fields.invalid("logit_bias", &right)
    };
    if map.len() > MAX_BIASES {
        return Err(wrong());
    }
    let entry = |(key, value): (&String, &Value)| {
        // Printing the number again refuses signs, spaces and leading zeros.
        let id = key.parse::<u32>().ok().filter(|id| *id < vocab && id.to_string() == *key)?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id, bias as f32))
    };
    map.iter().map(|pair| entry(pair).ok_or_else(wrong)).collect()
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let right = format!("a string of 1 to {MAX_STOP_BYTES} bytes or a list of up to {MAX_STOPS} of them");
    let wrong = || fields.invalid("stop", &right);
    let list = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    if list.len() > MAX_STOPS {
        return Err(wrong());
    }
    let text = |value: &Value| {
        let text = value.as_str().filter(|text| (1..=MAX_STOP_BYTES).contains(&text.len()));
        text.map(str::to_owned)
    };
    list.iter().map(|value| text(value).ok_or_else(wrong)).collect()
}

fn request_id(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(id) = fields.text("request_id")? else { return Ok(None) };
    let printable = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    let wrong = || fields.invalid("request_id", "1 to 128 printable ASCII characters without spaces");
    printable.then(|| Some(id.to_owned())).ok_or_else(wrong)
}

fn cache_salt(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(salt) = fields.text("cache_salt")? else { return Ok(None) };
    if !(1..=MAX_SALT).contains(&salt.chars().count()) {
        return Err(fields.invalid("cache_salt", &format!("1 to {MAX_SALT} characters")));
    }
    Ok(Some(salt.to_owned()))
}

/// Fields that would change the answer and are not built yet.
const UNSUPPORTED: [&str; 9] = [
    "allowed_token_ids",
    "bad_words",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "logits_processors",
    "prompt_logprobs",
    "structured_outputs",
];

/// Fields of chats that would change the answer to a completion.
const OF_CHATS: [&str; 2] = ["chat_template", "documents"];

fn refuse_missing_features(fields: &Fields<'_>, kind: ApiKind) -> Result<(), ApiError> {
    let missing =
        |name: &str| Err(ApiError::unsupported(name, format!("{name} is not supported by this server")));
    let chat_only = OF_CHATS.iter().filter(|_| kind == ApiKind::Completion);
    for name in UNSUPPORTED.iter().chain(chat_only) {
        if fields.get(name).is_some() {
            return missing(name);
        }
    }
    if fields.get("best_of").is_some_and(|best| integer(best) != Some(1)) {
        return Err(ApiError::invalid("best_of", "best_of must be 1; ask for several answers with n"));
    }
    if fields.flag("use_beam_search", false)? {
        return Err(ApiError::invalid("use_beam_search", "use_beam_search must be false"));
    }
    if kind == ApiKind::Chat && fields.flag("echo", false)? {
        return missing("echo");
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid(
            "suffix",
            "suffix must be empty: text cannot be written into a gap here",
        ));
    }
    response_format(fields)
}

/// How many of the likeliest tokens are told of beside each token; none when nothing is.
fn log_probabilities(fields: &Fields<'_>, kind: ApiKind) -> Result<Option<u8>, ApiError> {
    let most = i64::from(MAX_LOGPROBS);
    let top = fields.int("top_logprobs", 0..=most)?.unwrap_or(0);
    match (fields.get("logprobs"), kind) {
        (None | Some(Value::Bool(false)), _) if top > 0 => {
            Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true"))
        }
        (None | Some(Value::Bool(false)), _) => Ok(None),
        (Some(Value::Bool(true)), ApiKind::Chat) => Ok(Some(top as u8)),
        (Some(_), ApiKind::Chat) => Err(fields.invalid("logprobs", "true or false")),
        (Some(value), ApiKind::Completion) => {
            let count = integer(value).filter(|n| (0..=most).contains(n));
            let right = format!("an integer from 0 to {most}");
            count.map(|n| Some(n as u8)).ok_or_else(|| fields.invalid("logprobs", &right))
        }
    }
}

fn response_format(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(()) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(()),
        Some("json_object" | "json_schema" | "structural_tag") => {
            let message =
                "JSON output is not supported by this server; response_format can be {\"type\":\"text\"}";
            Err(ApiError::unsupported("response_format", message))
        }
        _ => Err(fields.invalid("response_format", "an object whose type is `text`")),
    }
}
