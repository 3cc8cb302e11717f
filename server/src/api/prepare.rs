//! From a checked request to token ids: tokenizing and the checks that need lengths in tokens.

use crate::api::ApiError;
use crate::api::request::{ApiKind, ApiLimits, ApiRequest, PromptInput};
use crate::text::TextModel;

/// Tokens a completion writes when the client does not say.
const DEFAULT_COMPLETION_TOKENS: usize = 16;

/// One prompt, ready for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Token ids of the prompt, at least one.
    pub ids: Vec<u32>,
    /// Most tokens to write, at least one unless the prompt is given back; together they fit the context.
    pub max_new_tokens: u32,
}

/// Tokenizes every prompt of a request. Takes time proportional to the text: meant for a worker thread.
///
/// # Errors
/// 400 when a prompt is empty in tokens, cannot be tokenized, or does not fit.
pub fn prepare(
    request: &ApiRequest,
    text: &TextModel,
    limits: &ApiLimits,
) -> Result<Vec<Prepared>, ApiError> {
    request.prompts.iter().map(|prompt| prepare_one(request, prompt, text, limits)).collect()
}

/// A text with more bytes than this cannot fit. The floor leaves room for tokenizers that put several unknown
/// characters into one token.
fn most_bytes(limits: &ApiLimits, text: &TextModel) -> usize {
    limits.context_len.saturating_mul(text.longest_token().max(32))
}

/// What is cut, rendered or counted before it must fit may have this many times the bytes of what fits.
const SLACK: usize = 4;

/// Refuses a text that is not worth the time of a tokenizer thread, whatever is then done with it: others wait.
pub(crate) fn refuse_hopeless(
    param: &str,
    bytes: usize,
    limits: &ApiLimits,
    text: &TextModel,
) -> Result<(), ApiError> {
    if bytes <= most_bytes(limits, text).saturating_mul(SLACK) {
        return Ok(());
    }
    let message = format!("at most {} tokens are possible; {param} has {bytes} bytes", limits.context_len);
    Err(ApiError::context_length(param, message))
}

fn prepare_one(
    request: &ApiRequest,
    prompt: &PromptInput,
    text: &TextModel,
    limits: &ApiLimits,
) -> Result<Prepared, ApiError> {
    let param = match request.kind {
        ApiKind::Completion => "prompt",
        ApiKind::Chat => "messages",
    };
    let too_long = |prompt: &str| {
        let asked =
            request.max_tokens.map_or(String::new(), |tokens| format!(" and {tokens} were requested"));
        let message = format!("at most {} tokens are possible; the {prompt}{asked}", limits.context_len);
        Err(ApiError::context_length(param, message))
    };
    let bound = most_bytes(limits, text);
    let bytes = match prompt {
        PromptInput::Text { text, .. } => text.len(),
        PromptInput::Chat(rendered) => rendered.byte_len(),
        PromptInput::Ids(_) => 0,
    };
    if bytes > bound && request.truncate.is_none() {
        return too_long(&format!("prompt has more ({bytes} bytes)"));
    }
    refuse_hopeless(param, bytes, limits, text)?;
    let ids = match prompt {
        PromptInput::Text { text: prompt, add_special } => text.encode_prompt(prompt, *add_special),
        PromptInput::Chat(rendered) => text.encode_rendered(rendered),
        PromptInput::Ids(ids) => Ok(ids.clone()),
    };
    let mut ids = ids.map_err(|error| ApiError::from_text(param, &error))?;
    if let Some(truncate) = request.truncate {
        let least = if request.kind == ApiKind::Chat { 1 } else { DEFAULT_COMPLETION_TOKENS };
        let answer = request.max_tokens.map_or(least, |tokens| tokens as usize);
        let adds_bos = matches!(prompt, PromptInput::Text { add_special: true, .. }) && text.adds_bos();
        let bos = text.bos_id().filter(|_| adds_bos);
        truncate.apply(&mut ids, limits.context_len.saturating_sub(answer), bos);
    }
    if ids.is_empty() {
        return Err(ApiError::invalid(param, format!("{param} must not be empty")));
    }
    let left = limits.context_len.saturating_sub(ids.len());
    let wanted = match (request.max_tokens, request.kind) {
        (Some(tokens), _) => tokens as usize,
        (None, ApiKind::Completion) => left.min(DEFAULT_COMPLETION_TOKENS),
        (None, ApiKind::Chat) => left,
    };
    if left == 0 || wanted > left {
        return too_long(&format!("prompt has {}", ids.len()));
    }
    if request.min_tokens as usize > wanted {
        let message = format!("min_tokens must be at most {wanted}, the most tokens this answer can have");
        return Err(ApiError::invalid("min_tokens", message));
    }
    Ok(Prepared { ids, max_new_tokens: u32::try_from(wanted).unwrap_or(u32::MAX) })
}
