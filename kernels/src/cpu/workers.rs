//! The threads of one model: a fork-join group.
//!
//! Helpers spin for some tens of microseconds between jobs, then park: jobs of one step follow each
//! other closely, and a spinning barrier would burn whole scheduler slices on a shared machine.
//! Parts are claimed one at a time, so a helper that the system holds back delays one part at most.
//!
//! Groups may share [`Cores`]: then each has as many threads at work as falls to it while others work, and all when they
//! rest.

use super::Isa;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Cores that several groups share, and how many of them are at work.
#[derive(Debug)]
pub struct Cores {
    count: usize,
    busy: AtomicUsize,
}

impl Cores {
    /// `count` cores; 0 counts as 1.
    pub fn new(count: usize) -> Arc<Self> {
        Arc::new(Cores { count: count.max(1), busy: AtomicUsize::new(0) })
    }

    /// Threads that a group may use now, itself counted among those at work.
    pub fn share(&self) -> usize {
        self.count.div_ceil(self.busy.load(Ordering::Relaxed).max(1))
    }
}

/// A group is at work while this lives.
#[derive(Debug)]
pub struct AtWork(Arc<Cores>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long to spin before parking.
const SPIN: Duration = Duration::from_micros(30);

type Body<'a> = &'a (dyn Fn(usize) + Sync);

/// Sixteen values: a line of the caches.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [f32; 16]);

/// Lines that a group keeps for what an operation needs meanwhile: 512 KiB, half of a second-level cache.
pub(crate) const LINES: usize = 8192;

/// A group of threads that run the parts of one job after another; the caller takes part.
pub struct WorkerGroup {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Allocated once, since a step allocates nothing; empty where no operation asks for it.
    lines: Mutex<Vec<Line>>,
}

struct Shared {
    /// Number of the job (upper half) and parts that nobody has claimed yet (lower half). A claim
    /// takes the last of them by a compare-and-swap. All that a claim needs is in this one word: a
    /// finished job has nothing to claim, whatever a helper that was held back still remembers.
    ticket: AtomicU64,
    /// A thin pointer to the caller's `Body`, written before the ticket of the job is published and
    /// valid until no part is pending.
    body: AtomicPtr<()>,
    /// Parts of the job that have not returned.
    pending: AtomicUsize,
    /// A caller is inside `run`.
    busy: AtomicBool,
    stop: AtomicBool,
    /// Which helpers have parked, or are about to.
    parked: Vec<AtomicBool>,
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    job_done: Condvar,
    cores: OnceLock<Arc<Cores>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl WorkerGroup {
    /// Starts `threads - 1` helpers named `name-1`, `name-2`, ...; 0 counts as 1.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(name: &str, threads: usize) -> std::io::Result<WorkerGroup> {
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            body: AtomicPtr::new(std::ptr::null_mut()),
            pending: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            job_done: Condvar::new(),
            cores: OnceLock::new(),
            panic: Mutex::new(None),
        });
        let lines = if Isa::fastest().crosses() { vec![Line([0.0; 16]); LINES] } else { Vec::new() };
        // Built before the first spawn: dropped on an error, it joins the helpers already started.
        let mut group = WorkerGroup { shared, helpers: Vec::new(), lines: Mutex::new(lines) };
        for i in 1..threads {
            let shared = Arc::clone(&group.shared);
            let builder = std::thread::Builder::new().name(format!("{name}-{i}"));
            group.helpers.push(builder.spawn(move || shared.help(i))?);
        }
        Ok(group)
    }

    /// Threads that take part, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// [`LINES`] lines; `None` while another operation has them, and where the processor crosses no weights.
    pub(crate) fn lines(&self) -> Option<MutexGuard<'_, Vec<Line>>> {
        let lines = match self.lines.try_lock() {
            Ok(lines) => lines,
            // What a panic left there is overwritten.
            Err(TryLockError::Poisoned(lines)) => lines.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (!lines.is_empty()).then_some(lines)
    }

    /// From now on this group shares `cores` with others; only the first call counts.
    pub fn share(&self, cores: Arc<Cores>) {
        // The first one stays.
        let _ = self.shared.cores.set(cores);
    }

    /// Says that this group is at work until the result is dropped; `None` when it shares with nobody.
    pub fn at_work(&self) -> Option<AtWork> {
        let cores = self.shared.cores.get()?;
        cores.busy.fetch_add(1, Ordering::Relaxed);
        Some(AtWork(Arc::clone(cores)))
    }

    /// Calls `body(0)`, ..., `body(parts - 1)`, each once, in any order, on any thread, and returns
    /// when all have returned. One part, one thread, or a call while another `run` of this group
    /// is active (from a part, or from a second thread): all parts run on the caller.
    ///
    /// # Panics
    /// With the panic of a part, after the other parts have run; the group stays usable.
    pub fn run(&self, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let many = parts > 1 && !self.helpers.is_empty() && self.shared.allowed() > 1;
        let counted = u32::try_from(parts).ok().filter(|_| many);
        let Some(counted) = counted.filter(|_| !self.shared.busy.swap(true, Ordering::Acquire)) else {
            (0..parts).for_each(body);
            return;
        };
        let panic = self.shared.fork_join(counted, body, &self.helpers);
        self.shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches the panics of parts and has none of its own.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// The caller's side: publish, take part, wait.
    fn fork_join(
        &self,
        parts: u32,
        body: Body<'_>,
        helpers: &[JoinHandle<()>],
    ) -> Option<Box<dyn Any + Send>> {
        let job = (self.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1) as u32;
        self.body.store((&raw const body).cast_mut().cast(), Ordering::Relaxed);
        self.pending.store(parts as usize, Ordering::Relaxed);
        // Sequentially consistent with `parked`: either we see that a helper parks, or it sees the job.
        self.ticket.store(u64::from(job) << 32 | u64::from(parts), Ordering::SeqCst);
        for (helper, parked) in helpers.iter().zip(&self.parked).take(self.allowed() - 1) {
            if parked.load(Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
        self.work(0);
        self.wait_done();
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Threads that may work now, the caller included.
    fn allowed(&self) -> usize {
        self.cores.get().map_or(usize::MAX, |cores| cores.share())
    }

    /// Claims and runs parts of the current job until none is left, or until there is no core for this thread, the
    /// `index`th, any more. The caller, number 0, always goes on.
    fn work(&self, index: usize) {
        while index < self.allowed() {
            let ticket = self.ticket.load(Ordering::Acquire);
            let body = self.body.load(Ordering::Relaxed);
            let unclaimed = ticket as u32;
            if unclaimed == 0 {
                return;
            }
            let claim =
                self.ticket.compare_exchange_weak(ticket, ticket - 1, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_ok() {
                self.run_part(body.cast(), unclaimed as usize - 1);
            }
        }
    }

    /// Runs one claimed part and reports it.
    fn run_part(&self, body: *const Body<'_>, part: usize) {
        // SAFETY: the claim succeeded, so this job had an unclaimed part from the load of its ticket
        // to the claim. `body` was loaded in between, and the caller overwrites it only when no part
        // is pending, so it is this job's; `run` returns only after the subtraction below.
        let body = unsafe { *body };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(part))) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
        // Sequentially consistent with `caller_sleeps`: either the caller sees that nothing is
        // pending, or we see that it sleeps.
        if self.pending.fetch_sub(1, Ordering::SeqCst) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
            drop(self.locked());
            self.job_done.notify_one();
        }
    }

    /// The caller waits for parts that helpers hold.
    fn wait_done(&self) {
        let finished = || self.pending.load(Ordering::SeqCst) == 0;
        if spin_until(finished) {
            return;
        }
        let mut guard = self.locked();
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !finished() {
            guard = self.job_done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of the helper `index`, from 1.
    fn help(&self, index: usize) {
        let mut seen = 0;
        let changed = |seen: u32| {
            (self.ticket.load(Ordering::SeqCst) >> 32) as u32 != seen || self.stop.load(Ordering::SeqCst)
        };
        let parked = &self.parked[index - 1];
        loop {
            // Without a core of its own a helper that spins would take one from whoever works.
            if index >= self.allowed() || !spin_until(|| changed(seen)) {
                parked.store(true, Ordering::SeqCst);
                while !changed(seen) {
                    std::thread::park();
                }
                parked.store(false, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = (self.ticket.load(Ordering::SeqCst) >> 32) as u32;
            self.work(index);
        }
    }

    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spins until `ready` or until the spinning time is over; tells which.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return ready();
        }
    }
}
