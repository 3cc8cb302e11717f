//! Tests of the kernels through their public interface.

#![allow(clippy::needless_range_loop, reason = "reference loops follow the formulas")]

mod attention;
mod common;
mod heads;
mod int8;
mod layers;
mod logprobs;
mod sampling;
mod signals;
mod workers;
