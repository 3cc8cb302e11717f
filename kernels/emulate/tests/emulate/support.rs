//! A context, a stream and the test kernels, in one line.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig,
    result,
};
use cudarc::nvrtc::Ptx;
use tokenrouter_emulate::{Kernels, STUB_IMAGE, Session, Settings, session_with, skip};

/// A session on the self-test kernels, or `None` after saying why not.
pub(crate) fn begin(settings: Settings) -> Option<Session> {
    session_with(Kernels::SelfTest, settings).map_err(|why| skip(&why)).ok()
}

/// What most tests need. Fields drop in order: everything of cudarc before the context.
pub(crate) struct Rig {
    pub(crate) module: Arc<CudaModule>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) ctx: Arc<CudaContext>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let ctx = CudaContext::new(0).expect("the emulation has a device");
        // SAFETY: the tests order their streams themselves.
        unsafe { ctx.disable_event_tracking() };
        let stream = ctx.new_stream().expect("a stream");
        let module = ctx.load_module(Ptx::from_binary(STUB_IMAGE.to_vec())).expect("the stub is accepted");
        Self { module, stream, ctx }
    }

    pub(crate) fn function(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// A grid of one-dimensional blocks.
pub(crate) fn grid(blocks: u32, threads: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared }
}

/// The driver's name of an error.
pub(crate) fn name(error: DriverError) -> String {
    error.error_name().map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned())
}

/// The driver's text of an error.
pub(crate) fn words(error: DriverError) -> String {
    error.error_string().map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned())
}

/// Pinned host memory without cudarc's events: `n` values that are all ones until something writes them.
pub(crate) struct Pinned<T> {
    start: *mut T,
    n: usize,
}

impl<T: Copy> Pinned<T> {
    pub(crate) fn new(n: usize) -> Self {
        // SAFETY: a fresh allocation of n values.
        let start = unsafe { result::malloc_host(n * size_of::<T>(), 0) }.expect("pinned memory").cast();
        Self { start, n }
    }

    pub(crate) fn get(&self, i: usize) -> T {
        assert!(i < self.n);
        // SAFETY: inside the allocation; the emulation writes only while the driver is called.
        unsafe { self.start.add(i).read_volatile() }
    }

    pub(crate) fn set(&self, i: usize, value: T) {
        assert!(i < self.n);
        // SAFETY: inside the allocation; the emulation reads only while the driver is called.
        unsafe { self.start.add(i).write_volatile(value) }
    }

    /// The address, which kernels may use as it is.
    pub(crate) fn device(&self) -> *mut c_void {
        self.start.cast()
    }

    /// Queues a copy of everything to the device.
    pub(crate) fn copy_to(&self, to: u64, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: the copy is queued; both sides outlive it in the tests that wait for it.
        unsafe {
            let slice = std::slice::from_raw_parts(self.start, self.n);
            result::memcpy_htod_async(to, slice, stream.cu_stream())
        }
    }

    /// Queues a copy of everything from the device.
    pub(crate) fn copy_from(&self, from: u64, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe {
            let slice = std::slice::from_raw_parts_mut(self.start, self.n);
            result::memcpy_dtoh_async(slice, from, stream.cu_stream())
        }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in new(); an error at the end of a test that broke its context means nothing.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// The device address of a slice, without event tracking.
pub(crate) fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}
