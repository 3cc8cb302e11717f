//! The CUDA device, host side: the driver with clean errors, the kernels' images, and one typed function per kernel.
//!
//! The driver is opened at run time, so a binary with this feature starts on any machine. The kernels are
//! `kernels/cuda/*.cu`; each file states its shapes and layouts. The feature `cuda-host` compiles this module alone;
//! the feature `cuda` compiles the kernels too and embeds their images.

mod args;
mod buffer;
mod driver;
mod error;
mod event;
mod graph;
mod head_args;
mod head_launch;
mod image;
mod launch;
mod load;
mod nccl;
mod pinned;
#[cfg(feature = "cuda-sys")]
mod preflight;
mod ptr;
mod table;

pub use args::{
    AttnArgs, AttnRow, EmbedArgs, FoldArgs, LinearArgs, NamedArgs, NormArgs, PackArgs, QkvArgs, RowSample,
    RowSignals, SampleArgs, SignalArgs, SiluArgs, StatsArgs, TileStats, UnshardArgs,
};
pub use buffer::Buffer;
pub use cudarc::driver::CudaStream;
pub use driver::Device;
pub use error::CudaError;
pub use event::{Event, stream_wait};
pub use graph::{Capture, Graph, GraphExec};
pub use head_args::{Activation, HeadEnd, HeadLinearArgs, HeadRowsArgs, KeepArgs, MeanArgs};
pub use image::{BUILT_WITH, images};
pub use launch::{AttnPlan, HEAD_DIMS, MANY_QUERIES, MAX_RANKS, MAX_TOP, STAT_TILE, UNIT_TOKENS, packed_len};
pub use load::Kernels;
pub use nccl::{Communicator, NcclId};
pub use pinned::{Pinned, copy_to_device_async, copy_to_host_async, zero_async};
#[cfg(feature = "cuda-sys")]
pub use preflight::{Preflight, PreflightDevice, preflight};
pub use ptr::Ptr;
pub use table::{KERNELS, KernelId, KernelInfo};
