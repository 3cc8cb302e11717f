//! The networks of the heads in terms of the device's kernels.

use half::bf16;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cuda::{
    Activation, Buffer, CudaError, CudaStream, Device, HeadLinearArgs, HeadRowsArgs, Kernels, MeanArgs, Ptr,
};

use super::super::open::{HeadWeights, OpenHead};
use super::super::r2r::R2rWeights;
use super::super::run::MOST_OUTPUTS;
use super::HeadStep;
use crate::weights::{Linear, Norm, Tensor};

/// Where weights and buffers go, and how many bytes went there.
pub(super) struct Upload<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: &'a CudaStream,
    pub(super) rows: usize,
    pub(super) bytes: u64,
}

impl Upload<'_> {
    /// Zeroed values.
    pub(super) fn buffer(&mut self, len: usize) -> Result<Buffer<f32>, CudaError> {
        self.bytes += (len * size_of::<f32>()) as u64;
        Buffer::zeroed(self.device, self.stream, len)
    }

    /// Rows of `width` values, padded to whole pieces of four.
    fn activations(&mut self, width: usize) -> Result<Rows, CudaError> {
        let stride = width.next_multiple_of(4);
        Ok(Rows { data: self.buffer(self.rows * stride)?, stride })
    }

    /// All values of a vector.
    fn vector(&mut self, tensor: &Tensor) -> Result<Buffer<f32>, CudaError> {
        self.bytes += (tensor.cols() * size_of::<f32>()) as u64;
        Buffer::from_slice(self.device, self.stream, &values(tensor, tensor.cols()))
    }

    fn layer(&mut self, layer: &Linear) -> Result<Dense, CudaError> {
        let (n, k) = (layer.weight.rows(), layer.weight.cols());
        let stride = k.next_multiple_of(4);
        let weight = if layer.weight.dtype() == DType::Bf16 {
            let rounded: Vec<bf16> = values(&layer.weight, stride).into_iter().map(bf16::from_f32).collect();
            self.bytes += (rounded.len() * size_of::<bf16>()) as u64;
            Matrix::Bf16(Buffer::from_slice(self.device, self.stream, &rounded)?)
        } else {
            let values = values(&layer.weight, stride);
            self.bytes += (values.len() * size_of::<f32>()) as u64;
            Matrix::F32(Buffer::from_slice(self.device, self.stream, &values)?)
        };
        let bias = layer.bias.as_ref().map(|b| self.vector(b)).transpose()?;
        Ok(Dense { weight, bias, n, k, stride })
    }

    fn norm(&mut self, norm: &Norm, eps: f32) -> Result<LayerNorm, CudaError> {
        let (weight, bias) = (self.vector(&norm.weight)?, self.vector(&norm.bias)?);
        Ok(LayerNorm { weight, bias, eps })
    }
}

/// The rows of a tensor as f32, each padded with zeros to `stride` values.
fn values(tensor: &Tensor, stride: usize) -> Vec<f32> {
    let (view, cols) = (tensor.view(), tensor.cols());
    let mut values = vec![0.0; view.rows() * stride];
    for (row, to) in values.chunks_exact_mut(stride).enumerate() {
        for (column, to) in to[..cols].iter_mut().enumerate() {
            *to = view.dtype().read(view.data(), row * cols + column);
        }
    }
    values
}

/// Activations `[rows][stride]`.
pub(super) struct Rows {
    data: Buffer<f32>,
    stride: usize,
}

/// A weight matrix. bf16 stays bf16: the products are the same, the bytes half.
enum Matrix {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
}

/// A linear layer.
pub(super) struct Dense {
    weight: Matrix,
    bias: Option<Buffer<f32>>,
    n: usize,
    k: usize,
    stride: usize,
}

struct LayerNorm {
    weight: Buffer<f32>,
    bias: Buffer<f32>,
    eps: f32,
}

/// Rows that a layer reads.
#[derive(Clone, Copy)]
struct Input {
    x: Ptr<u8>,
    stride: usize,
    source: Source,
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    F32 = 0,
    Bf16 = 1,
    Table = 2,
}

impl Rows {
    fn input(&self) -> Input {
        Input { x: self.data.ptr().cast(), stride: self.stride, source: Source::F32 }
    }
}

/// Rows that a layer writes.
#[derive(Clone, Copy)]
struct Output {
    y: Ptr<f32>,
    stride: usize,
}

impl Rows {
    /// From column `at` on.
    fn output(&self, at: usize) -> Output {
        Output { y: self.data.ptr().add(at), stride: self.stride }
    }
}

/// How the rows of a [`Input`] are taken over.
enum Take<'a> {
    Copy,
    Norm(&'a LayerNorm),
    Softmax,
}

/// One head's launches in one step.
pub(super) struct Launch<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) stream: &'a CudaStream,
    pub(super) step: &'a HeadStep,
    pub(super) head: u32,
    /// Elements of a row of hidden states.
    pub(super) stride: usize,
    pub(super) kept: Ptr<bf16>,
}

impl Launch<'_> {
    /// The hidden states of the sampling rows.
    fn hidden(&self) -> Input {
        Input { x: self.step.hidden.cast(), stride: self.stride, source: Source::Bf16 }
    }

    /// `y = act(x * W^T + bias) (+ add)`.
    ///
    /// # Safety
    /// Of this and the two below: as [`CudaHeads::launch`](super::CudaHeads::launch).
    unsafe fn dense(
        &self,
        layer: &Dense,
        x: Input,
        activation: Activation,
        add: Option<Input>,
        y: Output,
        count: Ptr<u32>,
    ) -> Result<(), CudaError> {
        let (w, w_bf16) = match &layer.weight {
            Matrix::F32(w) => (w.ptr().cast(), false),
            Matrix::Bf16(w) => (w.ptr().cast(), true),
        };
        let args = HeadLinearArgs {
            w,
            bias: layer.bias.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            x: x.x,
            add: add.map_or(Ptr::NULL, |a| a.x.cast()),
            y: y.y,
            rows: count,
            wanted: self.step.wanted,
            head: self.head,
            n: layer.n as u32,
            k: layer.k as u32,
            w_stride: layer.stride as u32,
            x_stride: x.stride as u32,
            add_stride: add.map_or(0, |a| a.stride as u32),
            y_stride: y.stride as u32,
            x_bf16: u32::from(x.source == Source::Bf16),
            activation: activation as u32,
        };
        // SAFETY: the caller's promise.
        unsafe { self.kernels.head_linear(self.stream, self.step.max_rows, w_bf16, &args) }
    }

    /// Takes `width` columns of rows over as f32.
    ///
    /// # Safety
    /// As above.
    unsafe fn rows(
        &self,
        x: Input,
        take: &Take<'_>,
        width: usize,
        out: Output,
        table: (usize, usize),
    ) -> Result<(), CudaError> {
        let (op, norm) = match take {
            Take::Copy => (0, None),
            Take::Norm(norm) => (1, Some(norm)),
            Take::Softmax => (2, None),
        };
        let args = HeadRowsArgs {
            x: x.x,
            ids: self.step.candidates,
            weight: norm.map_or(Ptr::NULL, |n| n.weight.ptr()),
            bias: norm.map_or(Ptr::NULL, |n| n.bias.ptr()),
            out: out.y,
            rows: self.step.rows,
            wanted: self.step.wanted,
            head: self.head,
            source: x.source as u32,
            op,
            width: width as u32,
            x_stride: x.stride as u32,
            out_stride: out.stride as u32,
            kb: table.0 as u32,
            vocab: table.1 as u32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        // SAFETY: the caller's promise.
        unsafe { self.kernels.head_rows(self.stream, self.step.max_rows, &args) }
    }

    /// The mean states of the prompts that end here.
    ///
    /// # Safety
    /// As above.
    unsafe fn means(&self, width: usize, out: Output) -> Result<(), CudaError> {
        let step = &self.step.prompts;
        let args = MeanArgs {
            kept: self.kept,
            ends: step.ends,
            tables: step.tables,
            means: out.y,
            count: step.end_count,
            wanted: self.step.wanted,
            head: self.head,
            width: width as u32,
            stride: self.stride as u32,
            out_stride: out.stride as u32,
            table_stride: step.table_stride,
        };
        // SAFETY: the caller's promise.
        unsafe { self.kernels.prompt_means(self.stream, self.step.max_rows, &args) }
    }
}

/// One head on the device.
pub(super) enum Net {
    R2r(Box<R2r>),
    Citer { first: Dense, second: Dense, inner: Rows },
    CoLlm(Dense),
    Query { first: Dense, second: Dense, mean: Rows, inner: Rows },
}

impl Net {
    /// Uploads a head of a model of these sizes (hidden state, vocabulary).
    pub(super) fn new(
        upload: &mut Upload<'_>,
        head: &OpenHead,
        model: (usize, usize),
    ) -> Result<Self, CudaError> {
        Ok(match &head.weights {
            HeadWeights::R2r(w) => Self::R2r(Box::new(R2r::new(upload, w, model)?)),
            HeadWeights::Citer(w) => {
                let (first, second) = w.layers();
                let inner = upload.activations(first.weight.rows())?;
                Self::Citer { first: upload.layer(first)?, second: upload.layer(second)?, inner }
            }
            HeadWeights::CoLlm(row) => Self::CoLlm(upload.layer(row)?),
            HeadWeights::Query(w) => {
                let (first, second) = w.layers();
                let (mean, inner) =
                    (upload.activations(first.weight.cols())?, upload.activations(first.weight.rows())?);
                Self::Query { first: upload.layer(first)?, second: upload.layer(second)?, mean, inner }
            }
        })
    }

    /// Values that it says about a row.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::R2r(net) => net.out.n,
            _ => 1,
        }
    }

    /// Whether it speaks about prompts, not about rows.
    pub(super) fn reads_prompts(&self) -> bool {
        matches!(self, Self::Query { .. })
    }

    /// Queues it; `out` is `[rows][3]`.
    ///
    /// # Safety
    /// As [`CudaHeads::launch`](super::CudaHeads::launch).
    pub(super) unsafe fn launch(&self, l: &Launch<'_>, out: Ptr<f32>) -> Result<(), CudaError> {
        use Activation::{None as Plain, Relu, Silu};
        let (out, rows) = (Output { y: out, stride: MOST_OUTPUTS }, l.step.rows);
        // SAFETY: the caller's promise; each buffer was made for the layer that writes it.
        unsafe {
            match self {
                Self::R2r(net) => net.launch(l, out),
                Self::Citer { first, second, inner } => {
                    l.dense(first, l.hidden(), Relu, None, inner.output(0), rows)?;
                    l.dense(second, inner.input(), Plain, None, out, rows)
                }
                Self::CoLlm(row) => l.dense(row, l.hidden(), Plain, None, out, rows),
                Self::Query { first, second, mean, inner } => {
                    let ends = l.step.prompts.end_count;
                    l.means(first.k, mean.output(0))?;
                    l.dense(first, mean.input(), Silu, None, inner.output(0), ends)?;
                    l.dense(second, inner.input(), Plain, None, out, ends)
                }
            }
        }
    }
}

/// R2R's network, as `heads/r2r.rs` writes it down.
pub(super) struct R2r {
    hidden: usize,
    table: (usize, usize),
    logits: Dense,
    combined: Dense,
    input: Dense,
    blocks: Vec<Block>,
    out_norm: LayerNorm,
    out: Dense,
    input_norms: Option<(LayerNorm, LayerNorm)>,
    top: Rows,
    joined: Rows,
    states: [Rows; 2],
    normed: Rows,
    inner: Rows,
}

struct Block {
    norm: LayerNorm,
    up: Dense,
    down: Dense,
    skip: Option<Dense>,
}

impl R2r {
    fn new(upload: &mut Upload<'_>, w: &R2rWeights, model: (usize, usize)) -> Result<Self, CudaError> {
        let eps = w.shape().layer_norm_eps;
        let blocks = w.blocks.iter().map(|b| {
            Ok(Block {
                norm: upload.norm(&b.norm, eps)?,
                up: upload.layer(&b.up)?,
                down: upload.layer(&b.down)?,
                skip: b.skip.as_ref().map(|s| upload.layer(s)).transpose()?,
            })
        });
        let blocks = blocks.collect::<Result<_, CudaError>>()?;
        let input_norms = match &w.input_norms {
            Some((states, token)) => Some((upload.norm(states, eps)?, upload.norm(token, eps)?)),
            None => None,
        };
        Ok(Self {
            hidden: model.0,
            table: (model.0.div_ceil(32), model.1),
            logits: upload.layer(&w.logits)?,
            combined: upload.layer(&w.combined)?,
            input: upload.layer(&w.input)?,
            blocks,
            out_norm: upload.norm(&w.out_norm, eps)?,
            out: upload.layer(&w.out)?,
            input_norms,
            top: upload.activations(w.shape().logits_size)?,
            joined: upload.activations(3 * model.0)?,
            states: [upload.activations(w.widest())?, upload.activations(w.widest())?],
            normed: upload.activations(w.widest())?,
            inner: upload.activations(w.inner())?,
        })
    }

    /// # Safety
    /// As [`CudaHeads::launch`](super::CudaHeads::launch).
    unsafe fn launch(&self, l: &Launch<'_>, out: Output) -> Result<(), CudaError> {
        use Activation::{Gelu, None as Plain};
        let rows = l.step.rows;
        let mut x = 0;
        // SAFETY: the caller's promise; each buffer was made for the widest layer that writes it.
        unsafe {
            self.join(l)?;
            l.dense(&self.combined, self.joined.input(), Plain, None, self.normed.output(0), rows)?;
            l.dense(&self.input, self.normed.input(), Plain, None, self.states[x].output(0), rows)?;
            for block in &self.blocks {
                self.norm(l, x, &block.norm, block.up.k)?;
                l.dense(&block.up, self.normed.input(), Gelu, None, self.inner.output(0), rows)?;
                if let Some(skip) = &block.skip {
                    l.dense(skip, self.states[x].input(), Plain, None, self.states[1 - x].output(0), rows)?;
                    x = 1 - x;
                }
                let sum = &self.states[x];
                l.dense(&block.down, self.inner.input(), Plain, Some(sum.input()), sum.output(0), rows)?;
            }
            self.norm(l, x, &self.out_norm, self.out.k)?;
            l.dense(&self.out, self.normed.input(), Plain, None, out, rows)
        }
    }

    /// # Safety
    /// As [`Self::launch`].
    unsafe fn norm(&self, l: &Launch<'_>, x: usize, norm: &LayerNorm, width: usize) -> Result<(), CudaError> {
        let (x, out) = (self.states[x].input(), self.normed.output(0));
        // SAFETY: the caller's promise.
        unsafe { l.rows(x, &Take::Norm(norm), width, out, self.table) }
    }

    /// `joined = [h ; e ; q]`.
    ///
    /// # Safety
    /// As [`Self::launch`].
    unsafe fn join(&self, l: &Launch<'_>) -> Result<(), CudaError> {
        let (states, token) = match &self.input_norms {
            Some((states, token)) => (Take::Norm(states), Take::Norm(token)),
            None => (Take::Copy, Take::Copy),
        };
        let embed = Input { x: l.step.embed.cast(), stride: 0, source: Source::Table };
        let mut top = Input { x: l.step.top_logits.cast(), stride: l.step.top as usize, source: Source::F32 };
        let (joined, width) = (&self.joined, self.hidden);
        // SAFETY: the caller's promise.
        unsafe {
            l.rows(l.hidden(), &states, width, joined.output(0), self.table)?;
            l.rows(embed, &token, width, joined.output(width), self.table)?;
            if self.input_norms.is_some() {
                l.rows(top, &Take::Softmax, self.logits.k, self.top.output(0), self.table)?;
                top = self.top.input();
            }
            l.dense(&self.logits, top, Activation::None, None, joined.output(2 * width), l.step.rows)
        }
    }
}
