//! The model side of the engine: configuration, weights, budget, and whole forward passes.

mod budget;
mod config;
mod forward;
mod int8;
mod parts;
mod ranks;
mod rope;
#[path = "../support/mod.rs"]
mod support;
mod weights;
