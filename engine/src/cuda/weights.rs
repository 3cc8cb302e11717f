//! A shard's weights on the device: q, k and v stacked, gate and up interleaved by tiles of 16 features, o and down cut
//! by columns, the embedding whole, and the shard's tiles of the output matrix, which a tied model finds in the packed
//! embedding.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use tokenrouter_kernels::cpu::RopeTable;
use tokenrouter_kernels::cuda::{Buffer, CudaError, CudaStream, Ptr};

use super::context::RankContext;
use super::shape::Shape;
use super::upload::{Part, TILE, Tiles, Uploader};
use crate::config::ModelConfig;
use crate::weights::{LayerWeights, Linear, ModelWeights, Tensor};

/// A packed matrix and its bias.
pub(super) struct Packed {
    pub(super) weight: Buffer<bf16>,
    bias: Option<Buffer<bf16>>,
}

impl Packed {
    /// The bias, or null.
    pub(super) fn bias(&self) -> Ptr<bf16> {
        self.bias.as_ref().map_or(Ptr::NULL, Buffer::ptr)
    }
}

/// One decoder layer.
pub(super) struct Layer {
    pub(super) input_norm: Buffer<bf16>,
    pub(super) qkv: Packed,
    pub(super) qk_norm: Option<(Buffer<bf16>, Buffer<bf16>)>,
    pub(super) o: Packed,
    pub(super) post_norm: Buffer<bf16>,
    pub(super) gate_up: Packed,
    pub(super) down: Packed,
}

/// Everything that a shard computes with.
pub(super) struct Weights {
    /// The whole packed table.
    pub(super) embed: Buffer<bf16>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Buffer<bf16>,
    /// This shard's tiles of the output matrix; `None` when they lie in `embed`.
    lm_head: Option<Buffer<bf16>>,
    /// The first of those tiles in `embed`, in elements.
    tied_at: usize,
    /// `[positions][2][HD / 2]`: cosines, then sines.
    pub(super) rope: Buffer<f32>,
    /// Bytes of all of it.
    pub(super) bytes: u64,
}

impl Weights {
    /// Uploads and packs.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn load(
        context: &RankContext,
        stream: &Arc<CudaStream>,
        config: &ModelConfig,
        weights: &ModelWeights,
        shape: &Shape,
    ) -> Result<Self, CudaError> {
        let (largest, longest_row) = extremes(weights);
        let mut up = Uploader::new(context, stream, largest, longest_row)?;
        let embed = up.weight(config.vocab_size, config.hidden_size)?;
        up.pack(&weights.embed, &Part::rows(&weights.embed, 0..config.vocab_size), &embed, Tiles::from(0))?;
        let mut layers = Vec::with_capacity(shape.layers);
        for layer in &weights.layers {
            layers.push(pack_layer(&mut up, config, layer, shape)?);
        }
        let final_norm = up.vector(&values(&weights.final_norm, 0..config.hidden_size))?;
        let rows = shape.vocab_rows.start as usize..shape.vocab_rows.end as usize;
        let lm_head = if weights.tied {
            None
        } else {
            let to = up.weight(rows.len(), config.hidden_size)?;
            let head = &weights.lm_head.weight;
            up.pack(head, &Part::rows(head, rows.clone()), &to, Tiles::from(0))?;
            Some(to)
        };
        let rope = up.table(&rope_values(config, shape.context))?;
        // So that a failed upload is reported here and not by the first step.
        context.device.wait(stream)?;
        if let Some(dtype) = up.converted() {
            tracing::info!("weights in {} are converted to bf16 for CUDA", dtype.name());
        }
        let tied_at = rows.start * shape.hidden.stride as usize;
        let bytes = up.bytes();
        Ok(Self { embed, layers, final_norm, lm_head, tied_at, rope, bytes })
    }

    /// This shard's tiles of the output matrix.
    pub(super) fn lm_head(&self) -> Ptr<bf16> {
        self.lm_head.as_ref().map_or_else(|| self.embed.ptr().add(self.tied_at), Buffer::ptr)
    }
}

/// Bytes of the largest matrix and of the longest row.
fn extremes(weights: &ModelWeights) -> (usize, usize) {
    let layers = weights.layers.iter().flat_map(|l| {
        [&l.q_proj, &l.k_proj, &l.v_proj, &l.o_proj, &l.gate_proj, &l.up_proj, &l.down_proj]
            .map(|m| &m.weight)
    });
    let all = layers.chain([&weights.embed, &weights.lm_head.weight]);
    all.fold((0, 0), |(largest, row), t| {
        (largest.max(t.bytes() as usize), row.max(t.cols() * t.dtype().size()))
    })
}

fn pack_layer(
    up: &mut Uploader<'_>,
    config: &ModelConfig,
    layer: &LayerWeights,
    shape: &Shape,
) -> Result<Layer, CudaError> {
    let hidden = config.hidden_size;
    let qk_norm = match &layer.qk_norm {
        Some((q, k)) => Some((up.vector(&whole(q))?, up.vector(&whole(k))?)),
        None => None,
    };
    let inner = shape.shard.intermediate(config);
    Ok(Layer {
        input_norm: up.vector(&whole(&layer.input_norm))?,
        qkv: stack_qkv(up, config, layer, shape)?,
        qk_norm,
        o: cut_columns(up, &layer.o_proj, shape.shard.q_features(config), hidden)?,
        post_norm: up.vector(&whole(&layer.post_norm))?,
        gate_up: interleave(up, layer, inner.clone(), shape)?,
        down: cut_columns(up, &layer.down_proj, inner, hidden)?,
    })
}

/// Rows of q, then k, then v: whole heads, so whole tiles.
fn stack_qkv(
    up: &mut Uploader<'_>,
    config: &ModelConfig,
    layer: &LayerWeights,
    shape: &Shape,
) -> Result<Packed, CudaError> {
    let (q, kv) = (shape.shard.q_features(config), shape.shard.kv_features(config));
    let parts = [(&layer.q_proj, q), (&layer.k_proj, kv.clone()), (&layer.v_proj, kv)];
    let weight = up.weight(shape.qkv.used as usize, config.hidden_size)?;
    let (mut tile, mut biases) = (0, Vec::new());
    for (linear, rows) in parts {
        up.pack(&linear.weight, &Part::rows(&linear.weight, rows.clone()), &weight, Tiles::from(tile))?;
        tile += rows.len() / TILE;
        if let Some(bias) = &linear.bias {
            biases.extend(values(bias, rows));
        }
    }
    let bias = if biases.is_empty() { None } else { Some(up.vector(&biases)?) };
    Ok(Packed { weight, bias })
}

/// Gate features 16 i .. at row 32 i, up features 16 i .. at row 32 i + 16.
fn interleave(
    up: &mut Uploader<'_>,
    layer: &LayerWeights,
    inner: Range<usize>,
    shape: &Shape,
) -> Result<Packed, CudaError> {
    let rows = shape.gate_up.used as usize;
    let weight = up.weight(rows, layer.gate_proj.weight.cols())?;
    let mut biases = vec![0.0; rows];
    let mut any = false;
    for (first, linear) in [&layer.gate_proj, &layer.up_proj].into_iter().enumerate() {
        let part = Part::rows(&linear.weight, inner.clone());
        up.pack(&linear.weight, &part, &weight, Tiles { first, step: 2 })?;
        if let Some(bias) = &linear.bias {
            any = true;
            for (i, value) in values(bias, inner.clone()).into_iter().enumerate() {
                biases[i / TILE * 2 * TILE + first * TILE + i % TILE] = value;
            }
        }
    }
    let bias = if any { Some(up.vector(&biases)?) } else { None };
    Ok(Packed { weight, bias })
}

/// The columns of o or down that belong to this shard. Its bias counts once, after the sum over the shards.
fn cut_columns(
    up: &mut Uploader<'_>,
    linear: &Linear,
    cols: Range<usize>,
    hidden: usize,
) -> Result<Packed, CudaError> {
    let weight = up.weight(hidden, cols.len())?;
    up.pack(&linear.weight, &Part::cols(&linear.weight, cols), &weight, Tiles::from(0))?;
    let bias = match &linear.bias {
        Some(bias) => Some(up.vector(&whole(bias))?),
        None => None,
    };
    Ok(Packed { weight, bias })
}

/// Cosines and sines per position, the numbers of the CPU.
fn rope_values(config: &ModelConfig, context: usize) -> Vec<f32> {
    let table =
        RopeTable::new(&config.rope.inv_freq(config.head_dim), config.rope.attention_factor(), context);
    let mut values = Vec::with_capacity(context * config.head_dim);
    for position in 0..context {
        let (cos, sin) = table.at(position);
        values.extend_from_slice(cos);
        values.extend_from_slice(sin);
    }
    values
}

fn whole(tensor: &Tensor) -> Vec<f32> {
    values(tensor, 0..tensor.rows() * tensor.cols())
}

fn values(tensor: &Tensor, range: Range<usize>) -> Vec<f32> {
    let view = tensor.view();
    range.map(|i| tensor.dtype().read(view.data(), i)).collect()
}
