//! The whole engine on CUDA without a GPU: `Core`, rank loops, launch records, captured graphs, collectives and kernels
//! run unchanged under the pretend driver of `kernels/emulate`, with the demo pair.
//!
//! On one device arithmetic the promise is equality: the same tokens under every policy, concurrency, bucket and placement
//! up to two ranks a model, with graphs and without. Against the CPU, whose activations are f32 where the device's
//! are bf16, it is the numeric policy of `docs/cuda.md`.

mod support;

#[path = "cuda_engine/equality.rs"]
mod equality;
#[path = "cuda_engine/faults.rs"]
mod faults;
#[path = "cuda_engine/logprobs.rs"]
mod logprobs;
#[path = "cuda_engine/numbers.rs"]
mod numbers;
#[path = "cuda_engine/pretend.rs"]
mod pretend;
