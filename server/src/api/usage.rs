//! Token counts as clients expect them.

use serde_json::{Value, json};

/// Counts of a whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Tokens of every prompt, each counted once.
    pub prompt: u64,
    /// Tokens that belong to the answers, end-of-sequence tokens included, discarded candidates never.
    pub completion: u64,
    /// Tokens of every prompt, each counted once, that the entry model found in its cache.
    pub cached: u64,
    /// Tokens of the answers that are thoughts.
    pub reasoning: u64,
}

impl Totals {
    /// The `usage` object.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}
