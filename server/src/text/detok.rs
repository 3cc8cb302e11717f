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
    /// Special tokens that are shown all the same.
    shown: Vec<u32>,
}

impl Detokenizer {
    /// Starts an answer. With `skip_special` special tokens contribute nothing.
    pub fn new(text: Arc<TextModel>, skip_special: bool) -> Self {
        let state = text.pieces().decoder(skip_special);
        Self { text, state, shown: Vec::new() }
    }

    /// Shows these tokens even where special tokens are skipped: somebody looks for their texts.
    pub(crate) fn show(&mut self, tokens: &[&str]) {
        self.shown.extend(tokens.iter().filter_map(|token| self.text.special_id(token)));
    }

    /// Adds one id and appends to `out` what can be said now.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let shown = self.shown.contains(&id);
        self.text.pieces().push(&mut self.state, id, shown, out);
    }

    /// Ends the answer: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        self.state.finish(out);
    }
}
