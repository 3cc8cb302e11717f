//! The mathematics of a step, per device. This crate knows no model and no request.
//!
//! Contract on bits: every kernel has one documented reduction order. The AVX2 path, the portable
//! path and the scalar twin follow it and agree to the bit (NaN payloads aside), whatever the
//! number of threads, the batch around a row, or the way its tokens were fed.
#![deny(clippy::undocumented_unsafe_blocks)]
#![allow(clippy::needless_range_loop, reason = "lanes and register tiles are indexed alike")]

pub mod cpu;
#[cfg(feature = "cuda-host")]
pub mod cuda;
mod dtype;
pub mod logprobs;
pub mod rng;
pub mod sampling;
pub mod signals;
mod survey;
pub mod top;

pub use dtype::DType;

/// What the build script compiled, in words.
pub const BUILD_REPORT: &str = env!("TOKENROUTER_BUILD_REPORT");
