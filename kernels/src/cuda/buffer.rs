//! Device memory that lives until it is dropped.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, result};

use super::driver::Device;
use super::error::CudaError;
use super::ptr::Ptr;

/// `len` elements in device memory. Made with plain allocation, not from a pool: peers may map it.
pub struct Buffer<T> {
    ptr: Ptr<T>,
    len: usize,
    context: Arc<CudaContext>,
}

impl<T: Pod> Buffer<T> {
    /// Zeroed memory; at least one element, so that every buffer has an address.
    ///
    /// # Errors
    /// What the driver says, with the bytes that were asked for.
    pub fn zeroed(device: &Device, stream: &CudaStream, len: usize) -> Result<Self, CudaError> {
        let bytes = len.max(1).checked_mul(size_of::<T>());
        let bytes =
            bytes.ok_or_else(|| CudaError::Shape(format!("a buffer of {len} elements is too large")))?;
        let refused = |e| CudaError::driver(format!("allocating {bytes} bytes"), e);
        let context = device.context().clone();
        context.bind_to_thread().map_err(refused)?;
        // SAFETY: the size is not zero.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(refused)?;
        let buffer = Self { ptr: Ptr::new(address), len, context };
        // SAFETY: the memory is ours and has this many bytes.
        unsafe { result::memset_d8_async(address, 0, bytes, stream.cu_stream()) }.map_err(refused)?;
        Ok(buffer)
    }

    /// Memory with these elements.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn from_slice(device: &Device, stream: &CudaStream, values: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::zeroed(device, stream, values.len())?;
        buffer.write(stream, values)?;
        Ok(buffer)
    }

    /// Its address.
    pub fn ptr(&self) -> Ptr<T> {
        self.ptr
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the leading elements and waits for the copy.
    ///
    /// # Errors
    /// When there are more values than room, or what the driver says.
    pub fn write(&self, stream: &CudaStream, values: &[T]) -> Result<(), CudaError> {
        if values.len() > self.len {
            return Err(CudaError::Shape(format!("{} values for a buffer of {}", values.len(), self.len)));
        }
        let refused = |e| CudaError::driver("copying to the device", e);
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the buffer has room, and the values stay until the stream has been waited for.
        unsafe { result::memcpy_htod_async(self.ptr.address(), values, stream.cu_stream()) }
            .map_err(refused)?;
        stream.synchronize().map_err(refused)
    }

    /// All elements, after everything before on the stream.
    ///
    /// # Errors
    /// What the driver says, also about earlier operations on the stream.
    pub fn read(&self, stream: &CudaStream) -> Result<Vec<T>, CudaError> {
        let refused = |e| CudaError::driver("copying from the device", e);
        let mut values = vec![T::zeroed(); self.len];
        self.context.bind_to_thread().map_err(refused)?;
        // SAFETY: the buffer holds this many elements, and the values stay until the stream has been waited for.
        unsafe { result::memcpy_dtoh_async(&mut values, self.ptr.address(), stream.cu_stream()) }
            .map_err(refused)?;
        stream.synchronize().map_err(refused)?;
        Ok(values)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // A context that has failed frees nothing any more, and there is nobody to tell.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated in `zeroed`, freed once; the driver waits for work that is under way.
            let _ = unsafe { result::free_sync(self.ptr.address()) };
        }
    }
}
