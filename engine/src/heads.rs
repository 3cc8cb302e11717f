//! Learned router heads: small networks that score every sampled position inside the step, on the model's own hidden
//! states (after the final norm), where the logits lie.
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
//!
//! Arithmetic is f32 in a fixed order per row: a row's score depends, to the bit, on nothing but the row (DESIGN rule
//! 5). The largest logits are taken before penalties and temperature touch them; R2R runs after the candidate was
//! sampled. Buffers are sized once; a step allocates nothing.

mod citer;
mod co_llm;
mod file;
#[cfg(test)]
mod golden;
mod open;
mod owner;
mod r2r;
mod run;
mod tensors;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::path::PathBuf;

pub use file::{CiterShape, CoLlmShape, HeadShape, R2rShape, RouterFile};
pub use owner::{ModelPrint, Owner, tokenizer_print};
pub use write::{NamedTensor, write_router};

pub(crate) use open::OpenHead;
pub(crate) use run::{HeadInput, HeadSet};

/// The algorithm a head was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Roads to Rome: a feed-forward network on verified labels.
    R2r,
    /// CITER: a small network trained on "the small model is good enough".
    Citer,
    /// Co-LLM: the extra row of the output matrix.
    CoLlm,
}

impl HeadKind {
    /// All kinds.
    pub const ALL: [HeadKind; 3] = [HeadKind::R2r, HeadKind::Citer, HeadKind::CoLlm];

    /// The name in router files and of the router that reads the score.
    pub const fn name(self) -> &'static str {
        match self {
            HeadKind::R2r => "r2r",
            HeadKind::Citer => "citer",
            HeadKind::CoLlm => "co-llm",
        }
    }

    /// Which comparison of score and threshold asks the peer (the algorithms' own rules: R2R inclusive, the other two
    /// strict).
    pub const fn direction(self) -> Direction {
        match self {
            HeadKind::R2r => Direction::AtLeast,
            HeadKind::Citer => Direction::Below,
            HeadKind::CoLlm => Direction::Above,
        }
    }
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a score asks the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `score >= threshold`.
    AtLeast,
    /// `score < threshold`.
    Below,
    /// `score > threshold`.
    Above,
}

impl Direction {
    /// As it is written in router files.
    pub const fn symbol(self) -> &'static str {
        match self {
            Direction::AtLeast => ">=",
            Direction::Below => "<",
            Direction::Above => ">",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
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
