//! Which library to load, and loading it before anybody looks for a real driver.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The three builds of the emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Fast; sees everything that the scheduler, the delayed copies and the canaries show.
    Plain,
    /// Every load and store is checked against allocations, shared arrays and the other threads' accesses.
    Race,
    /// Address and undefined-behaviour sanitizers on the kernels.
    Asan,
}

impl Build {
    /// The build that `TOKENROUTER_EMU` names (`plain`, `race`, `asan`); plain when it is not set.
    pub fn chosen() -> Result<Self, String> {
        match env::var("TOKENROUTER_EMU").as_deref() {
            Ok("plain") | Err(_) => Ok(Self::Plain),
            Ok("race") => Ok(Self::Race),
            Ok("asan") => Ok(Self::Asan),
            Ok(other) => Err(format!("TOKENROUTER_EMU={other}: plain, race or asan")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Race => "race",
            Self::Asan => "asan",
        }
    }
}

/// Which kernels the library holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// `kernels/cuda/*.cu`.
    Product,
    /// `kernels/emulate/testdata/*.cu`: this crate's own tests, most of them broken on purpose.
    SelfTest,
}

/// Entry points of the loaded library beyond the driver API.
pub(crate) struct Library {
    pub(crate) kernels: Kernels,
    pub(crate) build: Build,
    pub(crate) configure: unsafe extern "C" fn(c_int, usize, u64, c_int),
    pub(crate) inject: unsafe extern "C" fn(c_int, u64, c_int),
    pub(crate) set_device: unsafe extern "C" fn(c_int, usize, c_int),
    pub(crate) set_processors: unsafe extern "C" fn(c_int),
    pub(crate) set_versions: unsafe extern "C" fn(c_int, c_int),
    pub(crate) hang_nccl: unsafe extern "C" fn(c_int),
    pub(crate) set_timeout: unsafe extern "C" fn(u64),
    pub(crate) message: unsafe extern "C" fn() -> *const c_char,
    pub(crate) count: unsafe extern "C" fn(c_int) -> u64,
    pub(crate) kernel_name: unsafe extern "C" fn(u32) -> *const c_char,
    pub(crate) watch_sites: unsafe extern "C" fn(),
    pub(crate) site: unsafe extern "C" fn(u32) -> *const c_char,
    pub(crate) remove_site: unsafe extern "C" fn(*const c_char),
}

fn last_dl_error() -> String {
    // SAFETY: dlerror returns null or a string that lives until the next call of this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// An entry point as a function pointer of type `F`.
///
/// # Safety
///
/// `F` must be the C function pointer type that the library defines under this name.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, String> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the handle is open and the name ends in a zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("the emulation lacks {}", name.to_string_lossy()));
    }
    // SAFETY: the caller names the right type, and a function pointer has the size of an address.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// The address sanitizer must be in the process from its start: when it is not, start this program again with it.
/// Returns only when it is there, or with the reason why it cannot be.
fn with_sanitizer() -> Result<(), String> {
    // SAFETY: looking a name up in the process has no preconditions.
    let present = unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()).is_null() };
    if present {
        return Ok(());
    }
    if env::var_os("TOKENROUTER_EMU_PRELOADED").is_some() {
        return Err("the address sanitizer was preloaded and is not there".into());
    }
    let compiler = env::var("CXX").unwrap_or_else(|_| "g++".into());
    let found = std::process::Command::new(&compiler)
        .arg("-print-file-name=libasan.so")
        .output()
        .map_err(|e| format!("{compiler}: {e}"))?;
    let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    if !path.starts_with('/') {
        return Err(format!("{compiler} has no libasan.so"));
    }
    use std::os::unix::process::CommandExt;
    let program = env::current_exe().map_err(|e| e.to_string())?;
    let options = "detect_leaks=0:detect_stack_use_after_return=0:halt_on_error=0:handle_segv=0:suppress_equal_pcs=0:print_legend=0";
    let error = std::process::Command::new(program)
        .args(env::args_os().skip(1))
        .env("LD_PRELOAD", path)
        .env("ASAN_OPTIONS", options)
        .env("TOKENROUTER_EMU_PRELOADED", "1")
        .exec();
    Err(format!("cannot start again under the address sanitizer: {error}"))
}

fn open(path: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: the library is ours; its initialisers only register kernels.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(format!("{}: {}", path.display(), last_dl_error()));
    }
    Ok(handle)
}

fn folder(build: Build, kernels: Kernels) -> PathBuf {
    let mut path = PathBuf::from(env!("TOKENROUTER_EMU_LIBRARIES"));
    path.push(build.name());
    path.push(if kernels == Kernels::Product { "kernels" } else { "selftest" });
    path
}

/// The folder with `libcuda.so.1` and `libnccl.so` over `kernels/cuda`, in the plain build: for LD_LIBRARY_PATH of another
/// program. The error says why there is none.
pub fn library_folder() -> Result<PathBuf, String> {
    let missing = env!("TOKENROUTER_EMU_MISSING");
    if missing.is_empty() { Ok(folder(Build::Plain, Kernels::Product)) } else { Err(missing.into()) }
}

fn load(kernels: Kernels) -> Result<Library, String> {
    let missing = env!("TOKENROUTER_EMU_MISSING");
    if !missing.is_empty() {
        return Err(missing.into());
    }
    let build = Build::chosen()?;
    if build == Build::Asan {
        with_sanitizer()?;
    }
    let path = folder(build, kernels).join("libcuda.so.1");
    let handle = open(&path)?;
    // An empty library that carries NCCL's name and leads to the first one.
    open(&path.with_file_name("libnccl.so"))?;
    // SAFETY: the types are those of the definitions in src/driver.
    unsafe {
        Ok(Library {
            kernels,
            build,
            configure: symbol(handle, c"emu_configure")?,
            inject: symbol(handle, c"emu_inject")?,
            set_device: symbol(handle, c"emu_set_device")?,
            set_processors: symbol(handle, c"emu_set_processors")?,
            set_versions: symbol(handle, c"emu_set_versions")?,
            hang_nccl: symbol(handle, c"emu_hang_nccl")?,
            set_timeout: symbol(handle, c"emu_set_timeout")?,
            message: symbol(handle, c"emu_message")?,
            count: symbol(handle, c"emu_count")?,
            kernel_name: symbol(handle, c"emu_kernel_name")?,
            watch_sites: symbol(handle, c"emu_watch_sites")?,
            site: symbol(handle, c"emu_site")?,
            remove_site: symbol(handle, c"emu_remove_site")?,
        })
    }
}

/// The library of this process; it stays loaded, and the first call decides which kernels it holds.
pub(crate) fn library(kernels: Kernels) -> Result<&'static Library, String> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LOADED.get_or_init(|| load(kernels)).as_ref().map_err(Clone::clone)?;
    if library.kernels != kernels {
        return Err(format!("this process has loaded the emulation with the {:?} kernels", library.kernels));
    }
    Ok(library)
}
