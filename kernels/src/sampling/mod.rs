//! From logits to a token.
//!
//! Order: (padding rows at negative infinity already) logit bias, forbidden ids, repetition, then
//! frequency and presence penalties, temperature, top_k, top_p, min_p, draw. The exact rules, which
//! other devices follow as well:
//!
//! - *Rank*: larger penalised logit first, ties by the lower id. top_k, top_p and min_p each keep a
//!   leading part of the ranks; what is kept is what all three keep.
//! - *Weight* of a token with penalised logit `x`: `e = exp((x - max) / temperature)` with our own
//!   [`exp`](crate::cpu::math::exp), `w = round_ties_even(e * 2^30)`, an integer. Sums of weights are
//!   exact, so no order of summation can change a result.
//! - *top_p* keeps each rank whose predecessors weigh less than `top_p * total` (f64 product), with
//!   `total` the weight of what top_k kept; the best token always stays.
//! - *min_p* keeps `w >= min_p * 2^30`; the best token always stays.
//! - *Draw*: `target = (bits * total) / 2^64`, rounded down, with `total` the weight of all that is
//!   kept and `bits` the 64 bits of [`rng::bits`]; the token is the first one, in
//!   ascending order of ids, at which the running sum of kept weights exceeds `target`.
//!
//! A temperature below [`GREEDY`] takes the best rank and draws nothing.

mod filter;
mod penalty;
mod select;
mod weights;

use crate::cpu::Isa;
use crate::logprobs::LogSoftmax;
use crate::rng::{self, DrawKey};
use crate::signals::{RawSignals, SignalFlags, surveyed};
use crate::survey::Survey;
use filter::{Kept, filter};
use weights::Scale;

/// Temperatures below this mean arg-max.
pub const GREEDY: f32 = 1e-5;

/// How a request wants its tokens drawn. Values are validated by the server.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; below [`GREEDY`] the best token is taken.
    pub temperature: f32,
    /// Keep this many best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the best tokens that together reach this probability; 1 and above keep all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the best one's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of ids seen in prompt or output; 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of ids seen in the output.
    pub presence_penalty: f32,
    /// Subtracted from logits of ids in the output, once per occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of these ids; ids outside the vocabulary are ignored.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    /// Temperature 1, everything else neutral.
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Whether a penalty reads the history.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the best token is taken, without a draw. So it is for a temperature that is no
    /// number, which the server refuses.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature < GREEDY
    }
}

/// What one draw needs besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct SampleInput<'a> {
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// Names the random number.
    pub key: DrawKey,
    /// Prompt, then output; may be empty when no penalty is set. Ids outside the vocabulary are
    /// ignored.
    pub history: &'a [u32],
    /// How much of `history` is prompt.
    pub prompt_len: usize,
    /// Ids that must not be drawn, such as EOS before the least number of tokens; ids outside the
    /// vocabulary are ignored.
    pub forbidden: &'a [u32],
}

/// The logits allow no draw: a NaN, positive infinity, or nothing above negative infinity (in the
/// raw logits, or after bias, mask and penalties).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonFinite;

impl std::fmt::Display for NonFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the logits are not finite")
    }
}

impl std::error::Error for NonFinite {}

/// Buffers for the draws of one thread; nothing is allocated afterwards.
#[derive(Debug)]
pub struct SampleScratch {
    isa: Isa,
    /// Per id, while penalties are applied: occurrences in the output, and a mark for "seen".
    counts: Vec<u32>,
    /// Weight per id.
    weights: Vec<u32>,
    /// Sums of blocks of weights.
    sums: Vec<u64>,
    /// Rank keys of selected tokens.
    keys: Vec<u64>,
    /// Weight per bucket of ranks.
    masses: Vec<u64>,
}

impl SampleScratch {
    /// Buffers for `vocab` logits.
    pub fn new(vocab: usize) -> SampleScratch {
        SampleScratch::on(Isa::fastest(), vocab)
    }

    /// As [`SampleScratch::new`], for draws on a given code path: the same results.
    pub fn on(isa: Isa, vocab: usize) -> SampleScratch {
        let padded = vocab.next_multiple_of(8);
        SampleScratch {
            isa,
            counts: vec![0; vocab],
            weights: vec![0; padded],
            sums: Vec::with_capacity(weights::blocks(padded)),
            keys: vec![0; vocab],
            masses: Vec::with_capacity(filter::BUCKETS),
        }
    }

    /// Logits per row.
    pub fn vocab(&self) -> usize {
        self.counts.len()
    }
}

/// Draws a token from the logits of one row, which it changes (bias, mask and penalties). The
/// module text states the rules.
///
/// # Errors
/// [`NonFinite`] when the logits allow no draw.
///
/// # Panics
/// When the number of logits is not that of the scratch.
pub fn sample(
    logits: &mut [f32],
    input: &SampleInput<'_>,
    scratch: &mut SampleScratch,
) -> Result<u32, NonFinite> {
    assert_eq!(logits.len(), scratch.vocab(), "logits and scratch");
    let survey = Survey::checked(scratch.isa, logits).ok_or(NonFinite)?;
    choose(logits, survey, input, scratch)
}

/// What a step wants of one row.
#[derive(Clone, Copy, Debug)]
pub struct RowOutcome {
    /// Signals of the raw logits.
    pub signals: RawSignals,
    /// What turns the raw logits into log-probabilities; `None` when they allow no draw.
    pub softmax: Option<LogSoftmax>,
    /// The token.
    pub token: Result<u32, NonFinite>,
}

/// [`signals`](crate::signals::signals) and then [`sample`], of one row: the same bits for fewer readings of it.
///
/// # Panics
/// As [`sample`].
pub fn signals_and_sample(
    logits: &mut [f32],
    flags: SignalFlags,
    input: &SampleInput<'_>,
    scratch: &mut SampleScratch,
) -> RowOutcome {
    assert_eq!(logits.len(), scratch.vocab(), "logits and scratch");
    let survey = Survey::of(scratch.isa, logits);
    let (signals, softmax) = surveyed(scratch.isa, logits, &survey, flags);
    // The sum of the exponentials is a number for those rows only that allow a draw.
    let token = if softmax.is_some() { choose(logits, survey, input, scratch) } else { Err(NonFinite) };
    RowOutcome { signals, softmax, token }
}

/// The draw from a row that allows one and was surveyed.
fn choose(
    logits: &mut [f32],
    mut survey: Survey,
    input: &SampleInput<'_>,
    scratch: &mut SampleScratch,
) -> Result<u32, NonFinite> {
    let params = input.params;
    if penalty::apply(logits, input, &mut scratch.counts) {
        survey = Survey::checked(scratch.isa, logits).ok_or(NonFinite)?;
    }
    if params.is_greedy() {
        return survey.best(logits).map(|id| id as u32).ok_or(NonFinite);
    }
    // Finite, so that masked logits stay at negative infinity.
    let scale = Scale { max: survey.max, temperature: params.temperature.min(f32::MAX) };
    let bits = rng::bits(&input.key);
    Ok(match filter(logits, &survey, scale, params, scratch) {
        Kept::Few(kept) => weights::draw_of_few(&scratch.keys[..kept], bits),
        Kept::Many => weights::draw(&scratch.weights, &scratch.sums, bits),
    })
}
