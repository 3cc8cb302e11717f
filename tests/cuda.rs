//! Every CUDA kernel through cudarc: against references in f64, against the CPU where the rules are exact, and against
//! itself, since a row's bits may depend on nothing but the row (DESIGN rule 5).
//!
//! Without a GPU the kernels run thread by thread under the pretend driver of `kernels/emulate`, once per scheduling
//! seed, and all seeds must give the same bits. With a driver, a GPU and the feature `cuda` of the kernels crate, the
//! same tests run on the device.

#[path = "cuda/harness.rs"]
mod harness;

#[path = "cuda/attention.rs"]
mod attention;
#[path = "cuda/fold.rs"]
mod fold;
#[path = "cuda/heads.rs"]
mod heads;
#[path = "cuda/layers.rs"]
mod layers;
#[path = "cuda/linear.rs"]
mod linear;
#[path = "cuda/linear_tiled.rs"]
mod linear_tiled;
#[path = "cuda/qkv.rs"]
mod qkv;
#[path = "cuda/sampling.rs"]
mod sampling;
#[path = "cuda/signals.rs"]
mod signals;
#[path = "cuda/table.rs"]
mod table;
