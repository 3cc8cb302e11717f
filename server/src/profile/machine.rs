//! The machine: what it is, and what else runs on it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tokenrouter_engine::probe;

/// Linux counts in hundredths of a second in /proc, whatever its own tick is.
const TICK: Duration = Duration::from_millis(10);

/// What identifies a machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The processor's own name.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// The kernels that run here.
    pub(crate) isa: String,
}

impl Machine {
    /// This one.
    pub(crate) fn here() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: cpu_name(&info).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            isa: probe::isa_name().to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\" with {} cores and {} kernels", self.cpu, self.cores, self.isa)
    }
}

fn cpu_name(info: &str) -> Option<String> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Now, as RFC 3339 in UTC to the second.
pub(super) fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    date_of(seconds)
}

/// Days are turned into a date as in "chrono-Compatible Low-Level Date Algorithms" (H. Hinnant): years begin in March, so
/// that the day that may be missing is the last.
fn date_of(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Measures what others take of the cores between two looks.
pub(super) struct Others {
    cores: f64,
    began: Instant,
    /// Ticks in which any core worked, and processor time of this process; none where there is no `/proc`.
    before: Option<(u64, Duration)>,
}

impl Others {
    /// From now on.
    pub(super) fn watch(cores: usize) -> Self {
        let before = busy().map(|ticks| (ticks, probe::process_time()));
        Self { cores: cores as f64, began: Instant::now(), before }
    }

    /// The share of all cores that others took since then, 0 to 1; 0 where it cannot be told.
    pub(super) fn share(&self) -> f64 {
        let Some(((before, own_before), after)) = self.before.zip(busy()) else { return 0.0 };
        let all = TICK.as_secs_f64() * after.saturating_sub(before) as f64;
        let own = probe::process_time().saturating_sub(own_before).as_secs_f64();
        let whole = self.cores * self.began.elapsed().as_secs_f64();
        ((all - own) / whole.max(1e-9)).clamp(0.0, 1.0)
    }
}

fn busy() -> Option<u64> {
    busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Everything in the first line but idle and waiting for disks (proc(5)); guests are in user time already.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |i: usize| fields.get(i).copied().unwrap_or(0);
    (fields.len() >= 4).then(|| [0, 1, 2, 5, 6, 7].into_iter().map(field).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_796_046_245, "2026-11-30T13:44:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date_of(seconds), date);
        }
    }

    #[test]
    fn the_first_line_of_stat_says_what_is_busy() {
        let stat = "cpu  100 20 30 900 50 1 2 3 7 7\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(156));
        assert_eq!(busy_ticks("cpu  100 20 30 900"), Some(150));
        assert_eq!([busy_ticks("cpu  100"), busy_ticks("intr 5"), busy_ticks("")], [None; 3]);
    }

    #[test]
    fn a_processor_has_a_name() {
        assert_eq!(
            cpu_name("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n"),
            Some("Some CPU @ 2 GHz".into())
        );
        assert_eq!(cpu_name("processor : 0\n"), None);
        let here = Machine::here();
        assert!(here.cores > 0 && !here.cpu.is_empty() && !here.isa.is_empty(), "{here}");
        assert!((0.0..=1.0).contains(&Others::watch(here.cores).share()));
    }
}
