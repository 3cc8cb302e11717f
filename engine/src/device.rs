//! Where models run.

/// Whether models can run on CUDA here, with this binary. The error is a sentence for the operator.
///
/// # Errors
/// No kernels in this binary, no driver, an old driver, no GPU, an old GPU; and, on a machine that has all of it, that
/// this version has no CUDA executor.
pub fn open_cuda() -> Result<(), String> {
    #[cfg(feature = "cuda")]
    {
        use tokenrouter_kernels::cuda::{Device, Kernels, images};
        let device = Device::open(0).map_err(|e| e.to_string())?;
        Kernels::load(&device, images()).map_err(|e| e.to_string())?;
        Err(format!(
            "the kernels load on {}, but models do not run on CUDA in this version: its CUDA executor is missing; run \
             with --device cpu",
            device.name()
        ))
    }
    #[cfg(not(feature = "cuda"))]
    Err("this binary holds no CUDA kernels: build it with --features cuda, or run with --device cpu".into())
}
