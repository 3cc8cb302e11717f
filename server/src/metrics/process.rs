//! `process_*`: what the system says about this process. Zeros where there is no `/proc`.

use std::fs;

/// Ticks of the CPU times in `/proc`: 100 per second on every Linux that Rust knows.
const TICKS: f64 = 100.0;

/// One look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) resident_bytes: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) open_fds: u64,
    pub(crate) max_fds: u64,
    pub(crate) cpu_seconds: f64,
}

impl Process {
    /// Reads `/proc/self`.
    pub(crate) fn look() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        // One of them is the folder itself, which is open only while it is read.
        Self {
            open_fds: open.saturating_sub(1),
            ..Self::parse(&read("status"), &read("stat"), &read("limits"))
        }
    }

    fn parse(status: &str, stat: &str, limits: &str) -> Self {
        let kilobytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
        };
        // The name in parentheses may hold anything. After it, user and system time are the 12th and 13th fields.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 =
            after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let max_fds = limit.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        Self {
            resident_bytes: kilobytes("VmRSS:"),
            virtual_bytes: kilobytes("VmSize:"),
            open_fds: 0,
            max_fds,
            cpu_seconds: ticks as f64 / TICKS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_understood() {
        let status = "Name:\tx\nVmSize:\t   2048 kB\nVmRSS:\t     12 kB\n";
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        let limits = "Limit  Soft Limit  Hard Limit Units\nMax open files            1024                 4096    files\n";
        let expected = Process {
            resident_bytes: 12 << 10,
            virtual_bytes: 2 << 20,
            open_fds: 0,
            max_fds: 1024,
            cpu_seconds: 3.0,
        };
        assert_eq!(Process::parse(status, stat, limits), expected);
        assert_eq!(Process::parse("", "", ""), Process::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_files() {
        let process = Process::look();
        assert!(
            process.resident_bytes > 1 << 20 && process.virtual_bytes >= process.resident_bytes,
            "{process:?}"
        );
        assert!(process.open_fds >= 1 && process.max_fds >= process.open_fds, "{process:?}");
    }
}
