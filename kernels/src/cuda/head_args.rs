//! Arguments of the router heads' kernels, as [`args`](super::args).

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::args::arguments;
use super::ptr::Ptr;

/// What a head's layer does to its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None = 0,
    /// The exact GELU.
    Gelu = 1,
    /// ReLU.
    Relu = 2,
    /// `x * sigmoid(x)`.
    Silu = 3,
}

arguments! {
    /// `head_linear.cu`.
    HeadLinearArgs {
        /// `[n][w_stride]`, f32 or bf16, columns k .. zero.
        w: Ptr<u8>,
        /// `[n]` or null.
        bias: Ptr<f32>,
        /// `[R][x_stride]`, f32 or bf16.
        x: Ptr<u8>,
        /// `[R][add_stride]` or null; may be `y`.
        add: Ptr<f32>,
        /// `[R][y_stride]`.
        y: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// A set of heads, or null.
        wanted: Ptr<u32>,
        /// The bit of `wanted` without which nothing happens.
        head: u32,
        /// Features.
        n: u32,
        /// Columns.
        k: u32,
        /// Elements, a multiple of 4.
        w_stride: u32,
        /// Elements, a multiple of 4.
        x_stride: u32,
        /// Elements.
        add_stride: u32,
        /// Elements.
        y_stride: u32,
        /// 1: x is bf16.
        x_bf16: u32,
        /// An [`Activation`].
        activation: u32,
    }

    /// `head_rows.cu`: rows as f32, copied, normalised, or their softmax.
    HeadRowsArgs {
        /// Rows of f32 or bf16, or a packed table.
        x: Ptr<u8>,
        /// Rows of the table, `[R]`.
        ids: Ptr<u32>,
        /// `[width]`.
        weight: Ptr<f32>,
        /// `[width]`.
        bias: Ptr<f32>,
        /// `[R][out_stride]`.
        out: Ptr<f32>,
        /// R.
        rows: Ptr<u32>,
        /// A set of heads, or null.
        wanted: Ptr<u32>,
        /// The bit of `wanted` without which nothing happens.
        head: u32,
        /// 0 f32, 1 bf16, 2 a packed table.
        source: u32,
        /// 0 copy, 1 LayerNorm, 2 softmax.
        op: u32,
        /// Columns.
        width: u32,
        /// Elements.
        x_stride: u32,
        /// Elements.
        out_stride: u32,
        /// 32-blocks of a row of the table.
        kb: u32,
        /// Rows of the table.
        vocab: u32,
        /// Added to the variance.
        eps: f32,
    }

    /// `head_states.cu`: states of all tokens of a step to their places in the cache.
    KeepArgs {
        /// `[T][stride]`.
        states: Ptr<bf16>,
        /// `[page][16][stride]`.
        kept: Ptr<bf16>,
        /// `[T]`.
        positions: Ptr<u32>,
        /// `[T]`.
        token_row: Ptr<u32>,
        /// `[rows][table_stride]` of pages.
        tables: Ptr<u32>,
        /// T.
        tokens: Ptr<u32>,
        /// Elements, a multiple of 32.
        stride: u32,
        /// Pages of a row of `tables`.
        table_stride: u32,
    }

    /// `head_states.cu`: means over prompts.
    MeanArgs {
        /// `[page][16][stride]`.
        kept: Ptr<bf16>,
        /// `[E]`.
        ends: Ptr<HeadEnd>,
        /// `[rows][table_stride]` of pages.
        tables: Ptr<u32>,
        /// `[E][out_stride]`.
        means: Ptr<f32>,
        /// E.
        count: Ptr<u32>,
        /// A set of heads, or null.
        wanted: Ptr<u32>,
        /// The bit of `wanted` without which nothing happens.
        head: u32,
        /// Columns.
        width: u32,
        /// Elements, a multiple of 32.
        stride: u32,
        /// Elements.
        out_stride: u32,
        /// Pages of a row of `tables`.
        table_stride: u32,
    }
}

/// A row of a step that has seen its prompt and no more, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct HeadEnd {
    /// The row's index in the step.
    pub row: u32,
    /// Tokens of its prompt, at least 1.
    pub tokens: u32,
}
