//! Whose processor time it was: the server's, this program's, or somebody else's.

use crate::eval::{TICKS_PER_SECOND, seconds_of};

/// Clocks of the processors at one moment. What a system does not have is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// Of the server, where its process is known.
    server: Option<f64>,
    /// Of this process.
    own: Option<f64>,
    /// Of all processors: seconds with work, and all seconds.
    machine: Option<(f64, f64)>,
}

/// What was used between two moments, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) server: Option<f64>,
    pub(super) own: Option<f64>,
    machine: Option<(f64, f64)>,
}

impl Clocks {
    /// Now; `pid` is the server's process.
    pub(super) fn read(pid: Option<u32>) -> Self {
        Clocks {
            server: pid.and_then(|pid| seconds_of(&pid.to_string())),
            own: seconds_of("self"),
            machine: std::fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)),
        }
    }

    /// From `self` to `later`.
    pub(super) fn until(&self, later: &Clocks) -> Used {
        let between = |a: Option<f64>, b: Option<f64>| Some(b? - a?);
        let machine = self.machine.zip(later.machine).map(|(a, b)| (b.0 - a.0, b.1 - a.1));
        Used { server: between(self.server, later.server), own: between(self.own, later.own), machine }
    }
}

impl Used {
    /// Share of the machine's processors that neither the server (which used so many seconds) nor this program had.
    pub(super) fn foreign(&self, server: Option<f64>) -> Option<f64> {
        let ((busy, all), ours) = (self.machine?, server? + self.own?);
        // The clocks tick in hundredths of a second and are read one after another: a little below nothing is nothing.
        (all > 0.0).then(|| ((busy - ours) / all).max(0.0))
    }
}

/// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. What a host takes
/// away (steal) counts as work: it is somebody else's.
fn machine(text: &str) -> Option<(f64, f64)> {
    let mut fields = text.lines().next()?.split_whitespace();
    if fields.next() != Some("cpu") {
        return None;
    }
    let ticks: Vec<f64> = fields.take(8).map(|f| f.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, idle, waiting, rest @ ..] = ticks.as_slice() else { return None };
    let busy = user + nice + system + rest.iter().sum::<f64>();
    Some((busy / TICKS_PER_SECOND, (busy + idle + waiting) / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_the_servers_nor_ours_is_foreign() {
        assert_eq!(machine("cpu  100 20 30 400 50 1 2 3 9 9\ncpu0 1 1"), Some((1.56, 6.06)));
        assert_eq!(machine("intr 5"), None);
        assert_eq!(machine("cpu  100 20"), None);
        let at = |server, own, busy, all| Clocks { server, own, machine: Some((busy, all)) };
        let used = at(Some(1.0), Some(0.5), 10.0, 100.0).until(&at(Some(4.0), Some(1.0), 15.0, 120.0));
        assert_eq!((used.server, used.own), (Some(3.0), Some(0.5)));
        assert_eq!(used.foreign(used.server), Some(1.5 / 20.0));
        assert_eq!(used.foreign(Some(9.0)), Some(0.0));
        assert_eq!(used.foreign(None), None, "a server that is not known may be anywhere");
    }
}
