//! A model's products with random weights: shapes, memory, and the chain of launches.

use cudarc::driver::result;
use half::bf16;
use tokenrouter_kernels::cuda::{
    Buffer, CudaError, CudaStream, Device, Kernels, LinearArgs, Ptr, packed_len,
};

use crate::NONE;
use crate::checkpoint::Decoder;

/// Sizes of a model, as its products see them.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    hidden: usize,
    layers: usize,
    /// Query, key and value features together.
    qkv: usize,
    /// Input of the output product: query heads times their size.
    heads: usize,
    intermediate: usize,
    vocab: usize,
}

impl Shape {
    /// What the products see of a decoder.
    pub(crate) fn of(decoder: &Decoder) -> Self {
        let heads = decoder.q_heads * decoder.head_dim;
        Self {
            name: decoder.name,
            hidden: decoder.hidden,
            layers: decoder.layers,
            qkv: heads + 2 * decoder.kv_heads * decoder.head_dim,
            heads,
            intermediate: decoder.inner,
            vocab: decoder.vocab,
        }
    }

    /// Name, features and columns of the products: four of a layer, then the logits.
    pub(crate) fn products(&self) -> [(&'static str, usize, usize); 5] {
        [
            ("qkv", self.qkv, self.hidden),
            ("o", self.hidden, self.heads),
            ("gate, up", 2 * self.intermediate, self.hidden),
            ("down", self.hidden, self.intermediate),
            ("logits", self.vocab, self.hidden),
        ]
    }
}

/// Copies on the device.
pub(crate) fn copy(stream: &CudaStream, to: Ptr<u8>, from: Ptr<u8>, bytes: usize) -> Result<(), CudaError> {
    let (to, from) = (to.address(), from.address());
    // SAFETY: the callers name ranges inside buffers that live until the stream has been waited for.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }
        .map_err(|e| CudaError::Shape(format!("copying on the device: {e}")))
}

/// Packed weights in one buffer, each product's one after the other.
pub(crate) struct Weights {
    shape: Shape,
    memory: Buffer<bf16>,
    /// Where each product of a layer begins, and the length of a layer, in elements.
    starts: [usize; 5],
    layer: usize,
}

/// Activations, one row after the other, and the results.
pub(crate) struct Inputs {
    x: Buffer<bf16>,
    y: Buffer<u8>,
    rows: Buffer<u32>,
}

impl Weights {
    /// Values of both signs between 1/128 and 1/64.
    pub(crate) fn random(device: &Device, stream: &CudaStream, shape: &Shape) -> Result<Self, CudaError> {
        let mut starts = [0; 5];
        let mut layer = 0;
        for (start, (_, n, k)) in starts.iter_mut().zip(shape.products()).take(4) {
            *start = layer;
            layer += packed_len(n, k);
        }
        starts[4] = layer * shape.layers;
        let total = starts[4] + packed_len(shape.vocab, shape.hidden);
        let memory = Buffer::<bf16>::zeroed(device, stream, total)?;
        let piece = total.min(16 << 20);
        let words = |i: u32| (0x3c00 | (i.wrapping_mul(0x9e37_79b9) >> 16 & 0x807f)) as u16;
        let values: Vec<bf16> = (0..piece as u32).map(|i| bf16::from_bits(words(i))).collect();
        memory.write(stream, &values)?;
        let mut done = piece;
        while done < total {
            let next = done.min(total - done);
            copy(stream, memory.ptr().add(done).cast(), memory.ptr().cast(), next * 2)?;
            done += next;
        }
        device.wait(stream)?;
        Ok(Self { shape: *shape, memory, starts, layer })
    }

    /// Bytes that a step reads.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len() * 2
    }

    /// Kernels of a step.
    pub(crate) fn launches(&self) -> usize {
        4 * self.shape.layers + 1
    }

    /// How often a product occurs.
    pub(crate) fn copies(&self, product: usize) -> usize {
        if product == 4 { 1 } else { self.shape.layers }
    }

    pub(crate) fn inputs(
        &self,
        device: &Device,
        stream: &CudaStream,
        rows: u32,
    ) -> Result<Inputs, CudaError> {
        let products = self.shape.products();
        let widest = |f: fn(&(&str, usize, usize)) -> usize| products.iter().map(f).max().unwrap_or(0);
        let stride = widest(|p| p.2).next_multiple_of(32);
        let x = vec![bf16::from_f32(0.5); rows as usize * stride];
        Ok(Inputs {
            x: Buffer::from_slice(device, stream, &x)?,
            y: Buffer::zeroed(device, stream, rows as usize * widest(|p| p.1).next_multiple_of(32) * 4)?,
            rows: Buffer::from_slice(device, stream, &[rows])?,
        })
    }

    fn one(
        &self,
        kernels: &Kernels,
        stream: &CudaStream,
        at: (usize, usize),
        rows: u32,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        let (layer, product) = at;
        let (_, n, k) = self.shape.products()[product];
        let start = self.starts[product] + if product == 4 { 0 } else { layer * self.layer };
        let logits = product == 4;
        let args = LinearArgs {
            w: self.memory.ptr().add(start),
            x: inputs.x.ptr(),
            bias: NONE,
            y: inputs.y.ptr(),
            rows: inputs.rows.ptr(),
            n: n as u32,
            kb: k.div_ceil(32) as u32,
            x_stride: k.next_multiple_of(32) as u32,
            y_stride: n.next_multiple_of(32) as u32,
            // As the engine has them: o and down fold two halves.
            slices: if product == 1 || product == 3 { 8 } else { 4 },
            f32_out: u32::from(logits),
            n_real: n as u32,
        };
        // SAFETY: the weights and inputs have these shapes, and every caller waits for the stream.
        unsafe { kernels.linear(stream, rows, &args) }
    }

    /// One product of every layer.
    pub(crate) fn launch_one(
        &self,
        kernels: &Kernels,
        stream: &CudaStream,
        product: usize,
        rows: u32,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        (0..self.copies(product))
            .try_for_each(|layer| self.one(kernels, stream, (layer, product), rows, inputs))
    }

    /// All products of a step, in order.
    pub(crate) fn launch(
        &self,
        kernels: &Kernels,
        stream: &CudaStream,
        rows: u32,
        inputs: &Inputs,
    ) -> Result<(), CudaError> {
        for layer in 0..self.shape.layers {
            for product in 0..4 {
                self.one(kernels, stream, (layer, product), rows, inputs)?;
            }
        }
        self.one(kernels, stream, (0, 4), rows, inputs)
    }
}
