//! The heads of one model in a step.

use tokenrouter_kernels::cpu::math::exp;
use tokenrouter_kernels::cpu::{PAGE_TOKENS, Reduce, StepTokens};

use super::citer::Citer;
use super::open::{HeadWeights, OpenHead};
use super::query::Query;
use super::r2r::R2r;
use super::{HeadInfo, PromptEnd};
use crate::ops::Ops;
use crate::ops::cpu::softmax_row;
use crate::weights::{Linear, Tensor};

/// Outputs of a head for one row at most: R2R's three classes.
pub(super) const MOST_OUTPUTS: usize = 3;

/// What the heads of a step read.
pub(crate) struct HeadInput<'a, O: Ops> {
    /// Hidden states after the final norm, `[rows, hidden]`.
    pub(crate) hidden: &'a O::Buffer,
    /// The model's embedding table.
    pub(crate) embed: &'a Tensor,
    /// The sampled candidates, one for each row.
    pub(crate) candidates: &'a [u32],
}

/// What the buffers of a model's heads are sized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadSizes {
    /// Sampling rows of a step at most.
    pub(crate) rows: usize,
    /// Width of the hidden state.
    pub(crate) hidden: usize,
    /// Pages of the cache.
    pub(crate) pages: usize,
}

/// All heads of a model with their buffers, sized once for the largest step.
pub(crate) struct HeadSet<O: Ops> {
    heads: Vec<Head<O>>,
    infos: Vec<HeadInfo>,
    out: O::Buffer,
    raw: Vec<f32>,
    scores: Vec<Vec<f32>>,
    /// The hidden state of every cached position, when a head reads whole prompts.
    states: Option<O::Buffer>,
    hidden: usize,
}

enum Head<O: Ops> {
    R2r(Box<R2r<O>>, usize),
    Citer(Citer<O>),
    CoLlm(Linear),
    Query(Query<O>),
}

impl<O: Ops> HeadSet<O> {
    /// Allocates the buffers.
    pub(crate) fn new(ops: &O, heads: Vec<OpenHead>, sizes: HeadSizes) -> Self {
        let HeadSizes { rows, hidden, pages } = sizes;
        let kept = heads.iter().any(OpenHead::reads_prompts).then_some(pages * PAGE_TOKENS * hidden);
        let infos: Vec<HeadInfo> = heads.iter().map(|h| h.info.clone()).collect();
        let scores = infos.iter().map(|_| vec![0.0; rows]).collect();
        let build = |head: OpenHead| match head.weights {
            HeadWeights::R2r(w) => {
                let outputs = w.shape().outputs;
                Head::R2r(Box::new(R2r::new(ops, *w, rows)), outputs)
            }
            HeadWeights::Citer(w) => Head::Citer(Citer::new(ops, w, rows)),
            HeadWeights::CoLlm(row) => Head::CoLlm(row),
            HeadWeights::Query(w) => Head::Query(Query::new(ops, w, rows)),
        };
        let wide = if infos.is_empty() { 0 } else { rows * MOST_OUTPUTS };
        Self {
            heads: heads.into_iter().map(build).collect(),
            infos,
            out: ops.buffer(wide),
            raw: vec![0.0; wide],
            scores,
            states: kept.map(|values| ops.buffer(values)),
            hidden,
        }
    }

    /// f32 values of the shared buffers and scores for one row, beside those of the heads.
    pub(crate) fn row_values(heads: &[OpenHead]) -> u64 {
        let shared = if heads.is_empty() { 0 } else { 2 * MOST_OUTPUTS as u64 };
        shared + heads.iter().map(|h| h.row_values() + 1).sum::<u64>()
    }

    /// f32 values kept for one position of the cache.
    pub(crate) fn kept_values(heads: &[OpenHead], hidden: usize) -> u64 {
        if heads.iter().any(OpenHead::reads_prompts) { hidden as u64 } else { 0 }
    }

    /// Whether [`Self::keep`] must see the states of every step.
    pub(crate) fn keeps_states(&self) -> bool {
        self.states.is_some()
    }

    /// Keeps the hidden states `[tokens, hidden]` of all tokens that a step has fed, each at its place in the cache.
    pub(crate) fn keep(&mut self, ops: &mut O, step: &StepTokens<'_>, hidden: &O::Buffer) {
        if let Some(states) = &mut self.states {
            ops.keep(step, self.hidden, hidden, states);
        }
    }

    /// What is kept; none when no head reads it.
    pub(crate) fn states_mut(&mut self) -> Option<&mut O::Buffer> {
        self.states.as_mut()
    }

    /// The heads as the server shows them.
    pub(crate) fn infos(&self) -> &[HeadInfo] {
        &self.infos
    }

    /// The heads of `wanted` (bit `h` for head `h`) take what they need of the raw logits `[rows, vocab]`.
    pub(crate) fn observe(&mut self, ops: &mut O, wanted: u8, rows: usize, vocab: usize, logits: &O::Buffer) {
        for (index, head) in self.heads.iter_mut().enumerate() {
            if let (true, Head::R2r(head, _)) = (has(wanted, index), head) {
                head.observe(ops, rows, vocab, logits);
            }
        }
    }

    /// Scores every row with the heads of `wanted`; [`Self::observe`] must have seen the step's logits. A head that reads
    /// whole prompts says 0 here and speaks in [`Self::score_prompts`].
    pub(crate) fn score(&mut self, ops: &mut O, wanted: u8, input: &HeadInput<'_, O>) {
        let rows = input.candidates.len();
        for (index, head) in self.heads.iter_mut().enumerate() {
            if rows == 0 || !has(wanted, index) {
                continue;
            }
            let outputs = match head {
                Head::R2r(head, outputs) => {
                    head.score(ops, input.hidden, input.embed, input.candidates, &mut self.out);
                    *outputs
                }
                Head::Citer(head) => {
                    head.score(ops, rows, input.hidden, &mut self.out);
                    1
                }
                Head::CoLlm(row) => {
                    ops.linear(rows, input.hidden, row, Reduce::Whole, &mut self.out);
                    1
                }
                Head::Query(_) => {
                    self.scores[index][..rows].fill(0.0);
                    continue;
                }
            };
            let raw = &mut self.raw[..rows * outputs];
            ops.read(&self.out, raw);
            for (score, raw) in self.scores[index].iter_mut().zip(raw.chunks_exact_mut(outputs)) {
                *score = probability(raw);
            }
        }
    }

    /// Scores the prompts that end in this step with the heads of `wanted` that read whole prompts, after [`Self::score`].
    pub(crate) fn score_prompts(
        &mut self,
        ops: &mut O,
        wanted: u8,
        step: &StepTokens<'_>,
        ends: &[PromptEnd],
    ) {
        let Some(states) = &self.states else { return };
        for (index, head) in self.heads.iter_mut().enumerate() {
            let Head::Query(head) = head else { continue };
            if ends.is_empty() || !has(wanted, index) {
                continue;
            }
            head.score(ops, step, ends, states, &mut self.out);
            let raw = &mut self.raw[..ends.len()];
            ops.read(&self.out, raw);
            for (end, raw) in ends.iter().zip(raw.chunks_exact_mut(1)) {
                self.scores[index][end.sampled] = probability(raw);
            }
        }
    }

    /// The scores of head `head` in the last step, one for each sampling row, then leftovers.
    pub(crate) fn scores(&self, head: usize) -> &[f32] {
        self.scores.get(head).map_or(&[], Vec::as_slice)
    }
}

fn has(wanted: u8, head: usize) -> bool {
    wanted >> head & 1 == 1
}

/// One output: its sigmoid. Three classes: the probability of the third. NaN stays NaN.
pub(super) fn probability(raw: &mut [f32]) -> f32 {
    match raw {
        [x] => 1.0 / (1.0 + exp(-*x)),
        classes => {
            softmax_row(classes);
            classes.last().copied().unwrap_or(f32::NAN)
        }
    }
}
