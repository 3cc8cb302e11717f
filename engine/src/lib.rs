//! Models on devices, and the rank loop that drives them.
#![deny(clippy::undocumented_unsafe_blocks)]

pub mod budget;
pub mod config;
pub mod decoder;
pub mod error;
pub mod model;
pub mod ops;
pub mod weights;
