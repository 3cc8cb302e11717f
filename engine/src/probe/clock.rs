//! Processor time of threads of this process, to the nanosecond. On a machine that has other work, it says what a step
//! costs where the wall clock does not.

use std::time::Duration;

/// Processor time of the threads of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Of all of them together.
    pub total: Duration,
    /// Of the one that has used most: with a core for each, and nobody waiting, what the wall clock would say.
    pub busiest: Duration,
}

/// The clocks of some threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    threads: Vec<i32>,
}

impl Clocks {
    pub(super) fn new(threads: Vec<i32>) -> Self {
        Self { threads }
    }

    pub(super) fn threads(&self) -> &[i32] {
        &self.threads
    }

    /// What each has used so far, written over `into`. A thread that is gone has used nothing.
    pub(super) fn read(&self, into: &mut Vec<Duration>) {
        into.clear();
        into.extend(self.threads.iter().map(|&thread| used(thread).unwrap_or_default()));
    }
}

/// From two readings of the same clocks.
pub(super) fn between(before: &[Duration], after: &[Duration]) -> CpuTime {
    let each = before.iter().zip(after).map(|(b, a)| a.saturating_sub(*b));
    each.fold(CpuTime::default(), |sum, used| CpuTime {
        total: sum.total + used,
        busiest: sum.busiest.max(used),
    })
}

/// Processor time of all threads of this process, also of those that have ended.
pub fn process_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default()
}

/// Processor time of this thread; none where it has no clock.
pub(crate) fn thread_time() -> Option<Duration> {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The threads of this process and their names; none where there is no `/proc`.
pub(super) fn threads() -> Vec<(i32, String)> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let thread = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        Some((id, name.trim_end().to_owned()))
    };
    tasks.filter_map(thread).collect()
}

/// Linux numbers the clock of a thread after it: all bits of its number inverted, and behind them "per thread, scheduler's
/// time" (clock_getcpuclockid(3) and the kernel's posix-timers.h).
#[cfg(target_os = "linux")]
fn used(thread: i32) -> Option<Duration> {
    const PER_THREAD_SCHED: i32 = 4 | 2;
    read((!thread << 3) | PER_THREAD_SCHED)
}

#[cfg(not(target_os = "linux"))]
fn used(_thread: i32) -> Option<Duration> {
    None
}

fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one time, which is valid for it.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_is_told_from_one_that_sleeps() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new().name("sleeper".into()).spawn(move || told.recv());
        let sleeper = sleeper.expect("a thread");
        // A thread names itself once it runs.
        let asleep = loop {
            if let Some((id, _)) = threads().into_iter().find(|(_, name)| name == "sleeper") {
                break id;
            }
        };
        // SAFETY: the call takes nothing and gives a number.
        let me = unsafe { libc::gettid() };
        let clocks = Clocks::new(vec![me, asleep]);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        clocks.read(&mut before);
        let process = process_time();
        let mut sum = 0u64;
        while thread_time().expect("a clock") < before[0] + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        clocks.read(&mut after);
        let used = between(&before, &after);
        assert!(used.busiest >= Duration::from_millis(20) && used.total < 2 * used.busiest, "{used:?}");
        assert!(process_time() >= process + Duration::from_millis(20));
        drop(tell);
        assert!(sleeper.join().is_ok());
        // Linux numbers no thread beyond 2^22.
        assert_eq!(super::used((1 << 22) + 1), None);
    }
}
