//! One step's input and output, in buffers that travel between the rank loop and an executor.
//!
//! A `Step` is filled from a scheduler batch, handed to the executor, and comes back with one result per
//! row. Every vector is sized once for the largest legal step, so filling and running allocate nothing.

use std::ops::Range;
use std::sync::Arc;

use tokenrouter_kernels::cpu::StepTokens;
use tokenrouter_kernels::rng::DrawKey;
use tokenrouter_kernels::sampling::SamplingParams;
use tokenrouter_kernels::signals::SignalFlags;
use tokenrouter_scheduler::{ModelId, PAGE_TOKENS, PageId, RowResult};

use crate::scores::Scores;

/// The part of a request that its samples depend on; shared between the rank loop and the executors.
#[derive(Debug)]
pub struct RowSampling {
    /// The client's parameters.
    pub params: SamplingParams,
    /// Ids that cannot be sampled before `min_tokens`: end-of-sequence and stop ids.
    pub stop_ids: Vec<u32>,
    /// Whether a penalty reads the tokens written so far.
    pub needs_history: bool,
}

/// How to sample the row's next token.
#[derive(Clone, Debug)]
pub struct SampleSpec {
    /// The request's parameters.
    pub sampling: Arc<RowSampling>,
    /// Names the draw.
    pub key: DrawKey,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// `min_tokens` is not reached: mask the stop ids.
    pub mask_stops: bool,
    /// Report the candidate's log-probability and those of so many of the likeliest ids.
    pub logprobs: Option<u8>,
}

/// One row: how to sample it, or `None` when a chunk limit cut it.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// `None`: the row feeds tokens and samples nothing.
    pub sample: Option<SampleSpec>,
    /// Where its history lies in `Step::history`; empty unless a penalty needs it.
    pub history: Range<usize>,
    /// Its part of `Step::score_tokens`: tokens of its prompt that are scored.
    pub scored: Range<usize>,
    /// How many of the likeliest ids are reported beside each of those.
    pub score_top: u8,
}

/// What a step can hold at most.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Rows.
    pub rows: usize,
    /// Fed tokens over all rows.
    pub tokens: usize,
    /// Longest context, in tokens.
    pub context_len: usize,
}

/// Input and output of one step of one model.
#[derive(Debug)]
pub struct Step {
    /// The batch's sequence number.
    pub seq: u64,
    /// Which model runs it.
    pub model: ModelId,
    /// Which signals the routers of this step read.
    pub flags: SignalFlags,
    /// Which router heads they read: bit `h` for head `h`.
    pub heads: u8,
    /// Fed token ids, row after row.
    pub ids: Vec<u32>,
    /// Indices into `ids` of the last token of every sampling row.
    pub logit_tokens: Vec<u32>,
    /// Indices into `ids` of the tokens behind which a token of a prompt is scored, row after row.
    pub score_tokens: Vec<u32>,
    /// The tokens that are scored there.
    pub score_ids: Vec<u32>,
    /// The rows.
    pub rows: Vec<StepRow>,
    /// One result per row; a cut row has the default.
    pub results: Vec<RowResult>,
    /// Log-probabilities that rows ask for.
    pub scores: Scores,
    /// Set when the step as a whole failed: in words.
    pub failure: Option<String>,
    history: Vec<u32>,
    token_row: Vec<u32>,
    positions: Vec<u32>,
    row_pages: Vec<u32>,
    row_page_start: Vec<u32>,
}

impl Step {
    /// Empty buffers that hold any step within `limits` without growing.
    pub fn new(limits: StepLimits) -> Self {
        let pages = limits.rows * limits.context_len.div_ceil(PAGE_TOKENS);
        Step {
            seq: 0,
            model: ModelId(0),
            flags: SignalFlags::default(),
            heads: 0,
            ids: Vec::with_capacity(limits.tokens),
            logit_tokens: Vec::with_capacity(limits.rows),
            // Few steps score prompts: these grow when one does.
            score_tokens: Vec::new(),
            score_ids: Vec::new(),
            rows: Vec::with_capacity(limits.rows),
            results: Vec::with_capacity(limits.rows),
            scores: Scores::default(),
            failure: None,
            history: Vec::new(),
            token_row: Vec::with_capacity(limits.tokens),
            positions: Vec::with_capacity(limits.tokens),
            row_pages: Vec::with_capacity(pages),
            row_page_start: Vec::with_capacity(limits.rows + 1),
        }
    }

    /// Empties the buffers for the next batch.
    pub fn begin(&mut self, seq: u64, model: ModelId, flags: SignalFlags, heads: u8) {
        self.seq = seq;
        self.model = model;
        self.flags = flags;
        self.heads = heads;
        self.failure = None;
        self.ids.clear();
        self.logit_tokens.clear();
        self.score_tokens.clear();
        self.score_ids.clear();
        self.rows.clear();
        self.results.clear();
        self.scores.clear();
        self.history.clear();
        self.token_row.clear();
        self.positions.clear();
        self.row_pages.clear();
        self.row_page_start.clear();
        self.row_page_start.push(0);
    }

    /// Adds a row that feeds `tokens[fed]` at those positions. `tokens` are all tokens of the request and
    /// `pages` its block table, which must cover `fed.end` positions.
    pub fn push_row(
        &mut self,
        tokens: &[u32],
        fed: Range<usize>,
        pages: &[PageId],
        sample: Option<SampleSpec>,
    ) {
        let row = self.rows.len() as u32;
        let used = fed.end.div_ceil(PAGE_TOKENS);
        self.row_pages.extend(pages[..used].iter().map(|p| p.0));
        self.row_page_start.push(self.row_pages.len() as u32);
        self.ids.extend_from_slice(&tokens[fed.clone()]);
        self.positions.extend(fed.map(|p| p as u32));
        self.token_row.resize(self.ids.len(), row);
        let begin = self.history.len();
        if let Some(spec) = &sample {
            self.logit_tokens.push(self.ids.len() as u32 - 1);
            if spec.sampling.needs_history {
                self.history.extend_from_slice(tokens);
            }
        }
        let end = self.score_tokens.len();
        self.rows.push(StepRow {
            sample,
            history: begin..self.history.len(),
            scored: end..end,
            score_top: 0,
        });
    }

    /// Asks the row that was pushed last for scores: of the token behind each of `positions`, which it feeds, and of `top` of
    /// the likeliest in its place. `tokens` are those of the request, more than `positions.end`, and `fed` is what the
    /// row feeds.
    pub fn score_row(&mut self, tokens: &[u32], fed: Range<usize>, positions: Range<usize>, top: u8) {
        let Some(row) = self.rows.last_mut() else { return };
        // The row's tokens stand last.
        let behind = |position: usize| self.ids.len() - (fed.end - position);
        self.score_tokens.extend(positions.clone().map(|p| behind(p) as u32));
        self.score_ids.extend_from_slice(&tokens[positions.start + 1..positions.end + 1]);
        row.scored = row.scored.start..self.score_tokens.len();
        row.score_top = top;
    }

    /// Whether a row asks for log-probabilities, and of how many of the likeliest ids at most.
    pub fn most_top(&self) -> Option<u8> {
        let of_row = |row: &StepRow| {
            let sampled = row.sample.as_ref().and_then(|spec| spec.logprobs);
            let scored = (!row.scored.is_empty()).then_some(row.score_top);
            sampled.max(scored)
        };
        self.rows.iter().filter_map(of_row).max()
    }

    /// The row structure as the kernels read it.
    pub fn tokens(&self) -> StepTokens<'_> {
        StepTokens {
            token_row: &self.token_row,
            positions: &self.positions,
            row_pages: &self.row_pages,
            row_page_start: &self.row_page_start,
        }
    }

    /// The tokens that the penalties of `row` read: prompt, then output.
    pub fn history(&self, row: &StepRow) -> &[u32] {
        &self.history[row.history.clone()]
    }
}
