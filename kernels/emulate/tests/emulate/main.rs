//! The emulation's own tests: the pretend driver through the real cudarc, the SIMT runtime against plain loops, and
//! kernels with planted faults that must be caught.
//!
//! One process runs one build (`TOKENROUTER_EMU`); `builds` starts this program again for the other two.

mod bugs;
mod builds;
mod capture;
mod collectives;
mod driver;
mod probe;
mod streams;
mod support;
mod warp;
