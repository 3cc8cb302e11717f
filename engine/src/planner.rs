//! The planner thread: rounds of planning (scheduling study, section 8) away from the thread that decides.
//!
//! The rank loop asks the core whether a round is due, offers the job here, and takes the reply in a later turn; a
//! round takes tens of milliseconds and the loop never waits for it. Jobs go through a channel of one, since the core
//! has one round out at a time. Between two rounds the thread rests so long that it takes [`SHARE`] of a core at most: rounds
//! come due with routing decisions, and small models decide often. A panic in a round is a bug of ours and ends that round, not serving: it is logged, the
//! core hears that no reply will come, and the policy in force stays until the next round.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokenrouter_scheduler::{PlanJob, PlanReply};

use crate::probe::thread_time;

/// Most of a core that planning takes in the long run: one part in so many.
const SHARE: u32 = 20;

/// The thread's nice value: under full load it gets a tenth of a core, when cores are idle a whole one.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// A thread that turns jobs into replies. Dropping it waits for the round that runs.
pub(crate) struct Planner<J = PlanJob, R = PlanReply> {
    /// Taken only by `drop`.
    jobs: Option<flume::Sender<J>>,
    /// None for a round that broke down, and its processor time.
    replies: flume::Receiver<(Option<R>, Duration)>,
    /// When the thread has rested from its last round.
    rested: Cell<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static, R: Send + 'static> Planner<J, R> {
    /// Starts the thread; `wake` is called after each reply was queued.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub(crate) fn start(run: fn(&J) -> R, wake: Arc<dyn Fn() + Send + Sync>) -> std::io::Result<Self> {
        let (jobs, inbox) = flume::bounded::<J>(1);
        let (outbox, replies) = flume::bounded(1);
        let thread = std::thread::Builder::new().name("planner".into()).spawn(move || {
            give_way();
            while let Ok(job) = inbox.recv() {
                let before = thread_time();
                let reply = catch_unwind(AssertUnwindSafe(|| run(&job))).ok();
                let used = thread_time().zip(before).map_or(Duration::ZERO, |(after, before)| after - before);
                if reply.is_none() {
                    tracing::error!("a round of planning panicked; the policy in force stays");
                }
                if outbox.send((reply, used)).is_err() {
                    return;
                }
                wake();
            }
        })?;
        Ok(Self { jobs: Some(jobs), replies, rested: Cell::new(None), thread: Some(thread) })
    }

    /// Hands a job over. False, and the job is lost, while another one waits or when the thread has ended.
    pub(crate) fn offer(&self, job: J) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    /// The next reply, if there is one; none within for a round that broke down.
    pub(crate) fn reply(&self) -> Option<Option<R>> {
        let (reply, used) = self.replies.try_recv().ok()?;
        self.rested.set(Some(Instant::now() + rest(used)));
        Some(reply)
    }

    /// Whether a round may begin.
    pub(crate) fn rested(&self) -> bool {
        self.rested.get().is_none_or(|at| at <= Instant::now())
    }
}

impl<J, R> Drop for Planner<J, R> {
    fn drop(&mut self) {
        self.jobs = None;
        // A reply that nobody takes must not keep the thread in `send`.
        self.replies = flume::bounded(0).1;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long the thread rests after a round of this processor time.
fn rest(used: Duration) -> Duration {
    used * (SHARE - 1)
}

/// Lets the threads that write tokens go first.
#[cfg(target_os = "linux")]
fn give_way() {
    // SAFETY: a plain system call without pointers; on Linux "process 0" is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if result != 0 {
        tracing::debug!("the planner thread keeps its priority: {}", std::io::Error::last_os_error());
    }
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn start(run: fn(&u32) -> u32) -> (Planner<u32, u32>, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = wakes.clone();
        let wake = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        (Planner::start(run, wake).expect("a thread"), wakes)
    }

    /// Waits for something that happens on the other thread.
    fn until<T>(what: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(value) = what() {
                return value;
            }
            assert!(Instant::now() < end, "nothing happens");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_job_comes_back_as_a_reply_and_wakes_the_loop() {
        let (planner, wakes) = start(|job| job + 1);
        for job in 0..100 {
            assert_eq!(planner.reply(), None);
            assert!(planner.offer(job));
            assert_eq!(until(|| planner.reply()), Some(job + 1));
            until(|| (wakes.load(Ordering::SeqCst) == job as usize + 1).then_some(()));
        }
    }

    #[test]
    fn a_round_is_followed_by_a_rest_of_nineteen_times_its_processor_time() {
        assert_eq!(rest(Duration::from_millis(10)), Duration::from_millis(190));
        let burn: fn(&u32) -> u32 =
            |job| (0..50_000_000u32).fold(*job, |sum, i| std::hint::black_box(sum ^ i));
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| {});
        let planner: Planner<u32, u32> = Planner::start(burn, wake).expect("a thread");
        assert!(planner.rested(), "nothing was planned yet");
        assert!(planner.offer(1));
        until(|| planner.reply());
        let at = planner.rested.get().expect("a round is over");
        assert!(at > Instant::now() || planner.rested());
        until(|| planner.rested().then_some(()));
        assert!(Instant::now() >= at);
    }

    #[test]
    fn a_panic_is_answered_and_the_next_job_runs() {
        let (planner, wakes) = start(|job| {
            assert!(*job != 7, "as the test wants it");
            *job
        });
        assert!(planner.offer(7));
        assert_eq!(until(|| planner.reply()), None);
        assert!(planner.offer(8));
        assert_eq!(until(|| planner.reply()), Some(8));
        until(|| (wakes.load(Ordering::SeqCst) == 2).then_some(()));
    }

    #[test]
    fn dropping_ends_the_thread_whatever_it_does() {
        for replies in 0..3 {
            let (planner, _) = start(|job| *job);
            for job in 0..replies {
                until(|| planner.offer(job).then_some(()));
            }
            drop(planner);
        }
    }
}
