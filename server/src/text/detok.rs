//! Incremental decoding: ids in, text out, as soon as a character is complete.

use crate::text::TextModel;
use crate::text::pieces::TextDecoder;
use std::sync::Arc;

/// Decodes one answer id by id.
///
/// The texts given out by [`Self::push`] and [`Self::finish`] together are [`TextModel::decode`] of all ids. At
/// most three bytes are held back, and the cost of an id depends on its own length alone.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    text: Arc<TextModel>,
    state: TextDecoder,
}

impl Detokenizer {
    /// Starts an answer. With `skip_special` special tokens contribute nothing.
    pub fn new(text: Arc<TextModel>, skip_special: bool) -> Self {
        let state = text.pieces().decoder(skip_special);
        Self { text, state }
    }

    /// Adds one id and appends to `out` what can be said now.
    pub fn push(&mut self, id: u32, out: &mut String) {
        self.text.pieces().push(&mut self.state, id, out);
    }

    /// Ends the answer: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        self.state.finish(out);
    }
}
