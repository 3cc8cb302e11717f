//! The preflight of the feature `cuda-sys`: a driver that is linked instead of opened, so that without one the program
//! does not even start, asked for what it is and sees. For sites that want to know at once.
//!
//! cuda-sys knows the driver as it was at CUDA 8, which had all of this. Later drivers return codes that its enum lacks,
//! and an enum with an unknown value is undefined in Rust, so the functions are called as returning numbers.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::sync::OnceLock;

use cuda_sys::cuda::{CUdevice_attribute, CUresult};

use super::error::CudaError;

/// `CUDA_ERROR_NO_DEVICE`: the driver works and sees nothing.
const NO_DEVICE: c_uint = 100;

/// What the linked driver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preflight {
    /// The CUDA version that the driver supports, as `1000 major + 10 minor`.
    pub driver: i32,
    /// The devices that it sees, in order.
    pub devices: Vec<PreflightDevice>,
}

/// A device of a [`Preflight`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightDevice {
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory: usize,
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.driver / 1000, self.driver % 1000 / 10);
        write!(f, "CUDA preflight: driver for CUDA {major}.{minor}, {} devices", self.devices.len())?;
        for (i, device) in self.devices.iter().enumerate() {
            let (major, minor) = device.capability;
            let mib = device.memory >> 20;
            write!(f, "\n  {i}: {}, compute capability {major}.{minor}, {mib} MiB", device.name)?;
        }
        Ok(())
    }
}

/// The linked driver's function of this name, returning its code as a number.
macro_rules! linked {
    ($name:ident($($argument:ty),*)) => {
        #[allow(non_snake_case, reason = "the driver's name")]
        fn $name() -> unsafe extern "C" fn($($argument),*) -> c_uint {
            type Typed = unsafe extern "C" fn($($argument),*) -> CUresult;
            type Plain = unsafe extern "C" fn($($argument),*) -> c_uint;
            // SAFETY: the enum is a u32 in memory, so both types describe the same function.
            unsafe { std::mem::transmute::<Typed, Plain>(cuda_sys::cuda::$name) }
        }
    };
}

linked!(cuInit(c_uint));
linked!(cuDriverGetVersion(*mut c_int));
linked!(cuDeviceGetCount(*mut c_int));
linked!(cuDeviceGet(*mut c_int, c_int));
linked!(cuDeviceTotalMem_v2(*mut usize, c_int));
linked!(cuDeviceGetName(*mut c_char, c_int, c_int));
linked!(cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, c_int));

/// Asks the driver, which nothing needs to have started before.
///
/// # Errors
/// [`CudaError::Driver`], with what was tried.
pub fn preflight() -> Result<Preflight, CudaError> {
    let (mut driver, mut count) = (0, 0);
    // SAFETY: the number is written or left alone; the driver allows this before its start.
    check("asking for the driver's version", unsafe { cuDriverGetVersion()(&mut driver) })?;
    // SAFETY: the driver allows this at any time and any number of times.
    let started = unsafe { cuInit()(0) };
    if started == NO_DEVICE {
        return Ok(Preflight { driver, devices: Vec::new() });
    }
    check("starting the linked driver", started)?;
    // SAFETY: the number is written or left alone.
    check("counting devices", unsafe { cuDeviceGetCount()(&mut count) })?;
    let devices = (0..count).map(device).collect::<Result<_, _>>()?;
    Ok(Preflight { driver, devices })
}

fn device(ordinal: c_int) -> Result<PreflightDevice, CudaError> {
    let what = format!("asking device {ordinal}");
    let (mut handle, mut memory, mut name) = (0, 0usize, [0; 256]);
    // SAFETY: the handle is written or left alone.
    check(&what, unsafe { cuDeviceGet()(&mut handle, ordinal) })?;
    // SAFETY: the handle names a device, and the number is written or left alone.
    check(&what, unsafe { cuDeviceTotalMem_v2()(&mut memory, handle) })?;
    let room = c_int::try_from(name.len()).unwrap_or(0);
    // SAFETY: the driver writes at most so many bytes.
    let code = unsafe { cuDeviceGetName()(name.as_mut_ptr(), room, handle) };
    check(&what, code)?;
    // The driver ends the name with a zero; the last byte makes sure.
    name[name.len() - 1] = 0;
    // SAFETY: it ends in a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let number = |attribute: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: the number is written or left alone.
        check(&what, unsafe { cuDeviceGetAttribute()(&mut value, attribute, handle) })?;
        Ok::<_, CudaError>(value)
    };
    let major = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(PreflightDevice { name, capability: (major, minor), memory })
}

fn check(what: &str, code: c_uint) -> Result<(), CudaError> {
    if code == 0 {
        return Ok(());
    }
    Err(CudaError::Driver {
        what: format!("CUDA preflight, {what}"),
        name: format!("code {code}"),
        text: words(code),
    })
}

/// The driver's name of a code.
fn words(code: c_uint) -> String {
    type Typed = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
    type Plain = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
    // SAFETY: the enum is a u32 in memory, so both types describe the same function.
    let name_of = unsafe { std::mem::transmute::<Typed, Plain>(cuda_sys::cuda::cuGetErrorName) };
    let mut text = std::ptr::null();
    // SAFETY: the pointer is written or left alone; the driver's names stay.
    unsafe {
        if name_of(code, &mut text) != 0 || text.is_null() {
            return "which the driver has no name for".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// The preflight before the first use of a device: printed once per process, on standard error.
pub(crate) fn once() -> Result<(), CudaError> {
    static DONE: OnceLock<Result<(), CudaError>> = OnceLock::new();
    DONE.get_or_init(|| preflight().map(|found| eprintln!("{found}"))).clone()
}
