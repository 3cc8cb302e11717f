//! Communicators: one per rank of a tensor-parallel model, over NCCL, which is opened at run time.
//!
//! Nothing here can hang the process: communicators are made without blocking and polled, and whatever may still block
//! inside the library runs on a thread of its own, which is left behind when its time is over.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::sys;

use super::driver::Device;
use super::error::CudaError;
use super::ptr::Ptr;

/// The oldest library with everything used here: 2.18, as its version number is written.
const OLDEST: i32 = 21_800;
/// `NCCL_CONFIG_INITIALIZER`'s mark.
const MAGIC: u32 = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: i32 = i32::MIN;
/// Between two looks at a communicator that is being made.
const PAUSE: Duration = Duration::from_millis(1);
/// What the library gets beyond a deadline, and to end a communicator, before its thread is left behind.
const GRACE: Duration = Duration::from_secs(1);
/// For calls that have no deadline of their own.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the ranks of one communicator have in common; made once, given to all of them.
#[derive(Clone, Copy)]
pub struct NcclId(sys::ncclUniqueId);

/// One rank's end of a communicator. Dropped, it is aborted, which waits for no other rank; its graphs must be gone by
/// then, and its streams idle.
pub struct Communicator {
    handle: sys::ncclComm_t,
    context: Arc<CudaContext>,
    rank: usize,
    ranks: usize,
    deadline: Duration,
}

// SAFETY: NCCL allows the use of a communicator from every thread, one at a time; it is not `Sync`.
unsafe impl Send for Communicator {}

impl Communicator {
    /// A new id.
    ///
    /// # Errors
    /// [`CudaError::NoNccl`], [`CudaError::OldNccl`], [`CudaError::NcclTimeout`], or what NCCL says.
    pub fn unique_id() -> Result<NcclId, CudaError> {
        library()?;
        within(PATIENCE, "making an id for a communicator", || {
            let mut id = MaybeUninit::uninit();
            // SAFETY: the library is there; the id is read only when it was written.
            let code = unsafe { sys::ncclGetUniqueId(id.as_mut_ptr()) };
            check(code, ptr::null_mut(), "making an id for a communicator")?;
            // SAFETY: NCCL has filled it.
            Ok(NcclId(unsafe { id.assume_init() }))
        })?
    }

    /// Joins the communicator `id` as `rank` of `ranks` with this device, and waits until the others have joined, at most
    /// `deadline`. Later calls that the library finishes in the background get as long.
    ///
    /// # Errors
    /// [`CudaError::NoNccl`], [`CudaError::OldNccl`], [`CudaError::NcclTimeout`], or what NCCL says.
    pub fn join(
        device: &Device,
        id: NcclId,
        rank: usize,
        ranks: usize,
        deadline: Duration,
    ) -> Result<Self, CudaError> {
        library()?;
        let context = device.context().clone();
        let what = format!("joining a communicator as rank {rank} of {ranks}");
        // A communicator that comes too late is dropped with the channel, hence aborted.
        within(deadline + GRACE, &what, move || join(context, id, rank, ranks, deadline))?
    }

    /// Its rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Queues the sum over all ranks of `count` values, in place. May be captured, after a first one that was not.
    ///
    /// # Errors
    /// What NCCL says, [`CudaError::NcclTimeout`] when the other ranks do not connect, or that it was aborted.
    ///
    /// # Safety
    /// The memory must hold the values and live until the stream has run this. All ranks must queue the same collectives in
    /// the same order.
    pub unsafe fn all_reduce_sum_f32(
        &self,
        stream: &CudaStream,
        at: Ptr<f32>,
        count: usize,
    ) -> Result<(), CudaError> {
        let what = "queueing an all-reduce";
        self.ready(stream, what)?;
        let (at, stream) = (at.address() as *mut _, stream.cu_stream().cast());
        let (kind, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        // SAFETY: the communicator and the stream are alive, and both belong to this device.
        let code = unsafe { sys::ncclAllReduce(at, at, count, kind, sum, self.handle, stream) };
        self.queued(code, what)
    }

    /// Queues the concatenation of `count` values per rank, in rank order: `to` holds `ranks * count`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum_f32`].
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_sum_f32`].
    pub unsafe fn all_gather_f32(
        &self,
        stream: &CudaStream,
        from: Ptr<f32>,
        to: Ptr<f32>,
        count: usize,
    ) -> Result<(), CudaError> {
        let what = "queueing an all-gather";
        self.ready(stream, what)?;
        let (from, to) = (from.address() as *const _, to.address() as *mut _);
        let (kind, stream) = (sys::ncclDataType_t::ncclFloat32, stream.cu_stream().cast());
        // SAFETY: as above.
        let code = unsafe { sys::ncclAllGather(from, to, count, kind, self.handle, stream) };
        self.queued(code, what)
    }

    /// What has gone wrong since, here or at another rank. Never waits.
    ///
    /// # Errors
    /// What NCCL says, or that it was aborted.
    pub fn async_error(&self) -> Result<(), CudaError> {
        self.alive("asking a communicator")?;
        let code = state(self.handle)?;
        if code == sys::ncclResult_t::ncclInProgress {
            return Ok(());
        }
        check(code, self.handle, &format!("rank {} of {}", self.rank, self.ranks))
    }

    /// Ends the communicator at once: collectives that wait for other ranks come back, with values that mean nothing. Other
    /// ranks go on waiting until they abort theirs. Graphs that hold collectives of it must not be launched again; NCCL
    /// frees the communicator when they are gone, so drop them first, or soon.
    pub fn abort(&mut self) {
        let handle = Handle(std::mem::replace(&mut self.handle, ptr::null_mut()));
        if handle.0.is_null() {
            return;
        }
        let context = self.context.clone();
        // There is nobody to tell when it fails: the communicator is not used again either way.
        let _ = within(GRACE, "aborting a communicator", move || {
            let handle = handle;
            // NCCL asks for no context, but may leave the thread with another one.
            let _ = context.bind_to_thread();
            // SAFETY: the handle was taken out of its owner, so this is its last use.
            unsafe { sys::ncclCommAbort(handle.0) }
        });
    }

    fn alive(&self, what: &str) -> Result<(), CudaError> {
        if self.handle.is_null() {
            return Err(nccl(what, "aborted", "the communicator was aborted"));
        }
        Ok(())
    }

    fn ready(&self, stream: &CudaStream, what: &str) -> Result<(), CudaError> {
        self.alive(what)?;
        stream.context().bind_to_thread().map_err(|e| CudaError::driver(what, e))
    }

    /// A communicator that does not block may finish a call in the background, and the stream must not be used before.
    fn queued(&self, code: sys::ncclResult_t, what: &str) -> Result<(), CudaError> {
        if code != sys::ncclResult_t::ncclInProgress {
            return check(code, self.handle, what);
        }
        settle(self.handle, self.deadline, what)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A handle on its way to another thread.
struct Handle(sys::ncclComm_t);

// SAFETY: as for `Communicator`.
unsafe impl Send for Handle {}

/// The library must be there, and new enough: cudarc answers both with a panic.
fn library() -> Result<(), CudaError> {
    // SAFETY: opens libraries by name and closes them again.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoNccl);
    }
    let mut version = 0;
    // SAFETY: the library is there, and this is its oldest function.
    let code = unsafe { sys::ncclGetVersion(&mut version) };
    check(code, ptr::null_mut(), "asking NCCL for its version")?;
    if version < OLDEST {
        return Err(CudaError::OldNccl { version, needs: OLDEST });
    }
    Ok(())
}

/// Runs `work` on a thread of its own and waits for it, but not for ever.
fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CudaError> {
    let timeout = || CudaError::NcclTimeout { what: what.into(), limit };
    let (tell, told) = sync_channel(1);
    thread::Builder::new()
        .name("nccl".into())
        .spawn(move || {
            let _ = tell.send(work());
        })
        .map_err(|e| nccl(what, "no thread", &e.to_string()))?;
    told.recv_timeout(limit).map_err(|_| timeout())
}

fn join(
    context: Arc<CudaContext>,
    id: NcclId,
    rank: usize,
    ranks: usize,
    deadline: Duration,
) -> Result<Communicator, CudaError> {
    let what = format!("joining a communicator as rank {rank} of {ranks}");
    context.bind_to_thread().map_err(|e| CudaError::driver(&what, e))?;
    let place = |n: usize| i32::try_from(n).map_err(|_| CudaError::Shape(format!("{n} ranks are too many")));
    let (number, count) = (place(rank)?, place(ranks)?);
    let mut config = config();
    let mut handle = ptr::null_mut();
    // SAFETY: the configuration is initialised as far as its size says.
    let code = unsafe { sys::ncclCommInitRankConfig(&mut handle, count, id.0, number, &mut config) };
    // From here on the handle is aborted on every way out.
    let made = Communicator { handle, context, rank, ranks, deadline };
    if code != sys::ncclResult_t::ncclInProgress {
        check(code, made.handle, &what)?;
    }
    settle(made.handle, deadline, &what)?;
    Ok(made)
}

/// A configuration that asks for calls that do not block. It is that of NCCL 2.18, which every later library takes: newer
/// fields lie beyond the size.
fn config() -> sys::ncclConfig_t {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut config: sys::ncclConfig_t = unsafe { std::mem::zeroed() };
    config.size = offset_of!(sys::ncclConfig_t, trafficClass);
    config.magic = MAGIC;
    config.version = OLDEST.cast_unsigned();
    config.blocking = 0;
    config.cgaClusterSize = UNDEFINED;
    config.minCTAs = UNDEFINED;
    config.maxCTAs = UNDEFINED;
    config.splitShare = UNDEFINED;
    config
}

/// What the communicator says about itself.
fn state(handle: sys::ncclComm_t) -> Result<sys::ncclResult_t, CudaError> {
    let mut state = sys::ncclResult_t::ncclSuccess;
    // SAFETY: the handle is alive.
    let code = unsafe { sys::ncclCommGetAsyncError(handle, &mut state) };
    check(code, handle, "asking a communicator")?;
    Ok(state)
}

/// Waits until nothing of the communicator is under way.
fn settle(handle: sys::ncclComm_t, limit: Duration, what: &str) -> Result<(), CudaError> {
    let end = Instant::now() + limit;
    loop {
        let code = state(handle)?;
        if code != sys::ncclResult_t::ncclInProgress {
            return check(code, handle, what);
        }
        if Instant::now() >= end {
            return Err(CudaError::NcclTimeout { what: what.into(), limit });
        }
        thread::sleep(PAUSE);
    }
}

fn check(code: sys::ncclResult_t, handle: sys::ncclComm_t, what: &str) -> Result<(), CudaError> {
    if code == sys::ncclResult_t::ncclSuccess {
        return Ok(());
    }
    // SAFETY: NCCL gives strings that stay, for every code; a null handle asks for the thread's last error.
    let (name, last) = unsafe { (text(sys::ncclGetErrorString(code)), text(sys::ncclGetLastError(handle))) };
    Err(nccl(what, &name, &last))
}

fn nccl(what: &str, name: &str, text: &str) -> CudaError {
    CudaError::Nccl { what: what.into(), name: name.into(), text: text.into() }
}

/// # Safety
/// Null or a string that ends in a zero.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}
