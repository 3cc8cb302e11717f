//! CPU kernels. Activations are f32, contiguous and row-major; `T` is the number of fed tokens.
//!
//! The shared reduction: *a dot product over K* keeps 8 accumulators that start at +0; element `k`
//! goes into accumulator `k % 8` by a fused multiply-add, in order of `k`; a last partial group is
//! padded with zeros on both sides; the accumulators `a` are joined as
//! `((a0+a4)+(a2+a6)) + ((a1+a5)+(a3+a7))`. Every result element is computed by one thread.
//!
//! Operations check their shapes and panic on a mismatch: shapes come from the program, never from
//! a request. Token ids, positions and pages are bound-checked as well.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dot;
mod embed;
mod gelu;
mod int8;
mod isa;
mod kv;
mod lanes;
mod layer_norm;
mod linear;
mod mask;
pub mod math;
mod matrix;
mod norm;
mod pair;
mod qkv;
mod rope;
pub mod scalar;
mod shared;
mod silu;
mod tokens;
mod weight;
mod workers;

pub use attention::{AttnArgs, SEGMENT_TOKENS, attention};
pub use embed::embed;
pub use gelu::{gelu, gelu_one};
pub use int8::{BLOCK as INT8_BLOCK, Int8Ref, NotInt8, quantise};
pub use isa::Isa;
pub use kv::{KvArena, KvError, KvLayout};
pub(crate) use lanes::{Kernel, Lanes, Registers, dispatch, none_above};
pub use layer_norm::layer_norm;
pub use linear::{Reduce, fold, linear, segment_borders};
pub use mask::mask_padding;
pub use matrix::Matrix;
pub use norm::{add_rms_norm, rms_norm};
pub use qkv::{QkvArgs, qk_norm_rope_kv};
pub use rope::RopeTable;
pub use silu::silu_mul;
pub use tokens::{PAGE_TOKENS, StepTokens};
pub use weight::{WeightError, WeightRef};
pub use workers::{AtWork, Cores, WorkerGroup};

/// Where an operation runs: the instruction set and the threads.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// Instruction set; an unsupported one falls back to the portable path, with the same bits.
    pub isa: Isa,
    /// The threads of the model.
    pub workers: &'a WorkerGroup,
}

/// Below this many multiply-adds (about 10 microseconds) an operation runs on the caller alone:
/// waking a parked thread costs more.
const MIN_PARALLEL_WORK: usize = 1 << 18;

/// Into how many parts to cut `units` units of work that cost `work` multiply-adds together. Parts
/// are claimed one at a time, so a few more parts than threads even out a busy neighbour.
fn part_count(ctx: &Ctx<'_>, units: usize, work: usize) -> usize {
    let threads = ctx.workers.threads();
    if threads == 1 || work < MIN_PARALLEL_WORK {
        return 1;
    }
    units.min(4 * threads).min(work / (MIN_PARALLEL_WORK / 4)).max(1)
}

/// The units of part `part` of `parts`: borders at `part * units / parts`.
fn part_range(units: usize, parts: usize, part: usize) -> std::ops::Range<usize> {
    part * units / parts..(part + 1) * units / parts
}
