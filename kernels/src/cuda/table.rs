//! The kernel table: names, argument sizes, block sizes, dynamic shared memory. Tests compare it with the kernels.

use super::args::{
    AttnArgs, EmbedArgs, FoldArgs, LinearArgs, NamedArgs, NormArgs, PackArgs, QkvArgs, SampleArgs,
    SignalArgs, SiluArgs, StatsArgs, UnshardArgs,
};
use super::head_args::{HeadLinearArgs, HeadRowsArgs, KeepArgs, MeanArgs};

/// What the host knows about a kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelInfo {
    /// Its name in the image.
    pub name: &'static str,
    /// Bytes of its one parameter.
    pub params: usize,
    /// Threads of a block.
    pub threads: u32,
    /// Most dynamic shared memory of a launch, bytes.
    pub shared: u32,
}

/// Dynamic shared memory of a linear kernel: a ring of four stages for each of 8 warps, then the partials.
const fn linear_shared(column_tiles: u32, row_tiles: u32) -> u32 {
    8 * 4 * row_tiles * 1024 + 8 * 16 * row_tiles * (8 * column_tiles + 4) * 4
}

/// Three stages of the tiled linear kernel; a first half that waits takes 64 KB more.
pub(super) const TILED_RING: u32 = 3 * 32 * 1024;

/// K and V of a unit, and the sums of earlier segments.
const fn many_shared(head_dim: u32) -> u32 {
    (2 * 128 + 512) * head_dim
}

/// The widest row whose norm fits the default shared memory.
const NORM_SHARED: u32 = 48 * 1024;

macro_rules! kernels {
    ($($id:ident $name:literal $args:ty, $threads:expr, $shared:expr;)*) => {
        /// Every kernel; the number is the place in [`KERNELS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are the kernels'")]
        pub enum KernelId {
            $($id,)*
        }

        /// Every kernel, in the order of [`KernelId`].
        pub const KERNELS: &[KernelInfo] = &[$(KernelInfo {
            name: $name,
            params: size_of::<$args>(),
            threads: $threads,
            shared: $shared,
        },)*];
    };
}

kernels! {
    PackWeight "pack_weight" PackArgs, 256, 0;
    Embed "embed" EmbedArgs, 128, 0;
    RmsNorm "rms_norm" NormArgs, 128, NORM_SHARED;
    LinearNt1 "linear_nt1" LinearArgs, 256, linear_shared(1, 1);
    LinearNt2 "linear_nt2" LinearArgs, 256, linear_shared(2, 1);
    LinearNt4 "linear_nt4" LinearArgs, 256, linear_shared(4, 2);
    LinearNt8 "linear_nt8" LinearArgs, 256, linear_shared(8, 2);
    LinearTiled "linear_tiled" LinearArgs, 256, TILED_RING + 64 * 1024;
    FoldRanks "fold_ranks" FoldArgs, 256, 0;
    UnshardLogits "unshard_logits" UnshardArgs, 256, 0;
    QkvHd16 "qkv_hd16" QkvArgs, 256, 0;
    QkvHd32 "qkv_hd32" QkvArgs, 256, 0;
    QkvHd64 "qkv_hd64" QkvArgs, 256, 0;
    QkvHd128 "qkv_hd128" QkvArgs, 256, 0;
    AttentionHd16 "attention_hd16" AttnArgs, 128, 0;
    AttentionHd32 "attention_hd32" AttnArgs, 128, 0;
    AttentionHd64 "attention_hd64" AttnArgs, 128, 0;
    AttentionHd128 "attention_hd128" AttnArgs, 128, 0;
    ManyHd16 "attention_many_hd16" AttnArgs, 256, many_shared(16);
    ManyHd32 "attention_many_hd32" AttnArgs, 256, many_shared(32);
    ManyHd64 "attention_many_hd64" AttnArgs, 256, many_shared(64);
    ManyHd128 "attention_many_hd128" AttnArgs, 256, many_shared(128);
    MergeHd16 "attention_merge_hd16" AttnArgs, 256, 0;
    MergeHd32 "attention_merge_hd32" AttnArgs, 256, 0;
    MergeHd64 "attention_merge_hd64" AttnArgs, 256, 0;
    MergeHd128 "attention_merge_hd128" AttnArgs, 256, 0;
    SiluMul "silu_mul" SiluArgs, 256, 0;
    LogitStats "logit_stats" StatsArgs, 256, 0;
    RowSignals "row_signals" SignalArgs, 256, 0;
    NamedLogits "named_logits" NamedArgs, 256, 0;
    SampleTokens "sample_tokens" SampleArgs, 256, 0;
    HeadLinearF32 "head_linear_f32" HeadLinearArgs, 256, 0;
    HeadLinearBf16 "head_linear_bf16" HeadLinearArgs, 256, 0;
    HeadLinearNarrowF32 "head_linear_narrow_f32" HeadLinearArgs, 256, 0;
    HeadLinearNarrowBf16 "head_linear_narrow_bf16" HeadLinearArgs, 256, 0;
    HeadRows "head_rows" HeadRowsArgs, 256, 0;
    KeepStates "keep_states" KeepArgs, 256, 0;
    PromptMeans "prompt_means" MeanArgs, 256, 0;
}

impl KernelId {
    /// Its entry.
    pub const fn info(self) -> &'static KernelInfo {
        &KERNELS[self as usize]
    }
}
