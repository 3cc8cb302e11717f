//! What a step says about tokens beside its candidates: log-probabilities, in flat buffers that travel with the step.

use crate::logprobs::TokenLogprobs;

/// Log-probabilities of one step: of the tokens behind its scored positions, in the order of the positions, then of the
/// candidates of the rows that ask for them, in the order of the rows.
#[derive(Debug, Default)]
pub struct Scores {
    entries: Vec<Entry>,
    top: Vec<(u32, f32)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    logprob: f32,
    /// Where its part of the list ends.
    end: usize,
}

impl Scores {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.top.clear();
    }

    /// Adds an entry.
    pub fn push(&mut self, logprob: f32, top: impl IntoIterator<Item = (u32, f32)>) {
        self.top.extend(top);
        self.entries.push(Entry { logprob, end: self.top.len() });
    }

    /// Adds an entry for a row whose logits were no numbers; the row fails and nobody reads it.
    pub fn push_fault(&mut self) {
        self.push(f32::NAN, []);
    }

    /// Whether entry `index` stands for logits that were no numbers.
    pub fn is_fault(&self, index: usize) -> bool {
        self.entries.get(index).is_none_or(|entry| entry.logprob.is_nan())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether nothing was ever put in: such a one has no memory worth keeping.
    pub(crate) fn is_unused(&self) -> bool {
        self.entries.capacity() == 0
    }

    /// Entry `index`, to be kept; `None` when it is not there or has no numbers.
    pub fn get(&self, index: usize) -> Option<TokenLogprobs> {
        let entry = self.entries.get(index).filter(|entry| !entry.logprob.is_nan())?;
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].end);
        Some(TokenLogprobs { logprob: entry.logprob, top: self.top[start..entry.end].to_vec() })
    }
}
