//! Learned router heads: small networks that score inside the step, on the model's own hidden states (after the final
//! norm), where the logits lie.
//!
//! A head belongs to one model and is a *router file*: a folder with `router.json` ([`RouterFile`]) and
//! `router.safetensors`. Head `h` of a model writes `scores[h]` of every sampling row when a router asks for
//! `SignalSet::score(h)`. The score is a probability in `[0, 1]` as the algorithm defines it; which side of a threshold
//! means "ask the peer" is the router's business, and the file says which one the head was made for ([`Direction`]).
//!
//! | kind | what it reads | the score | paper's class or layer |
//! | --- | --- | --- | --- |
//! | `r2r` | hidden state, the candidate's input embedding, the largest raw logits | `sigmoid(f)`, or class 2 of 3 | `HiddenStatesTokenLMHeadLogitsClassifier` |
//! | `citer` | hidden state | `sigmoid(g)`: the small model is good enough | MLP with batch norm |
//! | `co-llm` | hidden state | `P_defer = sigmoid(w . h)` | one more row of the output matrix |
//! | `query` | mean hidden state of the prompt | `sigmoid(g)`: the answer needs the large model | ours |
//!
//! The first three score every sampled position. `query` scores the prompt, once, in the row that samples its first token;
//! rows behind it get 0. For it the model keeps the hidden state of every cached position (`heads/query.rs` says why).
//! Arithmetic is f32 in a fixed order per row: a row's score depends, to the bit, on nothing but the row (DESIGN rule
//! 5). The largest logits are taken before penalties and temperature touch them; R2R runs after the candidate was
//! sampled. Buffers are sized once; a step allocates nothing.

mod citer;
mod co_llm;
#[cfg(feature = "cuda-host")]
pub mod cuda;
mod file;
#[cfg(test)]
mod golden;
mod open;
mod owner;
mod query;
mod r2r;
mod run;
mod tensors;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use tokenrouter_scheduler::router::Threshold;

#[cfg(feature = "cuda-host")]
use crate::step::Step;

pub use file::{CiterShape, CoLlmShape, HeadShape, QueryShape, R2rShape, RouterFile};
pub use owner::{ModelPrint, Owner, tokenizer_print};
pub use tokenrouter_scheduler::router::{Direction, HeadKind};
pub use write::{NamedTensor, write_router};

pub(crate) use open::OpenHead;
pub(crate) use run::{HeadInput, HeadSet, HeadSizes};

/// A row of a step that has seen its prompt and no more, and samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptEnd {
    /// The row's index in the step.
    pub row: usize,
    /// Its index among the sampling rows.
    pub sampled: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
}

#[cfg(feature = "cuda-host")]
impl PromptEnd {
    /// The prompts that end in `step`, in the order of its sampling rows.
    pub(crate) fn of(step: &Step) -> impl Iterator<Item = Self> + '_ {
        let sampling =
            step.rows.iter().enumerate().filter_map(|(row, r)| r.sample.as_ref().map(|s| (row, s)));
        sampling
            .enumerate()
            .filter(|(_, (_, spec))| spec.key.position as usize == spec.prompt_len)
            .map(|(sampled, (row, spec))| Self { row, sampled, tokens: spec.prompt_len })
    }
}

/// A loaded head as the server shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadInfo {
    /// Its folder.
    pub path: PathBuf,
    /// The algorithm.
    pub kind: HeadKind,
    /// The threshold that the file holds, if it holds one.
    pub threshold: Option<f32>,
    /// Which comparison with the threshold asks the peer.
    pub direction: Direction,
}

impl HeadInfo {
    /// As the router that reads its score sees it.
    pub(crate) fn for_router(&self) -> tokenrouter_scheduler::router::HeadInfo {
        tokenrouter_scheduler::router::HeadInfo {
            kind: self.kind.name().to_owned(),
            threshold: self.threshold.map(Threshold::Value),
            direction: self.direction,
        }
    }
}
