//! Loading the images, and the one place that launches.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use super::driver::Device;
use super::error::CudaError;
use super::table::{KERNELS, KernelId};

/// From this on a kernel must ask for its dynamic shared memory.
const DEFAULT_SHARED: u32 = 48 * 1024;

/// A loaded image.
struct Module {
    handle: sys::CUmodule,
    context: Arc<CudaContext>,
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded by `Kernels::load`, unloaded once; its functions go with it.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

/// The kernels on one device, ready to launch.
pub struct Kernels {
    functions: Vec<sys::CUfunction>,
    processors: u32,
    _modules: Vec<Module>,
}

// SAFETY: handles are numbers of the driver, which allows their use from every thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; nothing here changes after `load`.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads images (normally [`images`](super::images)) and finds all kernels of the table in them.
    ///
    /// # Errors
    /// [`CudaError::NoImage`] without an image, [`CudaError::NoKernel`], or what the driver says.
    pub fn load(device: &Device, images: &[&[u8]]) -> Result<Self, CudaError> {
        if images.is_empty() {
            return Err(CudaError::NoImage);
        }
        let context = device.context();
        let refused = |e| CudaError::driver("loading the CUDA kernels", e);
        context.bind_to_thread().map_err(refused)?;
        let mut modules = Vec::with_capacity(images.len());
        for image in images {
            // SAFETY: the image is a fat binary, whose header holds its own length.
            let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(refused)?;
            modules.push(Module { handle, context: context.clone() });
        }
        let functions =
            KERNELS.iter().map(|k| find(&modules, k.name, k.shared)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { functions, processors: device.processors(), _modules: modules })
    }

    /// Plans grids as for a device of this many multiprocessors: a smaller grid leaves room for another model's kernels.
    /// No result depends on it.
    pub fn plan_for(&mut self, processors: u32) {
        self.processors = processors.max(1);
    }

    /// Streaming multiprocessors that grids are planned for.
    pub(crate) fn processors(&self) -> u32 {
        self.processors
    }

    /// Queues one kernel.
    ///
    /// # Safety
    /// `args` must be the kernel's argument structure, and the memory that it names must fit the kernel's contract and
    /// stay until the stream has run it.
    pub(crate) unsafe fn launch<A: Copy>(
        &self,
        stream: &CudaStream,
        kernel: KernelId,
        grid: (u32, u32),
        shared: u32,
        args: &A,
    ) -> Result<(), CudaError> {
        let info = kernel.info();
        assert_eq!(size_of::<A>(), info.params, "argument of {}", info.name);
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        if shared > info.shared {
            let what = format!("{}: {shared} bytes of shared memory, at most {}", info.name, info.shared);
            return Err(CudaError::Shape(what));
        }
        let refused = |e| CudaError::driver(format!("launching {}", info.name), e);
        stream.context().bind_to_thread().map_err(refused)?;
        let function = self.functions[kernel as usize];
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: the function is loaded, its parameter has this size; the caller answers for what it names.
        unsafe {
            result::launch_kernel(
                function,
                (grid.0, grid.1, 1),
                (info.threads, 1, 1),
                shared,
                stream.cu_stream(),
                &mut params,
            )
        }
        .map_err(refused)
    }
}

/// Finds a kernel in the modules and asks for its shared memory.
fn find(modules: &[Module], name: &'static str, shared: u32) -> Result<sys::CUfunction, CudaError> {
    for module in modules {
        let c_name = CString::new(name).map_err(|_| CudaError::NoKernel(name))?;
        // SAFETY: the module is loaded.
        match unsafe { result::module::get_function(module.handle, c_name) } {
            Ok(function) => {
                if shared > DEFAULT_SHARED {
                    allow_shared(function, shared)
                        .map_err(|e| CudaError::driver(format!("shared memory of {name}"), e))?;
                }
                return Ok(function);
            }
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_FOUND => {}
            Err(e) => return Err(CudaError::driver(format!("looking for the kernel {name}"), e)),
        }
    }
    Err(CudaError::NoKernel(name))
}

fn allow_shared(function: sys::CUfunction, bytes: u32) -> Result<(), result::DriverError> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is loaded.
    unsafe { result::function::set_function_attribute(function, attribute, bytes.cast_signed()) }
}
