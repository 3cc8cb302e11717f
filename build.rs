//! Build script of the kernels crate (`build = "../build.rs"` in kernels/Cargo.toml).
//!
//! It says plainly what it did: the text lands in `tokenrouter_kernels::BUILD_REPORT`, which
//! `tokenrouter --version` prints.

fn main() {
    println!("cargo:rerun-if-changed=../build.rs");
    println!(
        "cargo:rustc-env=TOKENROUTER_BUILD_REPORT=cuda feature off, no CUDA kernels compiled; CPU kernels for {}",
        std::env::var("TARGET").unwrap_or_else(|_| "this target".into())
    );
}
