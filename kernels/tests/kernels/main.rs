//! Tests of the kernels through their public interface.

mod attention;
mod common;
mod layers;
mod sampling;
mod signals;
mod workers;
