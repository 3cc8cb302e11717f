//! A checkpoint that was opened: what it asks for, and how it becomes a model, whole or in parts.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Ctx, Isa, KvLayout, PAGE_TOKENS, WorkerGroup};
use tokenrouter_scheduler::MAX_HEADS;

use super::Model;
use crate::budget::ModelDemand;
use crate::comm::Seat;
use crate::config::ModelConfig;
use crate::decoder::{Decoder, StepLimits, buffer_values};
use crate::error::LoadError;
use crate::heads::{HeadInfo, HeadSet, HeadSizes, ModelPrint, OpenHead};
use crate::ops::cpu::CpuOps;
use crate::shard::{self, Shard, ShardError};
use crate::weights::{ModelWeights, WeightForm, check_int8};

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
    form: WeightForm,
    heads: Vec<OpenHead>,
}

impl OpenModel {
    /// Reads and checks the checkpoint in `dir` and maps its weights.
    pub(super) fn open(dir: &Path) -> Result<Self, LoadError> {
        let config = ModelConfig::load(dir)?;
        let weights = ModelWeights::open(dir, &config)?;
        Ok(Self { dir: dir.to_path_buf(), config, weights, form: WeightForm::Stored, heads: Vec::new() })
    }

    /// With its linear layers in this form, once it is built for the CPU.
    pub fn with_form(self, form: WeightForm) -> Self {
        Self { form, ..self }
    }

    /// The form of its linear layers.
    pub fn form(&self) -> WeightForm {
        self.form
    }

    /// The checked configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The mapped weights.
    #[cfg(feature = "cuda-host")]
    pub(crate) fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// The checked router heads.
    #[cfg(feature = "cuda-host")]
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
        let view = self.weights.lm_head.weight.view();
        let (id, cols) = (id as usize, view.cols());
        (id < view.rows())
            .then(|| (id * cols..(id + 1) * cols).map(|i| view.dtype().read(view.data(), i)).collect())
    }

    /// Type of the output matrix as it is stored: that of the other weights, in checkpoints that do not mix.
    pub fn dtype(&self) -> DType {
        self.weights.lm_head.weight.dtype()
    }

    /// The type that products read, in configuration files and messages.
    pub fn weights_name(&self) -> &'static str {
        match self.form {
            WeightForm::Stored => self.dtype().name(),
            WeightForm::Int8 => "int8",
        }
    }

    /// Ids from this one on must not be sampled: a head's defer token stands there.
    pub fn first_masked_id(&self) -> Option<u32> {
        self.heads.iter().filter_map(|h| h.defer_id).min()
    }

    /// Bytes of the weights in the files, those of the heads included.
    pub fn stored_bytes(&self) -> u64 {
        self.weights.bytes() + self.heads.iter().map(OpenHead::bytes).sum::<u64>()
    }

    /// Bytes of the weights in memory, in all of `parts` parts together. A stored matrix counts once: rows of it are a
    /// place in the file, and columns are copied instead of being read there.
    pub fn weight_bytes(&self, parts: usize) -> u64 {
        match self.form {
            WeightForm::Stored => self.stored_bytes(),
            WeightForm::Int8 => {
                let made = self.weights.bytes_as_int8(&self.config, parts);
                made + self.stored_bytes() - self.weights.bytes()
            }
        }
    }

    /// Bytes of the weights that a step of the whole model reads: all but an embedding of which it looks up rows.
    pub fn step_bytes(&self) -> u64 {
        let looked_up = !self.weights.tied || self.form != WeightForm::Stored;
        self.weight_bytes(1) - if looked_up { self.weights.embed.bytes() } else { 0 }
    }

    /// Cache bytes of one page of 16 tokens in all parts together: keys and values of all layers, and the hidden states
    /// that a head reads.
    pub fn kv_bytes_per_page(&self, dtype: DType, parts: usize) -> u64 {
        let kept =
            4 * PAGE_TOKENS as u64 * HeadSet::<CpuOps>::kept_values(&self.heads, self.config.hidden_size);
        // More than 64 bits cannot come from a checked configuration; the plan would refuse it.
        let page = |shard: Shard| {
            let layout = layout(&shard.local_config(&self.config), dtype, 1);
            layout.bytes_per_page().map_or(u64::MAX, |bytes| bytes as u64)
        };
        Shard::all(parts).map(page).fold(kept, u64::saturating_add)
    }

    /// Bytes of activation buffers and position tables of all parts, and of their exchange, allocated once.
    pub fn activation_bytes(&self, options: &ModelOptions, parts: usize) -> u64 {
        let context = self.config.context_len(options.context_len) as u64;
        // Cosine and sine of every position and frequency.
        let tables = context * self.config.head_dim as u64;
        let limits = limits(options);
        let heads = limits.logit_rows as u64 * HeadSet::<CpuOps>::row_values(&self.heads);
        let exchange = if parts > 1 { Seat::values(parts, self.deposit(options, parts)) } else { 0 };
        let part = |shard: Shard| {
            let logit_cols = logit_cols(&self.config, shard);
            buffer_values(&shard.local_config(&self.config), limits, logit_cols) + tables
        };
        4 * (Shard::all(parts).map(part).sum::<u64>() + heads + exchange)
    }

    /// What this model asks of the joint budget in so many parts.
    pub fn demand(&self, name: &str, options: &ModelOptions, parts: usize) -> ModelDemand {
        ModelDemand {
            name: name.to_owned(),
            weight_bytes: self.weight_bytes(parts),
            activation_bytes: self.activation_bytes(options, parts),
            kv_bytes_per_page: self.kv_bytes_per_page(options.kv_dtype, parts),
            context_len: self.config.context_len(options.context_len),
        }
    }

    /// The most values that a part puts down for the others: partial products of all tokens, or its logits of all rows.
    fn deposit(&self, options: &ModelOptions, parts: usize) -> usize {
        let limits = limits(options);
        let logits = limits.logit_rows * self.config.vocab_size.div_ceil(parts);
        logits.max(limits.tokens * self.config.hidden_size)
    }

    /// Whether so many CPU ranks can share this model.
    ///
    /// # Errors
    /// A [`LoadError`] naming the field that does not divide.
    pub fn check_parts(&self, parts: usize) -> Result<(), LoadError> {
        self.check_shards(parts).map_err(|error| self.refuse_parts(&error))
    }

    /// As [`Self::check_parts`], without the file.
    pub(crate) fn check_shards(&self, parts: usize) -> Result<(), ShardError> {
        shard::check_cpu(&self.config, parts)?;
        match self.form {
            WeightForm::Stored => Ok(()),
            WeightForm::Int8 => check_int8(&self.config, parts),
        }
    }

    /// A [`shard::ShardError`] with the file that holds the field.
    pub(crate) fn refuse_parts(&self, error: &shard::ShardError) -> LoadError {
        LoadError::field(&self.dir.join("config.json"), error.field, error.problem.clone())
    }

    /// The seats of `parts` parts of this model, to be built by [`Self::build_part`] each.
    ///
    /// # Errors
    /// As [`Self::check_parts`]; and when the memory of the exchange cannot be had.
    pub fn seats(&self, options: &ModelOptions, parts: usize) -> Result<Vec<Seat>, LoadError> {
        self.check_parts(parts)?;
        let values = if parts > 1 { self.deposit(options, parts) } else { 0 };
        Seat::table(parts, values).map_err(|e| {
            let problem = format!("buffers for the exchange of {parts} parts cannot be had: {e}");
            LoadError::field(&self.dir, "devices", problem)
        })
    }

    /// Allocates buffers and a cache of `pages` pages and starts the worker threads.
    ///
    /// # Errors
    /// A [`LoadError`] when an option is zero, the vocabulary is smaller than `real_vocab`, or the cache
    /// or the threads cannot be had.
    pub fn build(self, options: ModelOptions, pages: usize) -> Result<Model, LoadError> {
        self.build_as(options, pages, None)
    }

    /// As [`Self::build`], the part of the model that sits at `seat`; it has `options.threads` threads of its own.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_part(&self, options: ModelOptions, pages: usize, seat: Seat) -> Result<Model, LoadError> {
        self.build_as(options, pages, Some(seat))
    }

    /// The weights of a part in the form that was asked for.
    fn part_weights(&self, shard: Shard, ctx: Ctx<'_>) -> Result<ModelWeights, LoadError> {
        if self.form == WeightForm::Stored {
            return Ok(self.weights.shard(&self.config, shard));
        }
        let began = Instant::now();
        let weights = self
            .weights
            .int8(&self.config, shard, ctx)
            .map_err(|e| LoadError::field(&self.dir, e.tensor, e.problem))?;
        tracing::info!(
            model = %self.dir.display(),
            threads = ctx.workers.threads(),
            seconds = format!("{:.2}", began.elapsed().as_secs_f64()),
            "int8 weights made"
        );
        Ok(weights)
    }

    fn build_as(&self, options: ModelOptions, pages: usize, seat: Option<Seat>) -> Result<Model, LoadError> {
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
        // The only part has nobody to wait for.
        let seat = seat.filter(|seat| seat.shard().is_cut());
        let shard = seat.as_ref().map_or(Shard::WHOLE, Seat::shard);
        let stop = seat.as_ref().map(Seat::stop);
        let local = shard.local_config(&self.config);
        let context_len = self.config.context_len(options.context_len);
        let layout = layout(&local, options.kv_dtype, pages);
        let ops = CpuOps::new(&local, isa, workers, layout, context_len, options.real_vocab, seat)
            .map_err(|e| refuse("pages", format!("{pages} pages of KV cache cannot be had: {e}")))?;
        // Every part has the same hidden states; the first one scores and samples.
        let heads = if shard.samples() { self.heads.clone() } else { Vec::new() };
        let kept = HeadSet::<CpuOps>::kept_values(&heads, local.hidden_size) as usize;
        // Asked for before it is taken, since a buffer that cannot be had would end the process.
        Vec::<f32>::new()
            .try_reserve_exact((pages * PAGE_TOKENS).saturating_mul(kept))
            .map_err(|e| refuse("pages", format!("hidden states of {pages} pages cannot be had: {e}")))?;
        let weights = self.part_weights(shard, ops.ctx())?;
        let (limits, logit_cols) = (limits(&options), logit_cols(&self.config, shard));
        let decoder = Decoder::new(&ops, &local, &weights, limits, logit_cols);
        let sizes = HeadSizes { rows: limits.logit_rows, hidden: local.hidden_size, pages };
        let heads = HeadSet::new(&ops, heads, sizes);
        Ok(Model {
            config: self.config.clone(),
            local,
            weights,
            ops,
            decoder,
            heads,
            context_len,
            pages,
            logit_cols,
            logit_rows: 0,
            stop,
            cores: Vec::new(),
        })
    }
}

fn layout(local: &ModelConfig, dtype: DType, pages: usize) -> KvLayout {
    let ModelConfig { layers, kv_heads, head_dim, .. } = *local;
    KvLayout { layers, kv_heads, head_dim, dtype, pages }
}

/// Logits that a part brings together: all of them where it samples.
fn logit_cols(config: &ModelConfig, shard: Shard) -> usize {
    if shard.samples() { config.vocab_size } else { 0 }
}

fn limits(options: &ModelOptions) -> StepLimits {
    // A step of T tokens has at most T rows, so no more logits than tokens are ever wanted.
    StepLimits {
        tokens: options.max_step_tokens,
        logit_rows: options.max_batch_rows.min(options.max_step_tokens),
    }
}
