//! What the system says about a process.

use std::fs;
use std::path::PathBuf;

/// The models' pools have what weights and activations leave of 64 MiB: 46 and 14. The system may join their mappings.
const POOLS: u64 = 60 << 20;
/// No other mapping that is no file's is as large at the start.
const SMALLEST_POOL: u64 = 12 << 20;

/// A process that is looked at.
pub(crate) struct Watch(PathBuf);

/// One look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Bytes in memory, without the models' pools of pages: their memory comes when a page is used for the first
    /// time, sooner on a faster machine, and never again.
    pub(crate) resident: u64,
    /// Bytes of the pools in memory.
    pub(crate) pools: u64,
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
        let mappings = fs::read_to_string(self.0.join("smaps")).expect("it runs");
        let (all, pools) = resident(&mappings);
        Sample { resident: all - pools, pools, descriptors: count("fd"), threads: count("task") }
    }
}

/// Bytes in memory of all mappings, and those of the pools among them.
fn resident(mappings: &str) -> (u64, u64) {
    let (mut all, mut reserved, mut pools) = (0, 0, 0);
    let (mut private, mut size) = (false, 0);
    for line in mappings.lines() {
        let mut words = line.split_whitespace();
        let (Some(first), second) = (words.next(), words.next().unwrap_or("")) else { continue };
        let bytes = || second.parse::<u64>().expect("kilobytes") << 10;
        match first {
            "Size:" => size = bytes(),
            "Rss:" => {
                all += bytes();
                if private && size >= SMALLEST_POOL {
                    reserved += size;
                    pools += bytes();
                }
            }
            // The first line of a mapping: addresses, rights, offset, device, inode and, of a file, its path.
            _ if !first.ends_with(':') => private = second == "rw-p" && words.count() == 3,
            _ => {}
        }
    }
    assert!(reserved >= POOLS - (2 << 20), "where are the pools? The large mappings have {reserved} bytes");
    (all, pools.min(POOLS))
}
