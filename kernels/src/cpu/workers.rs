//! The threads of one model: a fork-join group.
//!
//! Helpers spin for some tens of microseconds between jobs, then park: jobs of one step follow each
//! other closely, and a spinning barrier would burn whole scheduler slices on a shared machine.
//! Parts are claimed one at a time, so a helper that the system holds back delays one part at most.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to spin before parking.
const SPIN: Duration = Duration::from_micros(30);

type Body<'a> = &'a (dyn Fn(usize) + Sync);

/// A group of threads that run the parts of one job after another; the caller takes part.
pub struct WorkerGroup {
    shared: Arc<Shared>,
    helpers: Vec<std::thread::JoinHandle<()>>,
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
    sleepers: AtomicUsize,
    caller_sleeps: AtomicBool,
    lock: Mutex<()>,
    new_job: Condvar,
    job_done: Condvar,
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
            sleepers: AtomicUsize::new(0),
            caller_sleeps: AtomicBool::new(false),
            lock: Mutex::new(()),
            new_job: Condvar::new(),
            job_done: Condvar::new(),
            panic: Mutex::new(None),
        });
        // Built before the first spawn: dropped on an error, it joins the helpers already started.
        let mut group = WorkerGroup { shared, helpers: Vec::new() };
        for i in 1..threads {
            let shared = Arc::clone(&group.shared);
            let builder = std::thread::Builder::new().name(format!("{name}-{i}"));
            group.helpers.push(builder.spawn(move || shared.help())?);
        }
        Ok(group)
    }

    /// Threads that take part, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `body(0)`, ..., `body(parts - 1)`, each once, in any order, on any thread, and returns
    /// when all have returned. One part, one thread, or a call while another `run` of this group
    /// is active (from a part, or from a second thread): all parts run on the caller.
    ///
    /// # Panics
    /// With the panic of a part, after the other parts have run; the group stays usable.
    pub fn run(&self, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let counted = u32::try_from(parts).ok().filter(|_| parts > 1 && !self.helpers.is_empty());
        let Some(counted) = counted.filter(|_| !self.shared.busy.swap(true, Ordering::Acquire)) else {
            (0..parts).for_each(body);
            return;
        };
        let panic = self.shared.fork_join(counted, body);
        self.shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.locked());
        self.shared.new_job.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of parts and has none of its own.
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// The caller's side: publish, take part, wait.
    fn fork_join(&self, parts: u32, body: Body<'_>) -> Option<Box<dyn Any + Send>> {
        let job = (self.ticket.load(Ordering::Relaxed) >> 32).wrapping_add(1) as u32;
        self.body.store((&raw const body).cast_mut().cast(), Ordering::Relaxed);
        self.pending.store(parts as usize, Ordering::Relaxed);
        // Sequentially consistent with `sleepers`: either we see the sleeper, or it sees the job.
        self.ticket.store(u64::from(job) << 32 | u64::from(parts), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.locked());
            self.new_job.notify_all();
        }
        self.work();
        self.wait_done();
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Claims and runs parts of the current job until none is left.
    fn work(&self) {
        loop {
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

    /// The life of a helper.
    fn help(&self) {
        let mut seen = 0;
        let changed = |seen: u32| {
            (self.ticket.load(Ordering::SeqCst) >> 32) as u32 != seen || self.stop.load(Ordering::SeqCst)
        };
        loop {
            if !spin_until(|| changed(seen)) {
                let mut guard = self.locked();
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                while !changed(seen) {
                    guard = self.new_job.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            seen = (self.ticket.load(Ordering::SeqCst) >> 32) as u32;
            self.work();
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
