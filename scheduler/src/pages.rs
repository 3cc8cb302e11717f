//! Joint pages: one allocator for the caches of all models, since a page id names the same page in each.
//!
//! Several requests may hold one page: those whose prompts share the page's whole prefix. Per (page, model) `valid`
//! counts the leading positions that the model has computed in completed steps; a page that is taken for new contents
//! starts with none for all models. A page that nobody holds is *cached* when a search can find it and some model has
//! computed some of it, and free otherwise; when no page is free, the cached one that was used longest ago is taken.
//!
//! Pages of a request that ends while a launched batch names it are *deferred*: they are given to nobody before that
//! batch has completed, since the device may still write them.

use crate::ids::{ModelId, PAGE_TOKENS, PageId};
use crate::prefix::{Parent, PrefixIndex};
use crate::queue::{Links, Queue};

/// Where the pages are; the four always sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Holds nothing of use.
    pub free: usize,
    /// Held by live requests.
    pub leased: usize,
    /// Held only by ended requests that a batch in flight still names.
    pub deferred: usize,
    /// Held by nobody; kept for a prompt with the same prefix until the room is needed.
    pub cached: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Leased,
    Deferred,
    Cached,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    place: Place,
    /// Live requests that hold it.
    live: u32,
    /// Ended requests that hold it because a batch in flight names them.
    ended: u32,
    /// A request that held it failed: it is not published any more.
    distrusted: bool,
}

/// One page as one model sees it.
#[derive(Clone, Copy, Debug)]
struct View {
    /// The row of the model's batch in flight that writes it, or [`NO_ROW`].
    claim: u32,
    /// Leading positions that the model has computed.
    valid: u8,
}

/// The row of a batch that writes a page.
pub(crate) const NO_ROW: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Pages {
    /// Stack of free pages; the most recently freed is used first, while it is warm.
    free: Vec<PageId>,
    pages: Vec<Page>,
    models: usize,
    /// `[page][model]`.
    views: Vec<View>,
    index: PrefixIndex,
    /// Cached pages, the one used longest ago first.
    lru: Queue,
    links: Links,
    leased: usize,
    deferred: usize,
}

/// Pages for this many tokens.
pub(crate) fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

impl Pages {
    pub(crate) fn new(total: usize, models: usize) -> Self {
        let mut links = Links::with_capacity(total);
        (0..total).for_each(|_| links.grow());
        Self {
            free: (0..total as u32).rev().map(PageId).collect(),
            pages: vec![Page { place: Place::Free, live: 0, ended: 0, distrusted: false }; total],
            models,
            views: vec![View { claim: NO_ROW, valid: 0 }; total * models],
            index: PrefixIndex::new(total),
            lru: Queue::default(),
            links,
            leased: 0,
            deferred: 0,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts {
            free: self.free.len(),
            leased: self.leased,
            deferred: self.deferred,
            cached: self.lru.len(),
        }
    }

    /// Pages that can be taken at once.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.lru.len()
    }

    /// Leases one page for new contents, if need be the cached page that was used longest ago.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = match self.free.last() {
            Some(&page) => page,
            None => PageId(self.lru.front()? as u32),
        };
        self.index.forget(page);
        let at = page.0 as usize;
        self.views[at * self.models..][..self.models].iter_mut().for_each(|view| view.valid = 0);
        self.pages[at].distrusted = false;
        self.pages[at].live = 1;
        self.settle(page);
        Some(page)
    }

    /// One more request holds a page that a search has found.
    pub(crate) fn share(&mut self, page: PageId) {
        assert!(self.index.is_listed(page), "page {} is shared and not listed", page.0);
        self.pages[page.0 as usize].live += 1;
        self.settle(page);
    }

    /// The lease ends, but a batch in flight names the pages.
    pub(crate) fn defer(&mut self, pages: &[PageId]) {
        for &page in pages {
            let entry = &mut self.pages[page.0 as usize];
            assert!(entry.live > 0, "page {} is {:?}, not leased", page.0, entry.place);
            entry.live -= 1;
            entry.ended += 1;
            self.settle(page);
        }
    }

    /// The lease ends and no batch names the pages. The last go first, so that of a chain of cached pages the ends
    /// are evicted before what they stand on.
    pub(crate) fn release(&mut self, pages: &[PageId]) {
        for &page in pages.iter().rev() {
            let entry = &mut self.pages[page.0 as usize];
            assert!(entry.live > 0, "page {} is {:?}, not leased", page.0, entry.place);
            entry.live -= 1;
            self.settle(page);
        }
    }

    /// The batch that named deferred pages has completed.
    pub(crate) fn release_deferred(&mut self, pages: &[PageId]) {
        for &page in pages.iter().rev() {
            let entry = &mut self.pages[page.0 as usize];
            assert!(entry.ended > 0, "page {} is {:?}, not deferred", page.0, entry.place);
            entry.ended -= 1;
            self.settle(page);
        }
    }

    /// Puts a page where its holders and contents say.
    fn settle(&mut self, page: PageId) {
        let Page { place: from, live, ended, .. } = self.pages[page.0 as usize];
        let to = match (live, ended) {
            (0, 0) if self.index.is_listed(page) && self.is_computed(page) => Place::Cached,
            (0, 0) => Place::Free,
            (0, _) => Place::Deferred,
            _ => Place::Leased,
        };
        if from == to {
            return;
        }
        match from {
            // Only `take` takes a free page, and it takes the top.
            Place::Free => drop(self.free.pop()),
            Place::Leased => self.leased -= 1,
            Place::Deferred => self.deferred -= 1,
            Place::Cached => self.lru.remove(&mut self.links, page.0 as usize),
        }
        match to {
            Place::Free => {
                self.index.forget(page);
                self.free.push(page);
            }
            Place::Leased => self.leased += 1,
            Place::Deferred => self.deferred += 1,
            Place::Cached => self.lru.push_back(&mut self.links, page.0 as usize),
        }
        self.pages[page.0 as usize].place = to;
    }

    fn is_computed(&self, page: PageId) -> bool {
        self.views[page.0 as usize * self.models..][..self.models].iter().any(|view| view.valid > 0)
    }

    fn view(&mut self, page: PageId, model: ModelId) -> &mut View {
        &mut self.views[page.0 as usize * self.models + model.index()]
    }

    /// Leading positions of the page that `model` has computed.
    pub(crate) fn valid(&self, page: PageId, model: ModelId) -> usize {
        usize::from(self.views[page.0 as usize * self.models + model.index()].valid)
    }

    /// The row that writes the page in the batch of `model`, or [`NO_ROW`].
    pub(crate) fn claim(&self, page: PageId, model: ModelId) -> u32 {
        self.views[page.0 as usize * self.models + model.index()].claim
    }

    /// Row `row` of the batch of `model` is going to write the positions from `start` to `end` of the block table.
    pub(crate) fn launched(&mut self, table: &[PageId], model: ModelId, start: u32, end: u32, row: u32) {
        for &page in &table[start as usize / PAGE_TOKENS..(end as usize).div_ceil(PAGE_TOKENS)] {
            let view = self.view(page, model);
            assert!(view.claim == NO_ROW, "page {} has two claimants", page.0);
            view.claim = row;
        }
    }

    /// The batch has landed: the row writes no page any more, and if it ran well, what it wrote may be read.
    pub(crate) fn landed(&mut self, table: &[PageId], model: ModelId, start: u32, end: u32, well: bool) {
        let (first, end) = (start as usize / PAGE_TOKENS, end as usize);
        for (i, &page) in table[first..end.div_ceil(PAGE_TOKENS)].iter().enumerate() {
            let view = self.view(page, model);
            assert!(view.claim != NO_ROW, "page {} was written without a claim", page.0);
            view.claim = NO_ROW;
            if well {
                let valid = (end - (first + i) * PAGE_TOKENS).min(PAGE_TOKENS) as u8;
                view.valid = view.valid.max(valid);
            }
        }
    }

    /// Nothing that `model` has computed is trusted any more. Cached pages that no other model has computed are free.
    pub(crate) fn forget(&mut self, model: ModelId) {
        for page in (0..self.total() as u32).map(PageId) {
            self.view(page, model).valid = 0;
            self.settle(page);
        }
    }

    /// A bug for a test to find: positions count as computed that are not.
    #[cfg(test)]
    pub(crate) fn pretend_computed(&mut self, page: PageId, model: ModelId, valid: u8) {
        let view = self.view(page, model);
        view.valid = view.valid.max(valid);
    }

    /// Appends to `found` the pages that hold the leading blocks of `tokens`, but never the block of the last token:
    /// a request writes the position of its last token whenever it needs logits again, so that page is its own.
    pub(crate) fn search(&self, salt: Option<u64>, tokens: &[u32], found: &mut Vec<PageId>) {
        let mut parent = Parent::Root(salt);
        for block in tokens.chunks_exact(PAGE_TOKENS).take((tokens.len() - 1) / PAGE_TOKENS) {
            let Some(page) = self.index.find(parent, block) else { break };
            found.push(page);
            let Some(next) = self.index.as_parent(page) else { break };
            parent = next;
        }
    }

    /// Publishes block `i` of a request that holds `pages`: a search can find it from now on. Whether a model has
    /// computed it is another matter; a request that shares it computes what is missing.
    pub(crate) fn publish(&mut self, salt: Option<u64>, pages: &[PageId], i: usize, block: &[u32]) {
        let parent = match i.checked_sub(1) {
            None => Some(Parent::Root(salt)),
            Some(before) => self.index.as_parent(pages[before]),
        };
        let (Some(parent), false) = (parent, self.pages[pages[i].0 as usize].distrusted) else { return };
        self.index.publish(pages[i], parent, block);
    }

    /// A request that holds the pages failed: no search finds them any more.
    pub(crate) fn distrust(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.index.delist(page);
            self.pages[page.0 as usize].distrusted = true;
        }
    }

    /// The only live holder takes back what it has published.
    pub(crate) fn withdraw(&mut self, pages: &[PageId]) {
        for &page in pages {
            if self.pages[page.0 as usize].live == 1 {
                self.index.delist(page);
            }
        }
    }

    /// Whether nobody holds the page, but its contents are kept.
    pub(crate) fn is_cached(&self, page: PageId) -> bool {
        self.pages[page.0 as usize].place == Place::Cached
    }

    /// Whether the page holds nothing of use.
    pub(crate) fn is_free(&self, page: PageId) -> bool {
        self.pages[page.0 as usize].place == Place::Free
    }

    /// The tokens of a published page.
    pub(crate) fn contents(&self, page: PageId) -> Option<&[u32]> {
        self.index.tokens(page)
    }

    /// Full check against the holders that the caller has counted: `holders[page]` = (live, ended).
    pub(crate) fn audit(&self, holders: &[(u32, u32)]) {
        self.index.audit();
        let counts = self.counts();
        let sum = counts.free + counts.leased + counts.deferred + counts.cached;
        assert_eq!(sum, self.total(), "pages are lost or doubled");
        let mut seen = [0; 4];
        for (i, page) in self.pages.iter().enumerate() {
            let id = PageId(i as u32);
            assert_eq!((page.live, page.ended), holders[i], "page {i}: holders");
            let right = match (page.live, page.ended, page.place) {
                (0, 0, Place::Free) => !self.index.is_listed(id),
                (0, 0, Place::Cached) => self.index.is_listed(id) && self.is_computed(id),
                (0, 1.., Place::Deferred) | (1.., _, Place::Leased) => true,
                _ => false,
            };
            assert!(right, "page {i} is in the wrong place: {page:?}");
            seen[page.place as usize] += 1;
        }
        assert_eq!(seen, [counts.free, counts.leased, counts.deferred, counts.cached]);
        assert!(self.lru.iter(&self.links).all(|p| self.is_cached(PageId(p as u32))));
        assert_eq!(self.lru.iter(&self.links).count(), counts.cached);
        let mut listed = vec![false; self.total()];
        for page in &self.free {
            assert!(self.is_free(*page), "page {} is listed but used", page.0);
            assert!(!listed[page.0 as usize], "page {} is listed twice", page.0);
            listed[page.0 as usize] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelId = ModelId(0);

    fn block(n: u32) -> [u32; PAGE_TOKENS] {
        [n; PAGE_TOKENS]
    }

    /// Model 0 computes a whole page.
    fn compute(pages: &mut Pages, page: PageId) {
        pages.launched(&[page], A, 0, 16, 0);
        pages.landed(&[page], A, 0, 16, true);
    }

    /// A published page, computed by model 0, held by one.
    fn published(pages: &mut Pages, n: u32) -> PageId {
        let page = pages.take().unwrap();
        pages.publish(None, &[page], 0, &block(n));
        compute(pages, page);
        page
    }

    #[test]
    fn pages_move_between_four_places() {
        assert_eq!((pages_for(0), pages_for(1), pages_for(16), pages_for(17)), (0, 1, 1, 2));
        let mut pages = Pages::new(3, 2);
        let a = pages.take().unwrap();
        let b = published(&mut pages, 5);
        pages.defer(&[a]);
        assert_eq!(pages.counts(), PageCounts { free: 1, leased: 1, deferred: 1, cached: 0 });
        pages.release(&[b]);
        assert_eq!(pages.counts(), PageCounts { free: 1, leased: 0, deferred: 1, cached: 1 });
        assert!(pages.is_cached(b) && pages.available() == 2);
        let mut holders = [(0, 0); 3];
        holders[a.0 as usize] = (0, 1);
        pages.audit(&holders);
        let mut found = Vec::new();
        pages.search(None, &[5; 17], &mut found);
        assert_eq!(found, [b]);
        pages.share(b);
        pages.share(b);
        pages.defer(&[b]);
        pages.release(&[b]);
        assert_eq!(pages.counts().deferred, 2);
        pages.release_deferred(&[a, b]);
        assert_eq!(pages.counts(), PageCounts { free: 2, leased: 0, deferred: 0, cached: 1 });
        pages.audit(&[(0, 0); 3]);
    }

    #[test]
    fn the_page_of_the_last_token_is_never_shared() {
        let mut pages = Pages::new(4, 1);
        let page = published(&mut pages, 5);
        for (len, hits) in [(1, 0), (15, 0), (16, 0), (17, 1), (33, 1)] {
            let mut found = Vec::new();
            pages.search(None, &vec![5; len], &mut found);
            assert_eq!(found, vec![page; hits], "{len} tokens");
        }
    }

    #[test]
    fn the_cached_page_used_longest_ago_is_evicted_and_forgotten() {
        let mut pages = Pages::new(3, 2);
        let held: Vec<PageId> = (1..=3).map(|n| published(&mut pages, n)).collect();
        pages.release(&held[1..2]);
        pages.release(&held[0..1]);
        pages.release(&held[2..3]);
        pages.share(held[1]);
        pages.release(&held[1..2]);
        let order: Vec<PageId> = (0..3).map(|_| pages.take().unwrap()).collect();
        assert_eq!(order, [held[0], held[2], held[1]]);
        assert_eq!(pages.take(), None);
        assert_eq!(pages.valid(held[0], A), 0, "the new contents are not computed");
        let mut found = Vec::new();
        pages.search(None, &[1; 17], &mut found);
        assert_eq!(found, []);
    }

    #[test]
    fn of_a_chain_the_end_is_evicted_first() {
        let mut pages = Pages::new(2, 1);
        let chain = [pages.take().unwrap(), pages.take().unwrap()];
        for i in 0..2 {
            pages.publish(None, &chain, i, &block(9));
            compute(&mut pages, chain[i]);
        }
        pages.release(&chain);
        assert_eq!(pages.take(), Some(chain[1]));
    }

    #[test]
    fn what_nobody_computed_or_nobody_trusts_is_not_kept() {
        let mut pages = Pages::new(3, 1);
        let idle = pages.take().unwrap();
        pages.publish(None, &[idle], 0, &block(1));
        let failed = published(&mut pages, 2);
        pages.distrust(&[failed]);
        let withdrawn = published(&mut pages, 3);
        pages.share(withdrawn);
        pages.withdraw(&[withdrawn]);
        pages.release(&[withdrawn]);
        pages.withdraw(&[withdrawn]);
        pages.release(&[idle, failed, withdrawn]);
        assert_eq!(pages.counts().free, 3);
        pages.audit(&[(0, 0); 3]);
    }

    #[test]
    #[should_panic(expected = "not leased")]
    fn a_double_free_panics() {
        let mut pages = Pages::new(2, 1);
        let a = pages.take().unwrap();
        pages.release(&[a]);
        pages.release(&[a]);
    }

    #[test]
    #[should_panic(expected = "not deferred")]
    fn only_deferred_pages_wait_for_a_batch() {
        let mut pages = Pages::new(2, 1);
        let a = pages.take().unwrap();
        pages.release_deferred(&[a]);
    }

    #[test]
    #[should_panic(expected = "two claimants")]
    fn a_page_has_one_claimant_per_model() {
        let mut pages = Pages::new(1, 2);
        let a = pages.take().unwrap();
        pages.launched(&[a], A, 0, 1, 0);
        pages.launched(&[a], ModelId(1), 0, 1, 0);
        pages.launched(&[a], A, 1, 2, 1);
    }
}
