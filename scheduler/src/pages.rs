//! Joint pages: one allocator for the caches of all models, since a page id names the same page in each.
//!
//! A request leases the pages of its whole lifetime (prompt and `max_new_tokens`) at admission and returns them at
//! its end. Growth at launch and preemption belong to a later change. Pages of a request that ends while a launched
//! batch names it are deferred: they become free only when that batch has completed, since the device may still
//! write them.

use crate::ids::{PAGE_TOKENS, PageId};

/// Where the pages are; the three always sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Usable at once.
    pub free: usize,
    /// Held by live requests.
    pub leased: usize,
    /// Held by ended requests that a batch in flight still names.
    pub deferred: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Free,
    Leased,
    Deferred,
}

#[derive(Debug)]
pub(crate) struct Pages {
    /// Stack of free pages; the most recently freed is used first, while it is warm.
    free: Vec<PageId>,
    states: Vec<PageState>,
    leased: usize,
    deferred: usize,
}

/// Pages for this many tokens.
pub(crate) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

impl Pages {
    pub(crate) fn new(total: usize) -> Self {
        let free = (0..total as u32).rev().map(PageId).collect();
        Self { free, states: vec![PageState::Free; total], leased: 0, deferred: 0 }
    }

    pub(crate) fn total(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts { free: self.free.len(), leased: self.leased, deferred: self.deferred }
    }

    /// Leases `count` pages, or none and `None` when fewer are free.
    pub(crate) fn lease(&mut self, count: usize) -> Option<Vec<PageId>> {
        let rest = self.free.len().checked_sub(count)?;
        let pages = self.free.split_off(rest);
        for &page in &pages {
            self.set(page, PageState::Free, PageState::Leased);
        }
        self.leased += count;
        Some(pages)
    }

    /// The lease ends, but a batch in flight names the pages.
    pub(crate) fn defer(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.set(page, PageState::Leased, PageState::Deferred);
        }
        self.leased -= pages.len();
        self.deferred += pages.len();
    }

    /// The lease ends and no batch names the pages.
    pub(crate) fn release(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.set(page, PageState::Leased, PageState::Free);
        }
        self.leased -= pages.len();
        self.free.extend_from_slice(pages);
    }

    /// The batch that named deferred pages has completed.
    pub(crate) fn release_deferred(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.set(page, PageState::Deferred, PageState::Free);
        }
        self.deferred -= pages.len();
        self.free.extend_from_slice(pages);
    }

    /// Panics when the page is not where the caller says: a double free or a use after free.
    fn set(&mut self, page: PageId, from: PageState, to: PageState) {
        let state = &mut self.states[page.0 as usize];
        assert!(*state == from, "page {} is {:?}, not {from:?}", page.0, *state);
        *state = to;
    }

    /// Full check: the counters agree with the per-page states and the free list holds each free page once.
    pub(crate) fn audit(&self) {
        let count = |wanted| self.states.iter().filter(|&&s| s == wanted).count();
        let counts = self.counts();
        assert_eq!(counts.free + counts.leased + counts.deferred, self.total(), "pages are lost or doubled");
        assert_eq!((counts.leased, counts.deferred), (count(PageState::Leased), count(PageState::Deferred)));
        let mut listed = vec![false; self.total()];
        for page in &self.free {
            assert!(self.states[page.0 as usize] == PageState::Free, "page {} is listed but used", page.0);
            assert!(!listed[page.0 as usize], "page {} is listed twice", page.0);
            listed[page.0 as usize] = true;
        }
    }

    pub(crate) fn is_leased(&self, page: PageId) -> bool {
        self.states[page.0 as usize] == PageState::Leased
    }

    pub(crate) fn is_deferred(&self, page: PageId) -> bool {
        self.states[page.0 as usize] == PageState::Deferred
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_between_three_places() {
        assert_eq!((pages_for(0), pages_for(1), pages_for(16), pages_for(17)), (0, 1, 1, 2));
        let mut pages = Pages::new(5);
        let a = pages.lease(2).unwrap();
        let b = pages.lease(3).unwrap();
        assert_eq!(pages.lease(1), None);
        assert_eq!(pages.lease(0), Some(vec![]));
        pages.defer(&a);
        assert_eq!(pages.counts(), PageCounts { free: 0, leased: 3, deferred: 2 });
        assert!(pages.is_deferred(a[0]) && pages.is_leased(b[0]));
        assert_eq!(pages.lease(1), None, "deferred pages are not free");
        pages.audit();
        pages.release_deferred(&a);
        pages.release(&b);
        assert_eq!(pages.counts(), PageCounts { free: 5, leased: 0, deferred: 0 });
        pages.audit();
    }

    #[test]
    #[should_panic(expected = "not Leased")]
    fn a_double_free_panics() {
        let mut pages = Pages::new(2);
        let a = pages.lease(1).unwrap();
        pages.release(&a);
        pages.release(&a);
    }

    #[test]
    #[should_panic(expected = "not Deferred")]
    fn only_deferred_pages_wait_for_a_batch() {
        let mut pages = Pages::new(2);
        let a = pages.lease(1).unwrap();
        pages.release_deferred(&a);
    }
}
