//! A shard on the pretend driver: the demo pair and small checkpoints of every architecture, against the CPU's model and
//! against itself.

mod bits;
mod bounds;
mod checkpoint;
mod faults;
mod heads;
mod logprobs;
mod ranks;
mod sampling;
mod support;
mod truth;
