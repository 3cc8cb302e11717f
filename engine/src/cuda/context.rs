//! A device with its kernels: what all models of a rank share.

use tokenrouter_kernels::cuda::{CudaError, Device, Kernels};

/// One per rank. Outlives every model on it.
pub(crate) struct RankContext {
    /// The card.
    pub(crate) device: Device,
    /// Its kernels.
    pub(crate) kernels: Kernels,
}

impl RankContext {
    /// Opens device `ordinal` and loads `images` (normally `tokenrouter_kernels::cuda::images()`) on it.
    ///
    /// # Errors
    /// No driver, no such device, no kernels in this binary, or what the driver says.
    pub(crate) fn open(ordinal: usize, images: &[&[u8]]) -> Result<Self, CudaError> {
        let device = Device::open(ordinal)?;
        let kernels = Kernels::load(&device, images)?;
        Ok(Self { device, kernels })
    }
}
