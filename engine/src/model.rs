//! One model on one device: first opened (configuration and weights checked, nothing big allocated),
//! so that the joint budget can be planned, then built with the pages that the plan gives it: whole, or as one of the
//! parts that run on several ranks.

mod open;

use std::path::Path;
use std::sync::Arc;

use tokenrouter_kernels::cpu::{AtWork, Cores, PAGE_TOKENS, StepTokens};

pub use open::{ModelOptions, OpenModel};

use crate::comm::{Stop, Stopped};
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::error::LoadError;
use crate::heads::{HeadInfo, HeadInput, HeadSet, PromptEnd};
use crate::ops::cpu::CpuOps;
use crate::weights::ModelWeights;

/// A model, or a part of one, ready to run steps.
pub struct Model {
    /// Of the whole model.
    config: ModelConfig,
    /// Of this part; the same when the model is whole.
    local: ModelConfig,
    weights: ModelWeights,
    ops: CpuOps,
    decoder: Decoder<CpuOps>,
    heads: HeadSet<CpuOps>,
    context_len: usize,
    pages: usize,
    /// The vocabulary; 0 on a part that does not sample.
    logit_cols: usize,
    logit_rows: usize,
    /// Ends the waits for the other parts.
    stop: Option<Stop>,
    /// Where the thread that runs its steps is bound; empty: nowhere.
    cores: Vec<usize>,
}

impl Model {
    /// Reads and checks the checkpoint in `dir` and maps its weights.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and field; see [`ModelConfig::load`] and [`ModelWeights::open`].
    pub fn open(dir: &Path) -> Result<OpenModel, LoadError> {
        OpenModel::open(dir)
    }

    /// One step. Feeds `ids` at the places that `step` describes, writes their keys and values to the
    /// cache, and returns the logits `[n, vocab]` of `logit_tokens` (`n` indices into `ids`), padding
    /// ids masked to minus infinity. Allocates nothing.
    ///
    /// # Panics
    /// When this is a part of a model, which waits for the others; and when the step breaks its contract: more tokens or logits than the options allow, tables of unequal
    /// length, an id outside the vocabulary, a position outside the context or the row's pages, a page
    /// outside the cache. The rank loop and the scheduler check all of these at submit; a breach is a fault of ours.
    pub fn forward(&mut self, ids: &[u32], step: &StepTokens<'_>, logit_tokens: &[u32]) -> &mut [f32] {
        let outcome = self.forward_part(0, ids, step, logit_tokens);
        assert!(outcome.is_ok(), "a part of a model runs numbered steps beside the others");
        self.logits_mut()
    }

    /// As [`Self::forward`] for a part of a model beside the others: all of them run step `number`, which ascends from 1,
    /// and none begins it before all have ended the last one. Only the first part has logits, hidden states of rows and
    /// scores to show.
    ///
    /// # Errors
    /// [`Stopped`] when the step was stopped because another part has failed.
    ///
    /// # Panics
    /// As [`Self::forward`].
    pub fn forward_part(
        &mut self,
        number: u64,
        ids: &[u32],
        step: &StepTokens<'_>,
        logit_tokens: &[u32],
    ) -> Result<(), Stopped> {
        self.forward_scored(number, ids, step, &[], logit_tokens, |_, _| ())
    }

    /// As [`Self::forward_part`], with the logits of further tokens (`score_tokens`, any number of indices into `ids`), a few
    /// rows at a time, so that no room for all of them is needed: `show` gets the place in `score_tokens` of the first row of
    /// each piece and the piece, `[rows, vocab]`. Only on the first part.
    ///
    /// # Errors
    /// As [`Self::forward_part`].
    ///
    /// # Panics
    /// As [`Self::forward`].
    pub fn forward_scored(
        &mut self,
        number: u64,
        ids: &[u32],
        step: &StepTokens<'_>,
        score_tokens: &[u32],
        logit_tokens: &[u32],
        mut show: impl FnMut(usize, &[f32]),
    ) -> Result<(), Stopped> {
        self.check(ids, step, logit_tokens);
        assert!(score_tokens.iter().all(|i| (*i as usize) < ids.len()), "scored index outside the step");
        self.logit_rows = logit_tokens.len();
        self.ops.begin(number);
        if ids.is_empty() {
            return Ok(());
        }
        let Self { ops, local, weights, decoder, .. } = self;
        decoder.feed(ops, local, weights, ids, step)?;
        let room = decoder.limits().logit_rows;
        for (piece, tokens) in score_tokens.chunks(room).enumerate() {
            decoder.finish(ops, local, weights, tokens)?;
            if self.logit_cols > 0 {
                show(piece * room, &decoder.logits()[..tokens.len() * self.logit_cols]);
            }
        }
        decoder.finish(ops, local, weights, logit_tokens)?;
        if self.heads.keeps_states() {
            let hidden = self.decoder.all_hidden(ops, local, weights, ids.len());
            self.heads.keep(ops, step, hidden);
        }
        Ok(())
    }

    /// Whether this is the part that samples, or a whole model.
    pub fn samples(&self) -> bool {
        self.logit_cols > 0
    }

    /// Ends the waits of this part for the others; none for a whole model.
    pub(crate) fn stop(&self) -> Option<Stop> {
        self.stop.clone()
    }

    /// The logits `[n, vocab]` of the last [`Self::forward`], as sampling has left them.
    pub fn logits_mut(&mut self) -> &mut [f32] {
        let used = self.logit_rows * self.logit_cols;
        &mut self.decoder.logits_mut()[..used]
    }

    /// Rows of the largest step whose logits are wanted.
    pub fn logit_rows(&self) -> usize {
        self.decoder.limits().logit_rows
    }

    /// The router heads, in the order of their index.
    pub fn heads(&self) -> &[HeadInfo] {
        self.heads.infos()
    }

    /// Lets the heads of `wanted` (bit `h` for head `h`; others are ignored) take what they need of the raw logits: to be
    /// called after [`Self::forward`] and before anything changes the logits. Allocates nothing.
    pub fn observe_logits(&mut self, wanted: u8) {
        let (rows, vocab) = (self.logit_rows, self.config.vocab_size);
        self.heads.observe(&mut self.ops, wanted, rows, vocab, self.decoder.logits());
    }

    /// Scores the rows of the last [`Self::forward`] with the heads of `wanted`. `candidates` are the sampled tokens, one for
    /// each row. [`Self::scores`] has the results. Allocates nothing.
    ///
    /// # Panics
    /// When there is not one candidate inside the vocabulary for each row: a fault of ours.
    pub fn score(&mut self, wanted: u8, candidates: &[u32]) {
        assert_eq!(candidates.len(), self.logit_rows, "one candidate for each row");
        let input = HeadInput { hidden: self.decoder.hidden(), embed: &self.weights.embed, candidates };
        self.heads.score(&mut self.ops, wanted, &input);
    }

    /// Scores the prompts of `ends`, rows of the last [`Self::forward`] and its `step`, with the heads of `wanted` that
    /// read whole prompts, after [`Self::score`]. Every position of such a prompt must be in the cache. Allocates nothing.
    ///
    /// # Panics
    /// When an end names a row that is not there or has fewer tokens: a fault of ours.
    pub fn score_prompts(&mut self, wanted: u8, step: &StepTokens<'_>, ends: &[PromptEnd]) {
        assert!(
            ends.iter().all(|e| e.tokens > 0 && e.sampled < self.logit_rows),
            "an end that samples nothing"
        );
        self.heads.score_prompts(&mut self.ops, wanted, step, ends);
    }

    /// What head `head` said about the rows of the last [`Self::score`] that wanted it; empty when there is no such head.
    pub fn scores(&self, head: usize) -> &[f32] {
        let scores = self.heads.scores(head);
        &scores[..self.logit_rows.min(scores.len())]
    }

    /// Hidden states `[n, hidden]` after the final norm, of the last [`Self::forward`].
    pub fn hidden(&self) -> &[f32] {
        &self.decoder.hidden()[..self.logit_rows * self.config.hidden_size]
    }

    /// The checked configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Tokens of the longest request.
    pub fn context_len(&self) -> usize {
        self.context_len
    }

    /// Pages of the cache.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Writes small numbers all over the cache, so that reading it costs what it does when requests have filled it. For
    /// measurements.
    pub fn fill_cache(&mut self) {
        /// Small, positive and neither denormal nor infinite, whatever the type.
        const BYTE: u8 = 0x2e;
        for page in 0..self.pages as u32 {
            self.ops.kv_mut().fill_page(page, BYTE);
        }
    }

    /// Binds the threads that run its steps to these cores; none: wherever the system puts them. Those of its worker group
    /// are where they were started. `shared` are cores that the group shares with those of other models.
    pub(crate) fn set_cores(&mut self, cores: &[usize], shared: Option<&Arc<Cores>>) {
        self.cores = cores.to_vec();
        if let Some(shared) = shared {
            self.ops.workers().share(Arc::clone(shared));
        }
    }

    /// Says that a step runs, to those that share cores with it, until the result is dropped.
    pub(crate) fn at_work(&self) -> Option<AtWork> {
        self.ops.workers().at_work()
    }

    /// The cores of the thread that runs its steps; empty: any.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Fills a page of the cache with NaN. Freed pages are never read; tests prove it with this.
    pub fn poison_page(&mut self, page: u32) {
        self.ops.kv_mut().poison_page(page);
        if let Some(states) = self.heads.states_mut() {
            let len = PAGE_TOKENS * self.config.hidden_size;
            states[page as usize * len..][..len].fill(f32::NAN);
        }
    }

    fn check(&self, ids: &[u32], step: &StepTokens<'_>, logit_tokens: &[u32]) {
        let limits = self.decoder.limits();
        assert!(ids.len() <= limits.tokens, "{} tokens in a step of at most {}", ids.len(), limits.tokens);
        let rows = logit_tokens.len();
        assert!(rows <= limits.logit_rows, "{rows} logit rows in a step of at most {}", limits.logit_rows);
        assert!(
            ids.len() == step.positions.len() && ids.len() == step.token_row.len(),
            "unequal step tables"
        );
        assert!(logit_tokens.iter().all(|i| (*i as usize) < ids.len()), "logit index outside the step");
        assert!(ids.iter().all(|id| (*id as usize) < self.config.vocab_size), "id outside the vocabulary");
        assert!(
            step.positions.iter().all(|p| (*p as usize) < self.context_len),
            "position outside the context"
        );
    }
}
