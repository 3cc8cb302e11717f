//! Tensors of mapped files to packed weights on the device.
//!
//! Rows go through a bounded buffer on the device, where `pack.cu` turns them into tiles and converts f16 and f32 to
//! bf16. A slice of columns, which tensor parallelism cuts out of `o_proj` and `down_proj`, is first gathered in a host
//! buffer of the same bound. Nothing here holds a second copy of a model.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cuda::{Buffer, CudaError, CudaStream, PackArgs, packed_len};

use super::context::RankContext;
use crate::weights::Tensor;

/// Bytes of the buffers that rows pass through, unless a tile of 16 rows needs more.
const STAGE_BYTES: usize = 32 << 20;
/// Rows of a tile: features of a product.
pub(super) const TILE: usize = 16;

/// The part of a matrix that a shard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Rows, from a tile's first one of the packed weight on.
    pub(super) rows: Range<usize>,
    /// Columns.
    pub(super) cols: Range<usize>,
}

impl Part {
    /// Some rows, whole.
    pub(super) fn rows(tensor: &Tensor, rows: Range<usize>) -> Self {
        Self { rows, cols: 0..tensor.cols() }
    }

    /// Some columns of all rows.
    pub(super) fn cols(tensor: &Tensor, cols: Range<usize>) -> Self {
        Self { rows: 0..tensor.rows(), cols }
    }
}

/// Where the tiles of a part go in the packed weight: tile `i` to `first + i * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Of tile 0.
    pub(super) first: usize,
    /// From one to the next.
    pub(super) step: usize,
}

impl Tiles {
    /// One after the other from `first` on.
    pub(super) fn from(first: usize) -> Self {
        Self { first, step: 1 }
    }
}

/// Packs tensors, one after the other.
pub(super) struct Uploader<'a> {
    context: &'a RankContext,
    stream: &'a Arc<CudaStream>,
    staging: Buffer<u8>,
    host: Vec<u8>,
    bytes: u64,
    converted: Option<DType>,
}

impl<'a> Uploader<'a> {
    /// Buffers for parts whose rows have at most `longest_row` bytes; they hold no more than `largest` bytes in all,
    /// the size of the largest tensor, when that is less than the bound.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn new(
        context: &'a RankContext,
        stream: &'a Arc<CudaStream>,
        largest: usize,
        longest_row: usize,
    ) -> Result<Self, CudaError> {
        let stage = largest.min(STAGE_BYTES).max(TILE * longest_row);
        let staging = Buffer::zeroed(&context.device, stream, stage)?;
        Ok(Self { context, stream, staging, host: Vec::new(), bytes: 0, converted: None })
    }

    /// Bytes of everything made here so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A type other than bf16 that was met and converted.
    pub(super) fn converted(&self) -> Option<DType> {
        self.converted
    }

    /// A packed weight of `n` features and `k` columns, all zero.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn weight(&mut self, n: usize, k: usize) -> Result<Buffer<bf16>, CudaError> {
        let len = packed_len(n, k);
        self.bytes += 2 * len as u64;
        Buffer::zeroed(&self.context.device, self.stream, len)
    }

    /// Values for the device, as they are.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn table(&mut self, values: &[f32]) -> Result<Buffer<f32>, CudaError> {
        self.bytes += 4 * values.len() as u64;
        Buffer::from_slice(&self.context.device, self.stream, values)
    }

    /// A vector, rounded to bf16.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn vector(&mut self, values: &[f32]) -> Result<Buffer<bf16>, CudaError> {
        let values: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        self.bytes += 2 * values.len() as u64;
        Buffer::from_slice(&self.context.device, self.stream, &values)
    }

    /// Packs a part of `tensor` into `to`, which was made with room for its tiles and with as many columns as the part has.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn pack(
        &mut self,
        tensor: &Tensor,
        part: &Part,
        to: &Buffer<bf16>,
        tiles: Tiles,
    ) -> Result<(), CudaError> {
        let size = tensor.dtype().size();
        if tensor.dtype() != DType::Bf16 {
            self.converted = Some(tensor.dtype());
        }
        let row_bytes = part.cols.len() * size;
        if row_bytes == 0 {
            return Ok(());
        }
        let step = (self.staging.len() / row_bytes / TILE * TILE).max(TILE);
        for from in part.rows.clone().step_by(step) {
            let rows = from..(from + step).min(part.rows.end);
            self.stage(tensor, rows.clone(), part.cols.clone())?;
            let args = PackArgs {
                src: self.staging.ptr(),
                dst: to.ptr(),
                n: rows.len() as u32,
                k: part.cols.len() as u32,
                first_tile: (tiles.first + (from - part.rows.start) / TILE * tiles.step) as u32,
                tile_step: tiles.step as u32,
                kind: kind(tensor.dtype()),
            };
            // SAFETY: the staging buffer holds these rows, `to` has room for their tiles, and both outlive the kernel:
            // freeing device memory waits for the work that uses it.
            unsafe { self.context.kernels.pack_weight(self.stream, &args) }?;
        }
        Ok(())
    }

    /// Copies rows to the staging buffer, after what was queued for the last ones.
    fn stage(&mut self, tensor: &Tensor, rows: Range<usize>, cols: Range<usize>) -> Result<(), CudaError> {
        let view = tensor.view();
        let (data, size, width) = (view.data(), tensor.dtype().size(), tensor.cols());
        if cols.len() == width {
            return self
                .staging
                .write(self.stream, &data[rows.start * width * size..rows.end * width * size]);
        }
        self.host.clear();
        for row in rows {
            let start = row * width;
            self.host.extend_from_slice(&data[(start + cols.start) * size..(start + cols.end) * size]);
        }
        self.staging.write(self.stream, &self.host)
    }
}

/// How `pack.cu` numbers the types.
fn kind(dtype: DType) -> u32 {
    match dtype {
        DType::Bf16 => 0,
        DType::F16 => 1,
        DType::F32 => 2,
    }
}
