//! The mathematics of a step, per device. This crate knows no model and no request.
#![deny(clippy::undocumented_unsafe_blocks)]

/// What the build script compiled, in words.
pub const BUILD_REPORT: &str = env!("TOKENROUTER_BUILD_REPORT");
