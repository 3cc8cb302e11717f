//! Requests that wait or take too long.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The limits of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Its first token must be there by then.
    pub(crate) first: Option<Instant>,
    /// It must be over by then.
    pub(crate) whole: Option<Instant>,
    /// It was asked to end; `whole` is now the end of our patience.
    pub(crate) cut: bool,
}

/// How long a request that was asked to end may take to do so.
const GRACE: Duration = Duration::from_secs(5);

impl Deadlines {
    /// Limits of a request that arrived then.
    pub(crate) fn new(arrived: Instant, first: Option<Duration>, whole: Option<Duration>) -> Self {
        let at = |limit: Option<Duration>| limit.and_then(|limit| arrived.checked_add(limit));
        Self { first: at(first), whole: at(whole), cut: false }
    }

    /// Those of a request that was asked to end.
    pub(crate) fn cut(now: Instant) -> Self {
        Self { first: None, whole: Some(now + GRACE), cut: true }
    }

    fn next(&self) -> Option<Instant> {
        [self.first, self.whole].into_iter().flatten().min()
    }
}

/// The next deadline of every request that has one.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    set: BTreeSet<(Instant, u64)>,
}

impl Timers {
    /// Follows a request from now on.
    pub(crate) fn add(&mut self, id: u64, deadlines: &Deadlines) {
        self.set.extend(deadlines.next().map(|at| (at, id)));
    }

    /// Forgets one whose deadlines have not changed since it was added.
    pub(crate) fn remove(&mut self, id: u64, deadlines: &Deadlines) {
        if let Some(at) = deadlines.next() {
            self.set.remove(&(at, id));
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.set.first().map(|(at, _)| *at)
    }

    /// One that is due, forgotten by this.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u64> {
        let (at, id) = self.set.first().copied().filter(|(at, _)| *at <= now)?;
        self.set.remove(&(at, id));
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_and_only_when_due() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut timers = Timers::default();
        let of = |first: u64, whole: u64| Deadlines::new(start, Some(ms(first)), Some(ms(whole)));
        timers.add(1, &of(50, 100));
        timers.add(2, &of(30, 20));
        timers.add(3, &Deadlines::new(start, None, None));
        timers.add(4, &of(10, 99));
        timers.remove(4, &of(10, 99));
        assert_eq!(timers.next(), Some(start + ms(20)));
        assert_eq!(timers.pop(start + ms(19)), None);
        assert_eq!((timers.pop(start + ms(60)), timers.pop(start + ms(60))), (Some(2), Some(1)));
        assert_eq!((timers.pop(start + ms(999)), timers.next()), (None, None));
        assert_eq!(Deadlines::new(start, Some(Duration::MAX), None).next(), None, "for ever is no limit");
    }
}
