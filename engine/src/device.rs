//! Where models run.

/// The kind of device that all models run on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DeviceKind {
    /// The processor. The devices of a placement are ranks with threads of their own.
    #[default]
    Cpu,
    /// NVIDIA GPUs.
    Cuda(CudaOptions),
}

/// How GPUs are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaOptions {
    /// Share of a device's memory that the engine may use, above 0 and at most 1.
    pub memory_fraction: f64,
    /// Bytes to use on every device instead of a share.
    pub memory_bytes: Option<u64>,
    /// Whether steps run from graphs captured at the start.
    pub graphs: bool,
    /// Tokens of the largest captured step; larger ones run uncaptured.
    pub largest_bucket: u32,
    /// The kernels: see [`cuda_images`].
    pub images: &'static [&'static [u8]],
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            memory_fraction: 0.9,
            memory_bytes: None,
            graphs: true,
            largest_bucket: 256,
            images: cuda_images(),
        }
    }
}

/// The kernels in this binary; empty when it was built without the feature `cuda`.
pub fn cuda_images() -> &'static [&'static [u8]] {
    #[cfg(feature = "cuda")]
    return tokenrouter_kernels::cuda::images();
    #[cfg(not(feature = "cuda"))]
    return &[];
}

/// Device numbers stay below this: more are a slip of the keyboard, and a set of ranks fits into a word.
const MAX_DEVICES: usize = 64;

/// Whether a model can be placed on these devices, whatever the model.
///
/// # Errors
/// In words: no device, one that is named twice, a number that no machine has.
pub fn check_devices(devices: &[usize]) -> Result<(), String> {
    if devices.is_empty() {
        return Err("devices is empty; at least one device is needed, like [0]".to_owned());
    }
    if let Some(device) = devices.iter().find(|d| **d >= MAX_DEVICES) {
        return Err(format!("devices names device {device}; numbers go up to {}", MAX_DEVICES - 1));
    }
    match devices.iter().enumerate().find(|(i, d)| devices[..*i].contains(d)) {
        Some((_, device)) => {
            Err(format!("devices names device {device} twice; each part needs a device of its own"))
        }
        None => Ok(()),
    }
}

impl DeviceKind {
    /// Refuses what cannot work before anything is opened. The error is a sentence for the operator.
    ///
    /// # Errors
    /// No kernels in this binary, no driver, an old driver.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(options) => check_cuda(options),
        }
    }
}

fn check_cuda(options: &CudaOptions) -> Result<(), String> {
    if options.images.is_empty() {
        return Err(
            "this binary holds no CUDA kernels: build it with --features cuda, or run with --device cpu"
                .into(),
        );
    }
    #[cfg(feature = "cuda-host")]
    return tokenrouter_kernels::cuda::Device::count().map(|_| ()).map_err(|e| e.to_string());
    #[cfg(not(feature = "cuda-host"))]
    Err("this binary cannot open CUDA devices: build it with --features cuda, or run with --device cpu"
        .into())
}
