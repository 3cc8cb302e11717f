//! On which cores a thread may run. Speed only.

/// Runs `body` with this thread, and every thread that it starts, on `cores`; then this thread runs where it ran
/// before. No cores: wherever the system puts them.
///
/// # Errors
/// When the system has no such core, or does not let this process run there.
pub(crate) fn within<T>(cores: &[usize], body: impl FnOnce() -> T) -> std::io::Result<T> {
    if cores.is_empty() {
        return Ok(body());
    }
    let before = allowed()?;
    pin(cores)?;
    let outcome = body();
    pin(&before)?;
    Ok(outcome)
}

/// Binds this thread to `cores`; nothing for no cores.
///
/// # Errors
/// As [`within`].
#[cfg(target_os = "linux")]
pub(crate) fn pin(cores: &[usize]) -> std::io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        if core >= libc::CPU_SETSIZE as usize {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
        }
        // SAFETY: the core lies within the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the set is valid for the call and as large as is said; thread 0 is the caller.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> std::io::Result<Vec<usize>> {
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for the call and as large as is said; thread 0 is the caller.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: every core that is asked about lies within the set.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Only Linux binds threads here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(cores: &[usize]) -> std::io::Result<()> {
    if cores.is_empty() { Ok(()) } else { Err(std::io::Error::from(std::io::ErrorKind::Unsupported)) }
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> std::io::Result<Vec<usize>> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn threads_started_within_stay_there_and_the_caller_goes_back() {
        let before = allowed().expect("a set");
        let first = before[..1].to_vec();
        let started = within(&first, || std::thread::spawn(allowed)).expect("a core of this process");
        assert_eq!(started.join().expect("no panic").expect("a set"), first);
        assert_eq!(allowed().expect("a set"), before);
        assert_eq!(within(&[], || 7).expect("nothing to do"), 7);
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        assert!(within(&[1_000_000], || ()).is_err());
        let before = allowed().expect("a set");
        assert!(within(&[1_023], || ()).is_err() || before.contains(&1_023));
        assert_eq!(allowed().expect("a set"), before);
    }
}
