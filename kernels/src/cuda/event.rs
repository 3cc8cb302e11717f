//! Events: marks on a stream that the host asks for and other streams wait for.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::driver::Device;
use super::error::CudaError;

/// A mark on a stream. It measures no time, which makes asking for it cheap.
pub struct Event {
    handle: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: a handle is a number of the driver, which allows its use from every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has happened, until it is recorded.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let refused = |e| CudaError::driver("making an event", e);
        let context = device.context().clone();
        context.bind_to_thread().map_err(refused)?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let handle = result::event::create(flags).map_err(refused)?;
        Ok(Self { handle, context })
    }

    /// Marks the work that the stream has so far, instead of what was marked before.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let refused = |e| CudaError::driver("recording an event", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: both handles are alive.
        unsafe { result::event::record(self.handle, stream.cu_stream()) }.map_err(refused)
    }

    /// Whether the marked work is done. Never waits.
    ///
    /// # Errors
    /// What the driver says, also about the work itself: a lost device shows here.
    pub fn query(&self) -> Result<bool, CudaError> {
        let refused = |e| CudaError::driver("waiting for the device", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the handle is alive.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(refused(e)),
        }
    }

    /// Waits until the marked work is done.
    ///
    /// # Errors
    /// As [`Event::query`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let refused = |e| CudaError::driver("waiting for the device", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the handle is alive.
        unsafe { result::event::synchronize(self.handle) }.map_err(refused)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made in `new`, destroyed once; streams that wait for it go on doing so.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}

/// Lets later work of `stream` wait for what `event` marks now.
///
/// # Errors
/// What the driver says.
pub fn stream_wait(stream: &CudaStream, event: &Event) -> Result<(), CudaError> {
    let refused = |e| CudaError::driver("ordering streams", e);
    stream.context().bind_to_thread().map_err(refused)?;
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: both handles are alive.
    unsafe { result::stream::wait_event(stream.cu_stream(), event.handle, flags) }.map_err(refused)
}
