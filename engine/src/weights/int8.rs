//! Linear layers as 8-bit integers (`weights = "int8"`), made at load of what the files hold.
//!
//! All of a part of a model lie in one piece of memory, in large pages where the system has them. Norms, biases and the
//! embedding stay in the files. Of a tied embedding the products get a copy in 8 bits, and lookups go on reading the
//! file: a row for each fed token, of which only what was asked for stays in memory.

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use tokenrouter_kernels::cpu::{Ctx, INT8_BLOCK, Int8Ref, quantise};

use super::{LayerWeights, Linear, ModelWeights};
use crate::config::ModelConfig;
use crate::shard::{Shard, ShardError};

/// How the matrices of linear layers are kept in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightForm {
    /// As the checkpoint has them, mapped.
    #[default]
    Stored,
    /// As 8-bit integers with a scale for every 32 columns, made at load. On the CPU only.
    Int8,
}

/// A matrix of 8-bit integers. Clones share it.
#[derive(Clone)]
pub struct Int8 {
    memory: Arc<Mmap>,
    place: Range<usize>,
    rows: usize,
    cols: usize,
}

impl Int8 {
    /// The matrix as the kernels read it.
    pub(crate) fn view(&self) -> Int8Ref<'_> {
        Int8Ref::new(self.rows, self.cols, &self.memory[self.place.clone()])
            .expect("`int8` has made as many bytes as the shape needs")
    }

    /// Outputs of the layer.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the layer.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }
}

impl std::fmt::Debug for Int8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Int8([{}, {}] at {})", self.rows, self.cols, self.place.start)
    }
}

/// Why a model has no 8-bit form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Int8Error {
    /// The tensor at fault; empty: there is no memory.
    pub(crate) tensor: String,
    /// What is wrong.
    pub(crate) problem: String,
}

/// How a part of a model shares a linear layer with the others.
enum Cut {
    /// These outputs.
    Rows(Range<usize>),
    /// These inputs.
    Cols(Range<usize>),
}

impl ModelWeights {
    /// As [`Self::shard`], the linear layers as 8-bit integers, made on all threads of `ctx`. What was read of the files
    /// meanwhile is given back to the system.
    ///
    /// # Errors
    /// [`Int8Error`]: a weight that is no number of ordinary size, or no memory.
    pub(crate) fn int8(&self, config: &ModelConfig, shard: Shard, ctx: Ctx<'_>) -> Result<Self, Int8Error> {
        let bytes = bytes_of(config, shard);
        let no_memory = |e: std::io::Error| Int8Error {
            tensor: String::new(),
            problem: format!("no memory for {bytes} bytes of int8 weights: {e}"),
        };
        let mut memory = MmapMut::map_anon(bytes.max(1)).map_err(no_memory)?;
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let mut starts = Vec::new();
        let mut at = 0;
        self.each(config, shard, |name, linear, cut| {
            let part = match cut {
                Cut::Rows(range) => linear.weight.row_range(range),
                Cut::Cols(range) if range.len() == linear.weight.cols() => linear.weight.clone(),
                Cut::Cols(range) => linear.weight.col_range(range),
            };
            let len = int8_bytes(part.rows(), part.cols());
            quantise(ctx, part.view(), &mut memory[at..at + len])
                .map_err(|e| Int8Error { tensor: name.to_owned(), problem: e.to_string() })?;
            linear.weight.forget();
            starts.push(at);
            at += len;
            Ok(linear.clone())
        })?;
        let memory = Arc::new(memory.make_read_only().map_err(no_memory)?);
        let mut starts = starts.into_iter();
        self.each(config, shard, |_, linear, cut| {
            let start = starts.next().unwrap_or_default();
            let (rows, cols) = match &cut {
                Cut::Rows(range) => (range.len(), linear.weight.cols()),
                Cut::Cols(range) => (linear.weight.rows(), range.len()),
            };
            let place = start..start + int8_bytes(rows, cols);
            let int8 = Some(Int8 { memory: memory.clone(), place, rows, cols });
            Ok(match cut {
                Cut::Rows(range) => Linear { int8, ..linear.part_rows(range) },
                Cut::Cols(_) => Linear { int8, ..linear.clone() },
            })
        })
    }

    /// These weights with all linear layers replaced by what `make` makes of them, always in the same order.
    fn each<E>(
        &self,
        config: &ModelConfig,
        shard: Shard,
        mut make: impl FnMut(&str, &Linear, Cut) -> Result<Linear, E>,
    ) -> Result<Self, E> {
        let mut layers = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let mut make = |part: &str, linear: &Linear, cut: Cut| {
                make(&format!("model.layers.{i}.{part}.weight"), linear, cut)
            };
            let inner = || shard.intermediate(config);
            let (q, kv) = (|| shard.q_features(config), || shard.kv_features(config));
            layers.push(LayerWeights {
                q_proj: make("self_attn.q_proj", &layer.q_proj, Cut::Rows(q()))?,
                k_proj: make("self_attn.k_proj", &layer.k_proj, Cut::Rows(kv()))?,
                v_proj: make("self_attn.v_proj", &layer.v_proj, Cut::Rows(kv()))?,
                o_proj: make("self_attn.o_proj", &layer.o_proj, Cut::Cols(q()))?,
                gate_proj: make("mlp.gate_proj", &layer.gate_proj, Cut::Rows(inner()))?,
                up_proj: make("mlp.up_proj", &layer.up_proj, Cut::Rows(inner()))?,
                down_proj: make("mlp.down_proj", &layer.down_proj, Cut::Cols(inner()))?,
                ..layer.clone()
            });
        }
        let head = if self.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let lm_head = make(head, &self.lm_head, Cut::Rows(shard.vocab_rows(config)))?;
        let Self { embed, final_norm, tied, .. } = self;
        Ok(Self { embed: embed.clone(), layers, final_norm: final_norm.clone(), lm_head, tied: *tied })
    }

    /// Bytes in memory when `parts` parts have their linear layers as 8-bit integers: those, and what stays in the files.
    pub(crate) fn bytes_as_int8(&self, config: &ModelConfig, parts: usize) -> u64 {
        let layers: u64 = self.layers.iter().map(LayerWeights::matrix_bytes).sum();
        let head = if self.tied { 0 } else { self.lm_head.weight.bytes() };
        let made: u64 = Shard::all(parts).map(|shard| bytes_of(config, shard) as u64).sum();
        self.bytes() - layers - head + made
    }
}

/// Whether `count` parts of a model have the same 8-bit integers as the whole: the blocks that share a scale must not be
/// cut where the inputs of `o_proj` and `down_proj` are.
///
/// # Errors
/// [`ShardError`] with the field of `config.json` that stands against it.
pub(crate) fn check_int8(config: &ModelConfig, count: usize) -> Result<(), ShardError> {
    let inputs = [("num_attention_heads", config.q_width()), ("intermediate_size", config.intermediate_size)];
    for (field, k) in inputs {
        if count > 1 && !(k / count).is_multiple_of(INT8_BLOCK) {
            let what = if field == "intermediate_size" { "" } else { "times head_dim " };
            let problem = format!(
                "{what}is {k}, of which each of {count} devices holds {}: with weights = \"int8\" a multiple of \
                 {INT8_BLOCK} is needed, since so many columns share a scale; give the model fewer devices, or leave \
                 the key weights out",
                k / count
            );
            return Err(ShardError { field, problem });
        }
    }
    Ok(())
}

/// Bytes of a matrix of a checked configuration, far from overflow.
fn int8_bytes(rows: usize, cols: usize) -> usize {
    Int8Ref::bytes(rows, cols).unwrap_or(usize::MAX)
}

/// Bytes of the 8-bit integers of one part.
fn bytes_of(config: &ModelConfig, shard: Shard) -> usize {
    let hidden = config.hidden_size;
    let (q, kv) = (shard.q_features(config).len(), shard.kv_features(config).len());
    let inner = shard.intermediate(config).len();
    let shapes = [
        (q, hidden),
        (kv, hidden),
        (kv, hidden),
        (hidden, q),
        (inner, hidden),
        (inner, hidden),
        (hidden, inner),
    ];
    let layer: usize = shapes.into_iter().map(|(rows, cols)| int8_bytes(rows, cols)).sum();
    config.layers * layer + int8_bytes(shard.vocab_rows(config).len(), hidden)
}

impl LayerWeights {
    /// Bytes of the matrices in the files.
    fn matrix_bytes(&self) -> u64 {
        self.linears().into_iter().map(|l| l.weight.bytes()).sum()
    }
}
