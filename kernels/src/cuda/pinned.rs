//! Page-locked host memory and the copies that run on a stream. All of them may be captured.
//!
//! Nothing here waits: cudarc's own pinned slices synchronise behind the caller's back, which no capture survives.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::driver::Device;
use super::error::CudaError;
use super::ptr::Ptr;

/// `len` elements in page-locked host memory, zeroed when made. Every device of the process may copy from and to it.
pub struct Pinned<T> {
    start: *mut T,
    len: usize,
    context: Arc<CudaContext>,
}

// SAFETY: the memory is plain host memory, owned by this value alone.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Zeroed memory; at least one element, so that every block has an address.
    ///
    /// `write_combined` memory is faster for the device to read and very slow for the host to read: for inputs only.
    ///
    /// # Errors
    /// What the driver says, with the bytes that were asked for.
    pub fn new(device: &Device, len: usize, write_combined: bool) -> Result<Self, CudaError> {
        let bytes = len.max(1).checked_mul(size_of::<T>());
        let bytes =
            bytes.ok_or_else(|| CudaError::Shape(format!("a block of {len} elements is too large")))?;
        let refused = |e| CudaError::driver(format!("allocating {bytes} bytes of page-locked memory"), e);
        let context = device.context().clone();
        context.bind_to_thread().map_err(refused)?;
        let mut flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        if write_combined {
            flags |= sys::CU_MEMHOSTALLOC_WRITECOMBINED;
        }
        // SAFETY: the size is not zero.
        let start = unsafe { result::malloc_host(bytes, flags) }.map_err(refused)?;
        // SAFETY: the block was just allocated with this many bytes.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { start: start.cast(), len, context })
    }

    /// All elements. What the device writes shows once its work has been waited for, and not before.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the block has this many elements, all bytes of which were written; who queued a copy into it promised
        // that nobody looks before the copy is done.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// All elements, to be written while no copy from here is queued.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has the block.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Its address, under which kernels may use it as well.
    pub fn ptr(&self) -> Ptr<T> {
        Ptr::new(self.start as u64)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, part: &Range<usize>) -> Result<(), CudaError> {
        if part.start <= part.end && part.end <= self.len {
            return Ok(());
        }
        let what = format!("elements {} to {} of a block of {}", part.start, part.end, self.len);
        Err(CudaError::Shape(what))
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// Queues a copy of `part` of a block to the device; it reads the block when the stream gets there.
///
/// # Errors
/// When `part` is not inside the block, or what the driver says.
///
/// # Safety
/// `to` must have room. Until the stream has made the copy (and, when captured, during every replay) both sides must live
/// and the host must not write the part.
pub unsafe fn copy_to_device_async<T: Pod>(
    stream: &CudaStream,
    to: Ptr<T>,
    from: &Pinned<T>,
    part: Range<usize>,
) -> Result<(), CudaError> {
    from.check(&part)?;
    let refused = |e| CudaError::driver("copying to the device", e);
    stream.context().bind_to_thread().map_err(refused)?;
    let bytes = part.len() * size_of::<T>();
    // SAFETY: the part lies inside the block; the caller answers for the rest.
    unsafe {
        let source = from.start.add(part.start).cast();
        sys::cuMemcpyHtoDAsync_v2(to.address(), source, bytes, stream.cu_stream())
    }
    .result()
    .map_err(refused)
}

/// Queues a copy from the device into `part` of a block.
///
/// # Errors
/// As [`copy_to_device_async`].
///
/// # Safety
/// `from` must hold the elements. Until the stream has made the copy (and, when captured, during every replay) both sides
/// must live and the host must neither read nor write the part.
pub unsafe fn copy_to_host_async<T: Pod>(
    stream: &CudaStream,
    to: &Pinned<T>,
    part: Range<usize>,
    from: Ptr<T>,
) -> Result<(), CudaError> {
    to.check(&part)?;
    let refused = |e| CudaError::driver("copying from the device", e);
    stream.context().bind_to_thread().map_err(refused)?;
    let bytes = part.len() * size_of::<T>();
    // SAFETY: as above.
    unsafe {
        let target = to.start.add(part.start).cast();
        sys::cuMemcpyDtoHAsync_v2(target, from.address(), bytes, stream.cu_stream())
    }
    .result()
    .map_err(refused)
}

/// Queues zeros for `len` elements.
///
/// # Errors
/// What the driver says.
///
/// # Safety
/// The memory must have this many elements and live until the stream has written them.
pub unsafe fn zero_async<T: Pod>(stream: &CudaStream, at: Ptr<T>, len: usize) -> Result<(), CudaError> {
    let refused = |e| CudaError::driver("clearing device memory", e);
    if len == 0 {
        return Ok(());
    }
    stream.context().bind_to_thread().map_err(refused)?;
    // SAFETY: the caller's promise.
    unsafe { result::memset_d8_async(at.address(), 0, len * size_of::<T>(), stream.cu_stream()) }
        .map_err(refused)
}
