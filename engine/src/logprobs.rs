//! Log-probabilities as the engine reports them.
//!
//! They are the log-softmax of the raw logits of the model that wrote a token (or, for a token of the prompt, of the
//! model that the request starts at), before biases, penalties, temperature and filters, with padding ids left out.

/// Most entries beside a token's own.
pub const MAX_LOGPROBS: u8 = 20;

/// What a model said about one token, and about the likeliest in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the token's probability: finite, at most 0.
    pub logprob: f32,
    /// The likeliest ids with theirs, in descending order, ties by the lower id; as many as were asked for, if the
    /// vocabulary has as many.
    pub top: Vec<(u32, f32)>,
}
