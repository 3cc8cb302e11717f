//! Router heads in the engine: whole steps through the executor, and files that must be refused.

mod prompts;
mod refusals;
mod start;
mod steps;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "shared by several test binaries; this one needs folders that vanish")]
mod support;

use std::path::{Path, PathBuf};

/// The folder of the golden files.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads")
}
