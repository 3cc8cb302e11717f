//! The prefix index: which page holds which 16 tokens after which prefix.
//!
//! A key is (parent, 16 tokens). The parent of a first block is the request's salt; the parent of any other block is
//! the number of the block before it. A number stands for one exact prefix and is never given twice, and a hit
//! compares parent and tokens in full, so that by induction equal keys mean equal prefixes: a collision of hashes
//! costs a comparison and nothing else.
//!
//! Everything is allocated once for the number of pages: publishing a block and dropping it allocate nothing.

use crate::ids::{PAGE_TOKENS, PageId};
use crate::router::mix;

/// "No page".
const NONE: u32 = u32::MAX;

/// What stands before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing: the first block of a request with this salt.
    Root(Option<u64>),
    /// The block of this number.
    Block(u64),
}

impl Parent {
    fn hash(self) -> u64 {
        match self {
            Self::Root(None) => 1,
            Self::Root(Some(salt)) => mix(salt ^ 0x5a17),
            Self::Block(number) => mix(number ^ (1 << 63)),
        }
    }
}

/// What is known about the contents of one page.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Parent,
    tokens: [u32; PAGE_TOKENS],
    /// The number of its prefix; 0 when its contents have not been published.
    block: u64,
    /// Whether a search can find it. A page with the contents of a listed one has the same number and is not listed.
    listed: bool,
    /// The next page in the same bucket.
    next: u32,
}

const VACANT: Node =
    Node { parent: Parent::Root(None), tokens: [0; PAGE_TOKENS], block: 0, listed: false, next: NONE };

#[derive(Debug)]
pub(crate) struct PrefixIndex {
    /// Heads of the chains; a power of two.
    buckets: Vec<u32>,
    nodes: Vec<Node>,
    last_block: u64,
}

impl PrefixIndex {
    pub(crate) fn new(pages: usize) -> Self {
        Self { buckets: vec![NONE; pages.next_power_of_two()], nodes: vec![VACANT; pages], last_block: 0 }
    }

    fn bucket(&self, parent: Parent, tokens: &[u32]) -> usize {
        let hash = tokens.iter().fold(parent.hash(), |h, &token| mix(h ^ u64::from(token)));
        hash as usize & (self.buckets.len() - 1)
    }

    /// The listed page that holds `tokens` (16 of them) after `parent`.
    pub(crate) fn find(&self, parent: Parent, tokens: &[u32]) -> Option<PageId> {
        self.find_in(self.bucket(parent, tokens), parent, tokens)
    }

    fn find_in(&self, bucket: usize, parent: Parent, tokens: &[u32]) -> Option<PageId> {
        let mut at = self.buckets[bucket];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.parent == parent && node.tokens == tokens {
                return Some(PageId(at));
            }
            at = node.next;
        }
        None
    }

    /// States that `page` holds `tokens` (16 of them) after `parent`, and lists it unless another page with these
    /// contents is listed. The page must not have been published since it was forgotten.
    pub(crate) fn publish(&mut self, page: PageId, parent: Parent, tokens: &[u32]) {
        let Ok(tokens) = <[u32; PAGE_TOKENS]>::try_from(tokens) else { return };
        let bucket = self.bucket(parent, &tokens);
        let twin = self.find_in(bucket, parent, &tokens);
        let block = match twin {
            Some(twin) => self.nodes[twin.0 as usize].block,
            None => {
                self.last_block += 1;
                self.last_block
            }
        };
        let node = &mut self.nodes[page.0 as usize];
        assert!(node.block == 0, "page {} is published twice", page.0);
        *node = Node { parent, tokens, block, listed: twin.is_none(), next: NONE };
        if twin.is_none() {
            node.next = std::mem::replace(&mut self.buckets[bucket], page.0);
        }
    }

    /// What stands before the block after this page's; `None` when the page has not been published.
    pub(crate) fn as_parent(&self, page: PageId) -> Option<Parent> {
        let block = self.nodes[page.0 as usize].block;
        (block != 0).then_some(Parent::Block(block))
    }

    pub(crate) fn is_listed(&self, page: PageId) -> bool {
        self.nodes[page.0 as usize].listed
    }

    /// No search finds the page any more.
    pub(crate) fn delist(&mut self, page: PageId) {
        let Node { parent, tokens, listed, next, .. } = self.nodes[page.0 as usize];
        if !listed {
            return;
        }
        let bucket = self.bucket(parent, &tokens);
        if self.buckets[bucket] == page.0 {
            self.buckets[bucket] = next;
        } else {
            let mut at = self.buckets[bucket] as usize;
            while self.nodes[at].next != page.0 {
                at = self.nodes[at].next as usize;
            }
            self.nodes[at].next = next;
        }
        let node = &mut self.nodes[page.0 as usize];
        (node.listed, node.next) = (false, NONE);
    }

    /// The page will hold something else.
    pub(crate) fn forget(&mut self, page: PageId) {
        self.delist(page);
        self.nodes[page.0 as usize].block = 0;
    }

    /// Full check: exactly the listed pages can be found.
    pub(crate) fn audit(&self) {
        for (i, node) in self.nodes.iter().enumerate() {
            let found = self.find(node.parent, &node.tokens);
            if node.listed {
                assert_eq!(found, Some(PageId(i as u32)), "page {i} is listed and not found");
            } else {
                assert_ne!(found, Some(PageId(i as u32)), "page {i} is found and not listed");
            }
        }
    }

    /// The 16 tokens of a published page.
    pub(crate) fn tokens(&self, page: PageId) -> Option<&[u32]> {
        let node = &self.nodes[page.0 as usize];
        (node.block != 0).then_some(&node.tokens[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Parent = Parent::Root(None);

    #[test]
    fn a_hit_needs_the_same_tokens_after_the_same_prefix_and_salt() {
        let mut index = PrefixIndex::new(8);
        let (x, y) = ([7; PAGE_TOKENS], [8; PAGE_TOKENS]);
        index.publish(PageId(0), ROOT, &x);
        let after_x = index.as_parent(PageId(0)).unwrap();
        index.publish(PageId(1), after_x, &x);
        index.publish(PageId(2), ROOT, &y);
        let after_y = index.as_parent(PageId(2)).unwrap();
        assert_eq!(index.find(ROOT, &x), Some(PageId(0)));
        assert_eq!(index.find(after_x, &x), Some(PageId(1)), "the same tokens one block later");
        assert_eq!(index.find(after_y, &x), None, "the same tokens after others");
        assert_eq!(index.find(Parent::Root(Some(1)), &x), None);
        index.publish(PageId(3), Parent::Root(Some(1)), &x);
        assert_eq!(index.find(Parent::Root(Some(1)), &x), Some(PageId(3)));
        index.audit();
    }

    #[test]
    fn a_twin_has_the_number_but_not_the_place() {
        let mut index = PrefixIndex::new(4);
        let x = [7; PAGE_TOKENS];
        index.publish(PageId(0), ROOT, &x);
        index.publish(PageId(1), ROOT, &x);
        assert_eq!(index.as_parent(PageId(0)), index.as_parent(PageId(1)));
        assert!(index.is_listed(PageId(0)) && !index.is_listed(PageId(1)));
        index.delist(PageId(1));
        assert_eq!(index.find(ROOT, &x), Some(PageId(0)));
        let before = index.as_parent(PageId(0));
        index.forget(PageId(0));
        assert_eq!((index.find(ROOT, &x), index.as_parent(PageId(0))), (None, None));
        index.publish(PageId(0), ROOT, &x);
        assert_ne!(index.as_parent(PageId(0)), before, "a number is never given twice");
        index.audit();
    }

    #[test]
    #[should_panic(expected = "published twice")]
    fn a_page_is_published_once() {
        let mut index = PrefixIndex::new(1);
        index.publish(PageId(0), ROOT, &[1; PAGE_TOKENS]);
        index.publish(PageId(0), ROOT, &[2; PAGE_TOKENS]);
    }

    /// One bucket only: every key collides.
    #[test]
    fn colliding_hashes_cost_a_comparison_and_nothing_else() {
        let mut index = PrefixIndex::new(16);
        index.buckets = vec![NONE];
        for i in 0..16u32 {
            index.publish(PageId(i), ROOT, &[i; PAGE_TOKENS]);
        }
        for gone in [0, 15, 7] {
            index.delist(PageId(gone));
            index.audit();
        }
        for i in 0..16u32 {
            let expected = (![0, 7, 15].contains(&i)).then_some(PageId(i));
            assert_eq!(index.find(ROOT, &[i; PAGE_TOKENS]), expected);
        }
    }
}
