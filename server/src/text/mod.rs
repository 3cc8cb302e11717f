//! Text: tokenizers, incremental decoding, stop strings and chat templates.

mod chat;
mod control;
mod detok;
mod error;
mod fingerprint;
mod hold;
mod methods;
mod pair_check;
mod pieces;
mod python;
mod stop;
mod template;
mod tokenizer;

pub use chat::{ChatOptions, TextOptions};
pub use control::RenderedPrompt;
pub use detok::Detokenizer;
pub use error::TextError;
pub(crate) use fingerprint::Fingerprint;
pub(crate) use hold::{hold, hold_len};
pub use pair_check::{PairMismatch, check_pair};
pub use stop::StopMatcher;
pub use tokenizer::TextModel;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
