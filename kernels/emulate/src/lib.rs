//! CUDA kernels on the CPU, thread by thread, under a pretend driver: for tests, never shipped.
//!
//! `kernels/cuda/*.cu` are compiled as C++ over `include/emu.h` and linked with a SIMT runtime and about 70 functions of
//! the CUDA driver API into a `libcuda.so.1`. Once [`session`] has loaded it, cudarc in the same process finds it where
//! it looks for the driver, and runs unchanged. See README.md for what this can see and what it cannot.
#![deny(clippy::undocumented_unsafe_blocks)]

mod library;
mod session;

pub use library::{Build, Kernels, library_folder};
pub use session::{Session, Settings, seeds, session, session_with, skip};

/// The first bytes of a fat binary: the pretend driver accepts it as a module image and looks kernels up in its own
/// table, so tests run without nvcc.
pub const STUB_IMAGE: [u8; 16] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0];
