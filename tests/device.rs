//! The CUDA device's host side without a GPU: what is said where none can be used, and the driver seam (pinned memory,
//! events, graphs, communicators) on the pretend driver of `kernels/emulate`.

#[path = "device/nccl.rs"]
mod nccl;
#[path = "device/refusals.rs"]
mod refusals;
#[path = "device/seam.rs"]
mod seam;
