//! Fake models: the next token is a hash of the prefix.

use crate::event::{MAX_HEADS, RowResult, Signals};
use crate::ids::ModelId;
use crate::router::mix;

/// Tokens the fake models know; few, so that end-of-sequence and stop ids come up often.
pub const FAKE_VOCAB: u32 = 48;

/// Of the hash before the first token; differs by model.
pub(super) const SEED: u64 = 1_000;

/// The hash of a prefix that goes on with `token`: what a cache position holds.
pub(super) fn fold(before: u64, token: u32) -> u64 {
    mix(before.wrapping_mul(3) ^ u64::from(token)) & (u64::MAX >> 1)
}

/// What `model` says after `prefix`: a candidate, and signals spread over their ranges.
pub fn fake_result(prefix: impl Iterator<Item = u32>, model: ModelId) -> RowResult {
    let hash = prefix.fold(mix(u64::from(model.0) + 1), |h, token| mix(h ^ u64::from(token)));
    let unit = |bits: u64| (bits & 0xffff) as f32 / 65_536.0;
    let (entropy, margin) = (unit(hash >> 16), unit(hash >> 32));
    // The first head reads the hash itself, every further one another mix of it. The last one breaks now and then.
    let scores = std::array::from_fn(|head| match head {
        0 => unit(hash >> 48),
        head if head + 1 == MAX_HEADS && hash.is_multiple_of(13) => f32::NAN,
        head => unit(mix(hash ^ head as u64)),
    });
    let vocab = FAKE_VOCAB as f32;
    let signals = Signals {
        entropy: entropy * vocab.ln(),
        entropy_norm: entropy,
        margin,
        scores,
        ..Signals::default()
    };
    RowResult { token: (hash % u64::from(FAKE_VOCAB)) as u32, signals, fault: None }
}
