//! The router heads' kernels, as [`launch`](super::launch).

use cudarc::driver::CudaStream;

use super::error::CudaError;
use super::head_args::{HeadLinearArgs, HeadRowsArgs, KeepArgs, MeanArgs};
use super::launch::multiple;
use super::load::Kernels;
use super::table::KernelId;

/// Unsafe for the same one reason as the functions of [`launch`](super::launch).
#[allow(clippy::missing_safety_doc, reason = "the text above holds for all of them")]
impl Kernels {
    /// `head_linear.cu`, for at most `rows` rows; `w_bf16` is the type of the weight.
    pub unsafe fn head_linear(
        &self,
        stream: &CudaStream,
        rows: u32,
        w_bf16: bool,
        args: &HeadLinearArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of a head's weight", args.w_stride, 4)?;
        multiple("a row of a head's input", args.x_stride, 4)?;
        if args.k == 0 || args.k > args.w_stride || args.k > args.x_stride || args.activation > 3 {
            let what = format!("{} columns in rows of {} and {}", args.k, args.w_stride, args.x_stride);
            return Err(CudaError::Shape(what));
        }
        use KernelId::{HeadLinearBf16, HeadLinearF32, HeadLinearNarrowBf16, HeadLinearNarrowF32};
        let (kernels, processors) = ([HeadLinearF32, HeadLinearBf16], u64::from(self.processors()));
        let items = |features: u32| u64::from(args.n.div_ceil(features)) * u64::from(rows.div_ceil(8));
        // The same bits either way.
        let (kernels, items) = if items(32) < processors {
            ([HeadLinearNarrowF32, HeadLinearNarrowBf16], items(8))
        } else {
            (kernels, items(32))
        };
        let (kernel, grid) = (kernels[usize::from(w_bf16)], items.min(4 * processors) as u32);
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, kernel, (grid, 1), 0, args) }
    }

    /// `head_rows.cu`, for at most `rows` rows.
    pub unsafe fn head_rows(
        &self,
        stream: &CudaStream,
        rows: u32,
        args: &HeadRowsArgs,
    ) -> Result<(), CudaError> {
        if args.source > 2 || args.op > 2 {
            return Err(CudaError::Shape(format!("a head's rows of kind {}, {}", args.source, args.op)));
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::HeadRows, (rows.min(4 * self.processors()), 1), 0, args) }
    }

    /// `head_states.cu`: states of at most `tokens` tokens to their places.
    pub unsafe fn keep_states(
        &self,
        stream: &CudaStream,
        tokens: u32,
        args: &KeepArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of hidden states", args.stride, 32)?;
        let grid = self.strided(u64::from(tokens) * u64::from(args.stride / 8));
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::KeepStates, (grid, 1), 0, args) }
    }

    /// `head_states.cu`: means over at most `ends` prompts.
    pub unsafe fn prompt_means(
        &self,
        stream: &CudaStream,
        ends: u32,
        args: &MeanArgs,
    ) -> Result<(), CudaError> {
        multiple("a row of hidden states", args.stride, 32)?;
        let items = u64::from(ends) * u64::from(args.width.div_ceil(64));
        let grid = items.min(4 * u64::from(self.processors())) as u32;
        // SAFETY: the caller's promise.
        unsafe { self.launch(stream, KernelId::PromptMeans, (grid, 1), 0, args) }
    }
}
