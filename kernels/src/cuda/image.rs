//! The compiled kernels inside this binary.

#[cfg(feature = "cuda")]
mod embedded {
    /// Images are read in place by the driver, which wants them aligned.
    #[repr(align(16))]
    struct Aligned<T: ?Sized>(T);

    include!(concat!(env!("OUT_DIR"), "/cuda_images.rs"));
}

/// CUDA version (major, minor) of the toolkit that compiled the embedded kernels; `None` without feature `cuda`.
#[cfg(feature = "cuda")]
pub const BUILT_WITH: Option<(i32, i32)> = Some(embedded::VERSION);
/// CUDA version (major, minor) of the toolkit that compiled the embedded kernels; `None` without feature `cuda`.
#[cfg(not(feature = "cuda"))]
pub const BUILT_WITH: Option<(i32, i32)> = None;

/// One fat binary per kernel file (sm_80 and sm_90 code, PTX for later devices); none without feature `cuda`.
pub fn images() -> &'static [&'static [u8]] {
    #[cfg(feature = "cuda")]
    return &embedded::IMAGES;
    #[cfg(not(feature = "cuda"))]
    &[]
}
