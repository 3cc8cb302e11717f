//! The CUDA device: one shard of one model on one rank, from weights on the card to results in pinned memory.
//!
//! [`CudaModel::load`] packs the shard's weights and allocates every buffer but the cache; then the rank measures what
//! graphs take, plans, allocates the cache, and goes through the four phases of the start. From then on a step is: fill
//! the pinned step block, queue its copy, launch a captured graph (or the same list of kernels one by one), record an
//! event. The results lie in pinned memory when the event has happened. A step allocates nothing.
//!
//! | file | what |
//! | --- | --- |
//! | `context.rs` | a device with its kernels |
//! | `shape.rs` | the sizes of a shard as kernels count them |
//! | `upload.rs`, `weights.rs` | tensors of files to packed weights |
//! | `arena.rs` | activation buffers |
//! | `attention.rs` | the work items of a step, in waves that fit the buffer of partial results |
//! | `block.rs`, `stage.rs` | the step block: its layout, and filling it |
//! | `forward.rs`, `layer.rs`, `finish.rs` | the list of launches |
//! | `graphs.rs` | that list captured, one graph per token bucket |
//! | `results.rs` | from pinned memory to row results |
//! | `model.rs` | all of it together |
//! | `rank.rs` | a device with the shards on it, as the rank loops drive it |
//! | `plan.rs` | who gets how many bytes of which device |
//! | `build.rs` | the stages of the start on all devices |

mod arena;
mod attention;
mod block;
mod build;
mod context;
mod finish;
mod forward;
mod graphs;
mod layer;
mod model;
mod plan;
mod rank;
mod results;
mod shape;
mod stage;
mod start;
#[cfg(test)]
mod tests;
mod upload;
mod weights;

pub use build::CudaStartError;
pub(crate) use build::{DeviceUse, PlacedModel, build};
pub use plan::DeviceTooSmall;
pub(crate) use rank::CudaRank;
