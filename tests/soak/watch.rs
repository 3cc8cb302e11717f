//! What the system says about a process.

use std::fs;
use std::path::PathBuf;

/// A process that is looked at.
pub(crate) struct Watch(PathBuf);

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes in memory.
    pub(crate) resident: u64,
    /// Open file descriptors.
    pub(crate) descriptors: usize,
    /// Threads.
    pub(crate) threads: usize,
}

impl Watch {
    /// Of the process with this id.
    pub(crate) fn new(id: u32) -> Self {
        Watch(PathBuf::from(format!("/proc/{id}")))
    }

    /// Looks.
    pub(crate) fn sample(&self) -> Sample {
        let count = |what: &str| fs::read_dir(self.0.join(what)).expect("it runs").count();
        let status = fs::read_to_string(self.0.join("status")).expect("it runs");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a resident size");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("kilobytes");
        Sample { resident: kib << 10, descriptors: count("fd"), threads: count("task") }
    }
}
