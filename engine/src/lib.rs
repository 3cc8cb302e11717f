//! Models on devices, and the rank loop that drives them.
//!
//! [`start`] opens every checkpoint, plans the memory once, builds the models and starts the rank loop; the
//! server talks to it through the [`EngineHandle`].
#![deny(clippy::undocumented_unsafe_blocks)]

mod affinity;
pub mod budget;
pub mod comm;
pub mod config;
#[cfg(feature = "cuda-host")]
mod cuda;
pub mod decoder;
pub mod device;
pub mod error;
pub mod executor;
pub mod faults;
pub mod heads;
mod logprobs;
pub mod model;
pub mod ops;
pub mod shard;
pub mod step;
pub mod weights;

pub mod handle;
mod planner;
pub mod probe;
mod rank;
mod ranks;
pub mod scores;
mod start;
pub mod status;
pub mod tally;

#[cfg(feature = "cuda-host")]
pub use cuda::{CudaStartError, DeviceTooSmall};
pub use device::{CudaOptions, DeviceKind, check_devices};
pub use faults::FaultOptions;
pub use handle::{
    ClientEvent, ClientId, Command, EngineHandle, EngineInfo, EngineRequest, ModelInfo, RefuseError, Report,
    RouteInfo, SendError,
};
pub use logprobs::{MAX_LOGPROBS, TokenLogprobs};
pub use start::{
    Checked, EngineConfig, EngineError, EngineModel, Hints, RouteConfig, check, start, start_hinted,
    start_wrapped,
};
pub use status::{EngineState, EngineStatus, ModelState, ModelStatus};
pub use tokenrouter_kernels::sampling::SamplingParams;
pub use tokenrouter_kernels::{BUILD_REPORT, DType};
pub use weights::WeightForm;
