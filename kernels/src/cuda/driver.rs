//! A GPU and its context. Everything that cudarc would answer with a panic is asked for here first.

use std::sync::Arc;

use cudarc::driver::sys;
use cudarc::driver::{CudaContext, CudaStream, result};

use super::error::CudaError;
use super::image::BUILT_WITH;

/// The oldest driver whose functions the host code uses: CUDA 12.0.
const OLDEST_DRIVER: i32 = 12_000;
/// Compute capability of the oldest device that runs the kernels.
const OLDEST_DEVICE: (i32, i32) = (8, 0);

/// One GPU, its primary context, and what the launch plans need to know.
pub struct Device {
    context: Arc<CudaContext>,
    name: String,
    capability: (i32, i32),
    processors: u32,
}

impl Device {
    /// Number of devices that the driver sees.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::OldDriver`], or what the driver says.
    pub fn count() -> Result<usize, CudaError> {
        #[cfg(feature = "cuda-sys")]
        super::preflight::once()?;
        // SAFETY: opens libraries by name and closes them again.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let mut driver = 0;
        // SAFETY: the driver is there, and this is its oldest function.
        unsafe { sys::cuDriverGetVersion(&mut driver) }
            .result()
            .map_err(|e| CudaError::driver("asking the driver for its version", e))?;
        // Kernels of one major version run on every driver of that version.
        let needs = BUILT_WITH.map_or(OLDEST_DRIVER, |(major, _)| major * 1000);
        if driver < needs {
            return Err(CudaError::OldDriver {
                driver,
                needs: BUILT_WITH.map_or(OLDEST_DRIVER, |(a, b)| a * 1000 + b * 10),
            });
        }
        match CudaContext::device_count() {
            Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
            Err(e) => Err(CudaError::driver("starting the driver", e)),
        }
    }

    /// Opens device `ordinal` and makes its context.
    ///
    /// # Errors
    /// As [`Device::count`]; [`CudaError::NoDevice`], [`CudaError::TooOld`], or what the driver says.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let refused = |e| CudaError::driver(format!("opening CUDA device {ordinal}"), e);
        let context = CudaContext::new(ordinal).map_err(refused)?;
        // SAFETY: streams are ordered by our own events; nothing was allocated yet.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(refused)?;
        let capability = context.compute_capability().map_err(refused)?;
        if capability < OLDEST_DEVICE {
            return Err(CudaError::TooOld { ordinal, name, capability });
        }
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors = context.attribute(attribute).map_err(refused)?;
        Ok(Self { context, name, capability, processors: u32::try_from(processors).unwrap_or(1).max(1) })
    }

    /// Its context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its compute capability.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Streaming multiprocessors.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// A new stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Result<Arc<CudaStream>, CudaError> {
        self.context.new_stream().map_err(|e| CudaError::driver("making a stream", e))
    }

    /// A new stream whose work goes before other streams' (`high`) or after it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_with_priority(&self, high: bool) -> Result<Arc<CudaStream>, CudaError> {
        let refused = |e| CudaError::driver("making a stream", e);
        self.context.bind_to_thread().map_err(refused)?;
        let (least, greatest) = result::stream::get_priority_range().map_err(refused)?;
        let priority = if high { greatest } else { least };
        self.context.new_stream_with_priority(priority).map_err(refused)
    }

    /// Bytes of its memory: free, and all. What other processes hold is not free.
    ///
    /// # Errors
    /// What the driver says; a capture of this thread does not survive the question.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let refused = |e| CudaError::driver("asking for free memory", e);
        self.context.bind_to_thread().map_err(refused)?;
        let (free, total) = result::mem_get_info().map_err(refused)?;
        Ok((free as u64, total as u64))
    }

    /// Waits until the stream has done everything.
    ///
    /// # Errors
    /// What the driver says, also about the work itself.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), CudaError> {
        stream.synchronize().map_err(|e| CudaError::driver("waiting for the device", e))
    }
}
