//! The link-time driver preflight by itself: `cargo run -p tokenrouter-kernels --features cuda-sys --example preflight`.
//! The linker looks for the driver in `CUDA_LIBRARY_PATH`.

fn main() -> std::process::ExitCode {
    match tokenrouter_kernels::cuda::preflight() {
        Ok(found) => {
            println!("{found}");
            std::process::ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            std::process::ExitCode::FAILURE
        }
    }
}
