//! Processor time of a process, which says what a run costs also on a machine that has other work.

/// Linux counts in hundredths of a second here, whatever its own tick is.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time of all threads so far, in seconds; none where there is no `/proc`.
pub(super) fn seconds() -> Option<f64> {
    seconds_of("self")
}

/// The same of any process, by its id.
pub(crate) fn seconds_of(process: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    ticks(&stat).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// The fields `utime` and `stime`, added (proc(5): the 14th and 15th).
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may hold spaces and parentheses; the third comes after.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_times_are_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 370 25 0 0 20 0 1 0 12345 1000 10";
        assert_eq!(ticks(stat), Some(395));
        assert_eq!(ticks("42 (short) S 1 42 42 0 -1 4194560 100 0 0 0 370"), None);
        assert_eq!(ticks(""), None);
    }
}
