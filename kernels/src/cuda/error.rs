//! What can go wrong between us and a GPU, in sentences that say what to do.

use std::time::Duration;

use cudarc::driver::DriverError;

/// A CUDA operation that did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaError {
    /// The driver library is not on this machine.
    NoDriver,
    /// The driver is older than the toolkit that compiled the kernels; CUDA versions as `1000 major + 10 minor`.
    OldDriver {
        /// What the driver supports.
        driver: i32,
        /// What the kernels need.
        needs: i32,
    },
    /// There is no such device.
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device lacks instructions that the kernels use.
    TooOld {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// The binary was built without the feature `cuda`.
    NoImage,
    /// No image holds this kernel.
    NoKernel(&'static str),
    /// A size that no kernel handles, or that contradicts another one.
    Shape(String),
    /// The driver refused; what was tried, the code's name and its text.
    Driver {
        /// What was tried.
        what: String,
        /// The code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's words.
        text: String,
    },
    /// The NCCL library, which several GPUs per model need, is not on this machine.
    NoNccl,
    /// The NCCL library is too old; versions as NCCL writes them, 21800 for 2.18.0.
    OldNccl {
        /// What there is.
        version: i32,
        /// What is needed.
        needs: i32,
    },
    /// NCCL did not come back in time: another rank is missing, or the library hangs.
    NcclTimeout {
        /// What was tried.
        what: String,
        /// How long it was given.
        limit: Duration,
    },
    /// NCCL refused; what was tried, the code in words and the library's own text.
    Nccl {
        /// What was tried.
        what: String,
        /// The code, such as `invalid usage`.
        name: String,
        /// NCCL's words.
        text: String,
    },
}

impl CudaError {
    /// A refusal of the driver while doing `what`.
    pub(crate) fn driver(what: impl Into<String>, error: DriverError) -> Self {
        let word = |text: Result<&std::ffi::CStr, DriverError>| {
            text.map_or_else(|_| format!("{:?}", error.0), |t| t.to_string_lossy().into_owned())
        };
        Self::Driver { what: what.into(), name: word(error.error_name()), text: word(error.error_string()) }
    }

    /// Whether device or host memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver { name, .. } if name == "CUDA_ERROR_OUT_OF_MEMORY")
    }
}

/// NCCL's version in words; up to 2.8 it had one digit less.
fn nccl_version(code: i32) -> String {
    if code < 10_000 {
        return format!("{}.{}.{}", code / 1000, code % 1000 / 100, code % 100);
    }
    format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)
}

fn version(code: i32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDriver => {
                f.write_str("no CUDA driver (libcuda.so.1) on this machine; run with --device cpu")
            }
            Self::OldDriver { driver, needs } => write!(
                f,
                "the driver supports CUDA {}, the kernels were built with CUDA {}: update the driver, or rebuild with \
                 CUDA_HOME naming a toolkit of version {} or older",
                version(*driver),
                version(*needs),
                version(*driver)
            ),
            Self::NoDevice { ordinal, count: 0 } => {
                write!(f, "no CUDA device {ordinal}: the driver sees no GPU; run with --device cpu")
            }
            Self::NoDevice { ordinal, count } => write!(f, "no CUDA device {ordinal}: there are {count}"),
            Self::TooOld { ordinal, name, capability: (major, minor) } => write!(
                f,
                "CUDA device {ordinal} ({name}) has compute capability {major}.{minor}; the kernels need 8.0"
            ),
            Self::NoImage => f.write_str("this binary holds no CUDA kernels: build it with --features cuda"),
            Self::NoKernel(name) => write!(f, "the CUDA images hold no kernel {name}"),
            Self::Shape(what) => f.write_str(what),
            Self::NoNccl => f.write_str(
                "no NCCL library on this machine, which a model on several GPUs needs. It is looked for as libnccl.so: \
                 where only libnccl.so.2 is installed, make a link libnccl.so to it in a folder on LD_LIBRARY_PATH",
            ),
            Self::OldNccl { version, needs } => write!(
                f,
                "NCCL {} is too old: {} or newer is needed",
                nccl_version(*version),
                nccl_version(*needs)
            ),
            Self::NcclTimeout { what, limit } => {
                write!(f, "{what}: NCCL did not finish within {} s", limit.as_secs_f64())
            }
            Self::Nccl { what, name, text } if text.is_empty() => write!(f, "{what}: NCCL says {name}"),
            Self::Nccl { what, name, text } => write!(f, "{what}: NCCL says {name}, {text}"),
            Self::Driver { what, name, text } => write!(f, "{what}: {name}, {text}"),
        }
    }
}

impl std::error::Error for CudaError {}
