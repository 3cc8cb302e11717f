//! One model on one device: first opened (configuration and weights checked, nothing big allocated),
//! so that the joint budget can be planned, then built with the pages that the plan gives it.

use std::path::{Path, PathBuf};

use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Isa, KvLayout, PAGE_TOKENS, StepTokens, WorkerGroup};
use tokenrouter_scheduler::MAX_HEADS;

use crate::budget::ModelDemand;
use crate::config::ModelConfig;
use crate::decoder::{Decoder, StepLimits, buffer_values};
use crate::error::LoadError;
use crate::heads::{HeadInfo, HeadInput, HeadSet, HeadSizes, ModelPrint, OpenHead, PromptEnd};
use crate::ops::cpu::CpuOps;
use crate::weights::ModelWeights;

/// How a model is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Threads of this model's worker group, the calling thread included.
    pub threads: usize,
    /// Rows of the largest step; every row asks for at most one token's logits.
    pub max_batch_rows: usize,
    /// Tokens of the largest step, all rows together.
    pub max_step_tokens: usize,
    /// The type of cached keys and values.
    pub kv_dtype: DType,
    /// Ids at or above this are masked: no tokenizer produces them (vocabulary padding).
    pub real_vocab: usize,
    /// Tokens of the longest request; the model's own limit cuts it.
    pub context_len: usize,
}

/// A checkpoint that has passed every check, its weights mapped and nothing else allocated.
#[derive(Clone, Debug)]
pub struct OpenModel {
    dir: PathBuf,
    config: ModelConfig,
    weights: ModelWeights,
    heads: Vec<OpenHead>,
}

/// A model ready to run steps.
pub struct Model {
    config: ModelConfig,
    weights: ModelWeights,
    ops: CpuOps,
    decoder: Decoder<CpuOps>,
    heads: HeadSet<CpuOps>,
    context_len: usize,
    pages: usize,
    logit_rows: usize,
}

impl OpenModel {
    /// The checked configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The mapped weights.
    pub(crate) fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// The checked router heads.
    pub(crate) fn open_heads(&self) -> &[OpenHead] {
        &self.heads
    }

    /// Adds router heads: `paths` are their folders, the index of a folder is the head's index.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and field: more than [`MAX_HEADS`], a head of another model, a fault in its files.
    pub fn with_heads(mut self, paths: &[PathBuf]) -> Result<Self, LoadError> {
        if paths.len() > MAX_HEADS {
            let problem = format!("{} are given, a model has at most {MAX_HEADS}", paths.len());
            return Err(LoadError::field(&self.dir, "heads", problem));
        }
        if !paths.is_empty() {
            let print = self.print()?;
            self.heads = paths.iter().map(|p| OpenHead::open(p, &print)).collect::<Result<_, _>>()?;
        }
        Ok(self)
    }

    /// What identifies this model for a router head.
    ///
    /// # Errors
    /// A [`LoadError`] when its tokenizer cannot be read.
    pub fn print(&self) -> Result<ModelPrint, LoadError> {
        ModelPrint::of(&self.dir, &self.config, &self.weights)
    }

    /// The heads, in the order of their index.
    pub fn heads(&self) -> Vec<HeadInfo> {
        self.heads.iter().map(|h| h.info.clone()).collect()
    }

    /// Row `id` of the output matrix; `None` when it has no such row.
    pub fn output_row(&self, id: u32) -> Option<Vec<f32>> {
        let view = self.weights.lm_head.view();
        let (id, cols) = (id as usize, view.cols());
        (id < view.rows())
            .then(|| (id * cols..(id + 1) * cols).map(|i| view.dtype().read(view.data(), i)).collect())
    }

    /// Ids from this one on must not be sampled: a head's defer token stands there.
    pub fn first_masked_id(&self) -> Option<u32> {
        self.heads.iter().filter_map(|h| h.defer_id).min()
    }

    /// Bytes of the mapped weights, those of the heads included.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes() + self.heads.iter().map(OpenHead::bytes).sum::<u64>()
    }

    /// Cache bytes of one page of 16 tokens: keys and values of all layers, and the hidden states that a head reads.
    pub fn kv_bytes_per_page(&self, dtype: DType) -> u64 {
        // More than 64 bits cannot come from a checked configuration; the plan would refuse it.
        let kept =
            4 * PAGE_TOKENS as u64 * HeadSet::<CpuOps>::kept_values(&self.heads, self.config.hidden_size);
        self.layout(dtype, 1).bytes_per_page().map_or(u64::MAX, |bytes| (bytes as u64).saturating_add(kept))
    }

    /// Bytes of activation buffers and position tables, allocated once by [`Self::build`].
    pub fn activation_bytes(&self, options: &ModelOptions) -> u64 {
        let context = self.config.context_len(options.context_len) as u64;
        // Cosine and sine of every position and frequency.
        let tables = context * self.config.head_dim as u64;
        let limits = limits(options);
        let heads = limits.logit_rows as u64 * HeadSet::<CpuOps>::row_values(&self.heads);
        4 * (buffer_values(&self.config, limits) + heads + tables)
    }

    /// What this model asks of the joint budget.
    pub fn demand(&self, name: &str, options: &ModelOptions) -> ModelDemand {
        ModelDemand {
            name: name.to_owned(),
            weight_bytes: self.weight_bytes(),
            activation_bytes: self.activation_bytes(options),
            kv_bytes_per_page: self.kv_bytes_per_page(options.kv_dtype),
            context_len: self.config.context_len(options.context_len),
        }
    }

    /// Allocates buffers and a cache of `pages` pages and starts the worker threads.
    ///
    /// # Errors
    /// A [`LoadError`] when an option is zero, the vocabulary is smaller than `real_vocab`, or the cache
    /// or the threads cannot be had.
    pub fn build(self, options: ModelOptions, pages: usize) -> Result<Model, LoadError> {
        let refuse = |field: &str, problem: String| LoadError::field(&self.dir, field, problem);
        let sizes = [
            ("threads", options.threads),
            ("max_batch_rows", options.max_batch_rows),
            ("max_step_tokens", options.max_step_tokens),
            ("real_vocab", options.real_vocab),
            ("context_len", options.context_len),
            ("pages", pages),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, n)| *n == 0) {
            return Err(refuse(name, "is 0, at least 1 is needed".to_owned()));
        }
        if options.real_vocab > self.config.vocab_size {
            let problem = format!(
                "is {}, smaller than the {} ids that the tokenizer produces",
                self.config.vocab_size, options.real_vocab
            );
            return Err(refuse("vocab_size", problem));
        }
        if let Some(head) = self.heads.iter().find(|h| h.logits_size() > options.real_vocab) {
            let problem = format!(
                "is {}, only {} ids are not padding: the rest of the list would be minus infinity",
                head.logits_size(),
                options.real_vocab
            );
            return Err(LoadError::field(&head.info.path, "logits_size", problem));
        }
        let isa = Isa::detect().map_err(|e| refuse("cpu", e.to_string()))?;
        let workers = WorkerGroup::new("model", options.threads)
            .map_err(|e| refuse("threads", format!("{} threads cannot be started: {e}", options.threads)))?;
        let context_len = self.config.context_len(options.context_len);
        let layout = self.layout(options.kv_dtype, pages);
        let ops = CpuOps::new(&self.config, isa, workers, layout, context_len, options.real_vocab)
            .map_err(|e| refuse("pages", format!("{pages} pages of KV cache cannot be had: {e}")))?;
        let kept = HeadSet::<CpuOps>::kept_values(&self.heads, self.config.hidden_size) as usize;
        // Asked for before it is taken, since a buffer that cannot be had would end the process.
        Vec::<f32>::new()
            .try_reserve_exact((pages * PAGE_TOKENS).saturating_mul(kept))
            .map_err(|e| refuse("pages", format!("hidden states of {pages} pages cannot be had: {e}")))?;
        let decoder = Decoder::new(&ops, &self.config, &self.weights, limits(&options));
        let sizes = HeadSizes { rows: limits(&options).logit_rows, hidden: self.config.hidden_size, pages };
        let heads = HeadSet::new(&ops, self.heads, sizes);
        Ok(Model {
            config: self.config,
            weights: self.weights,
            ops,
            decoder,
            heads,
            context_len,
            pages,
            logit_rows: 0,
        })
    }

    fn layout(&self, dtype: DType, pages: usize) -> KvLayout {
        let c = &self.config;
        KvLayout { layers: c.layers, kv_heads: c.kv_heads, head_dim: c.head_dim, dtype, pages }
    }
}

fn limits(options: &ModelOptions) -> StepLimits {
    // A step of T tokens has at most T rows, so no more logits than tokens are ever wanted.
    StepLimits {
        tokens: options.max_step_tokens,
        logit_rows: options.max_batch_rows.min(options.max_step_tokens),
    }
}

impl Model {
    /// Reads and checks the checkpoint in `dir` and maps its weights.
    ///
    /// # Errors
    /// A [`LoadError`] naming file and field; see [`ModelConfig::load`] and [`ModelWeights::open`].
    pub fn open(dir: &Path) -> Result<OpenModel, LoadError> {
        let config = ModelConfig::load(dir)?;
        let weights = ModelWeights::open(dir, &config)?;
        Ok(OpenModel { dir: dir.to_path_buf(), config, weights, heads: Vec::new() })
    }

    /// One step. Feeds `ids` at the places that `step` describes, writes their keys and values to the
    /// cache, and returns the logits `[n, vocab]` of `logit_tokens` (`n` indices into `ids`), padding
    /// ids masked to minus infinity. Allocates nothing.
    ///
    /// # Panics
    /// When the step breaks its contract: more tokens or logits than the options allow, tables of unequal
    /// length, an id outside the vocabulary, a position outside the context or the row's pages, a page
    /// outside the cache. The rank loop and the scheduler check all of these at submit; a breach is a fault of ours.
    pub fn forward(&mut self, ids: &[u32], step: &StepTokens<'_>, logit_tokens: &[u32]) -> &mut [f32] {
        self.check(ids, step, logit_tokens);
        self.logit_rows = logit_tokens.len();
        if !ids.is_empty() {
            self.decoder.forward(&mut self.ops, &self.config, &self.weights, ids, step, logit_tokens);
            if self.heads.keeps_states() {
                let (config, weights) = (&self.config, &self.weights);
                let hidden = self.decoder.all_hidden(&mut self.ops, config, weights, ids.len());
                self.heads.keep(&mut self.ops, step, hidden);
            }
        }
        self.logits_mut()
    }

    /// The logits `[n, vocab]` of the last [`Self::forward`], as sampling has left them.
    pub fn logits_mut(&mut self) -> &mut [f32] {
        let used = self.logit_rows * self.config.vocab_size;
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
