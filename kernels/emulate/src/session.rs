//! One test at a time: a session resets the emulation, and the next one waits for its end.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::library::{Build, Kernels, Library, library};

/// What the pretend machine looks like.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of devices, at most 16. With none, `cuInit` fails as on a machine whose driver sees no card.
    pub devices: usize,
    /// Memory of each device in bytes.
    pub memory: usize,
    /// Orders threads, blocks and streams: 0 first in first out, 1 the reverse, from 2 on random.
    pub seed: u64,
    /// Compute capability: 80 or 90.
    pub capability: u32,
}

impl Default for Settings {
    /// One sm_80 device with 512 MiB, seed from `TOKENROUTER_EMU_SEED` or 0.
    fn default() -> Self {
        let seed = env::var("TOKENROUTER_EMU_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
        Self { devices: 1, memory: 512 << 20, seed, capability: 80 }
    }
}

/// The emulation, reset and yours until this is dropped. Drop everything made through cudarc before it.
pub struct Session {
    library: &'static Library,
    _turn: MutexGuard<'static, ()>,
}

/// Loads the emulation of `kernels/cuda`, waits for other sessions of this process to end and resets it.
///
/// Call this before the first use of cudarc in the process, or cudarc looks for a real driver. The error says why there
/// is no emulation: no C++ compiler, or an unknown `TOKENROUTER_EMU`.
pub fn session(settings: Settings) -> Result<Session, String> {
    session_with(Kernels::Product, settings)
}

/// The same with a choice of kernels, which must not change within a process.
pub fn session_with(kernels: Kernels, settings: Settings) -> Result<Session, String> {
    static TURN: Mutex<()> = Mutex::new(());
    let library = library(kernels)?;
    // A test that failed poisons the lock; the reset below makes a clean start all the same.
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let session = Session { library, _turn: turn };
    session.reset(settings);
    Ok(session)
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the library hands out strings that live as long as the process.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

impl Session {
    /// Ends every context, frees all memory and starts anew. Nothing made through cudarc may be alive.
    pub fn reset(&self, settings: Settings) {
        let devices = i32::try_from(settings.devices).unwrap_or(i32::MAX);
        let capability = i32::try_from(settings.capability).unwrap_or(80);
        // SAFETY: takes plain numbers and locks the library's state.
        unsafe { (self.library.configure)(devices, settings.memory, settings.seed, capability) }
    }

    /// Which build this process runs.
    pub fn build(&self) -> Build {
        self.library.build
    }

    /// What the last failure was: kernel, what, block, thread, file and line. Empty when nothing failed.
    pub fn message(&self) -> String {
        // SAFETY: returns a string of the library.
        text(unsafe { (self.library.message)() })
    }

    /// After `operations` more operations on the device its context fails with this CUresult, for good.
    pub fn inject(&self, device: usize, operations: u64, code: u32) {
        let device = i32::try_from(device).unwrap_or(i32::MAX);
        // SAFETY: takes plain numbers and locks the library's state.
        unsafe { (self.library.inject)(device, operations, code.cast_signed()) }
    }

    /// Makes one device unlike the others until the next reset: its memory in bytes and its compute capability. Before the
    /// first use of the device.
    pub fn set_device(&self, device: usize, memory: usize, capability: u32) {
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let (device, capability) = (number(device), number(capability as usize));
        // SAFETY: takes plain numbers and locks the library's state.
        unsafe { (self.library.set_device)(device, memory, capability) }
    }

    /// Devices with this many multiprocessors until the next reset: grids planned for few are cheaper to run, and results
    /// must not depend on it. Before the first use of a device.
    pub fn set_processors(&self, count: u32) {
        // SAFETY: takes a number and locks the library's state.
        unsafe { (self.library.set_processors)(i32::try_from(count).unwrap_or(0)) }
    }

    /// Another version of the driver (12040 for 12.4) until the next reset.
    pub fn set_driver_version(&self, version: i32) {
        // SAFETY: takes plain numbers and locks the library's state.
        unsafe { (self.library.set_versions)(version, 0) }
    }

    /// Another version of NCCL (21800 for 2.18.0) until the next reset.
    pub fn set_nccl_version(&self, version: i32) {
        // SAFETY: takes plain numbers and locks the library's state.
        unsafe { (self.library.set_versions)(0, version) }
    }

    /// Whether joining a communicator hangs inside NCCL. A reset ends it.
    pub fn hang_nccl(&self, hangs: bool) {
        // SAFETY: takes a number and locks the library's state.
        unsafe { (self.library.hang_nccl)(c_int::from(hangs)) }
    }

    /// How long a thread waits for another one's half of a collective; then its context fails. A minute after a reset.
    pub fn set_timeout(&self, timeout: Duration) {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        // SAFETY: takes a number and locks the library's state.
        unsafe { (self.library.set_timeout)(milliseconds) }
    }

    /// Queued operations (copies, kernels, records, ...) that have run since the reset.
    pub fn operations(&self) -> u64 {
        // SAFETY: reads a counter under the library's lock.
        unsafe { (self.library.count)(0) }
    }

    /// Kernels that have run since the reset.
    pub fn launches(&self) -> u64 {
        // SAFETY: reads a counter under the library's lock.
        unsafe { (self.library.count)(1) }
    }

    /// Names of the kernels in the library.
    pub fn kernel_names(&self) -> Vec<String> {
        // SAFETY: takes an index and returns null past the end.
        (0..).map(|i| text(unsafe { (self.library.kernel_name)(i) })).take_while(|n| !n.is_empty()).collect()
    }

    /// From now on remembers the source lines of barriers, warp syncs, copy waits and fences that run.
    pub fn watch_sites(&self) {
        // SAFETY: sets a flag under the library's lock.
        unsafe { (self.library.watch_sites)() }
    }

    /// The lines remembered, as `file.cu:12 barrier`.
    pub fn sites(&self) -> Vec<String> {
        // SAFETY: takes an index and returns an empty string past the end.
        (0..).map(|i| text(unsafe { (self.library.site)(i) })).take_while(|s| !s.is_empty()).collect()
    }

    /// Kernels run as if the barrier, sync, wait or fence at `file.cu:12` were not there; `None`: all are. A suite that
    /// passes all the same does not test it. Outlives a reset.
    pub fn remove_site(&self, site: Option<&str>) {
        let text = CString::new(site.unwrap_or("")).unwrap_or_default();
        // SAFETY: the string lives through the call, which copies it.
        unsafe { (self.library.remove_site)(text.as_ptr()) }
    }
}

/// Seeds to run a test with: `TOKENROUTER_EMU_SEEDS` (comma-separated), or 0, 1 and 2.
pub fn seeds() -> Vec<u64> {
    match env::var("TOKENROUTER_EMU_SEEDS") {
        Ok(list) => list.split(',').filter_map(|s| s.trim().parse().ok()).collect(),
        Err(_) => vec![0, 1, 2],
    }
}

/// Says in one line that a test is skipped and why; with `TOKENROUTER_NO_SKIP=1` that is a failure.
///
/// # Panics
///
/// When skipping is forbidden.
pub fn skip(why: &str) {
    assert!(env::var("TOKENROUTER_NO_SKIP").as_deref() != Ok("1"), "skipped, which is forbidden here: {why}");
    println!("skipped: {why}");
}
