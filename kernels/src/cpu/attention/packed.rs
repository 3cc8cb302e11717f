//! Many queries of one row against one kv head: keys and values are turned into f32 a block at a time, in the order in
//! which tiles read them, and all queries pass by while the first-level cache has the block.
//!
//! Keys are laid out with the positions side by side: a register holds one element of sixteen keys, so that the eight
//! accumulators of a dot product are eight registers, and joining them takes seven additions for sixteen scores and no
//! shuffle. They are computed one after the other, each for a whole register tile of keys and queries.
//!
//! What is kept between the blocks of a segment (scores, sums of values) lies in [`Scratch`].

mod ahead;
mod scores;
mod softmax;
mod turn;
mod values;

use std::mem::MaybeUninit;

use self::ahead::Ahead;
use self::scores::Scores;
use self::softmax::{Finish, Softmax};
use self::turn::Turn;
use self::values::Values;
use super::block::{Block, State};
use super::{SEGMENT_PAGES, SEGMENT_TOKENS};
use crate::cpu::kv::Half;
use crate::cpu::{Isa, PAGE_TOKENS, dispatch};

/// Most queries that go together, with sums of at most [`SUMS`] values: turning a block costs as much as some six of them.
const QUERIES: usize = 384;
/// Most sums of values.
const SUMS: usize = QUERIES * 128;
/// Largest head dimension; vectors that are longer go without.
pub(super) const LONGEST: usize = 256;
/// Positions of a group: keys of a group lie side by side. A register tile takes one at most.
const GROUP: usize = 64;
/// Most f32 of a block, so that it holds a group of the longest vectors.
const BLOCK: usize = GROUP * LONGEST;
/// As many are used if they suffice: 32 KiB stay in the first-level cache.
const USUAL: usize = 8192;

/// Memory of a call: on the stack, and never read before it is written.
#[repr(align(64))]
struct Scratch {
    /// Keys `[group][element][position of the group]`, or values `[position][element]`.
    block: [f32; BLOCK],
    /// Scores, then weights, of a segment `[query][position]`.
    scores: [f32; QUERIES * SEGMENT_TOKENS],
    /// Weighted sums of values `[query][element]`.
    sums: [f32; SUMS],
}

/// A token's query head.
#[derive(Clone, Copy, Default)]
struct Query {
    /// Where it begins in q and in out.
    at: usize,
    /// Cached positions that it sees.
    length: usize,
    state: State,
    /// Factors of the old and of the new output when a segment is folded in.
    fold: (f32, f32),
}

/// A segment as a group of queries sees it.
#[derive(Clone, Copy)]
struct Segment<'a> {
    /// Its first position.
    from: usize,
    pages: &'a [u32],
    /// The pages behind it.
    next: &'a [u32],
    /// `f32` from one vector of values to the next in a block, and of sums: whole pairs of registers.
    stride: usize,
    scores: *mut f32,
    sums: *mut f32,
    block: *mut f32,
}

impl Segment<'_> {
    /// Positions of the segment that a query sees.
    #[inline(always)]
    fn seen(&self, query: &Query) -> usize {
        query.length.saturating_sub(self.from).min(SEGMENT_TOKENS)
    }

    /// Where the scores of query `i` begin.
    #[inline(always)]
    fn scores(&self, i: usize) -> *mut f32 {
        self.scores.wrapping_add(i * SEGMENT_TOKENS)
    }
}

/// Positions `from .. from + len` of a segment; both are multiples of a page.
#[derive(Clone, Copy)]
struct Stretch {
    from: usize,
    len: usize,
}

impl Block<'_> {
    /// All segments.
    pub(super) fn packed(&self, isa: Isa) {
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let scratch = scratch.as_mut_ptr();
        let mut queries = [Query::default(); QUERIES];
        let queries = &mut queries[..self.tokens.len() * self.count];
        for (i, query) in queries.iter_mut().enumerate() {
            let length = self.args.tokens.positions[self.tokens.start + i / self.count] as usize + 1;
            *query = Query { at: self.at(i), length, ..Query::default() };
        }
        let d = self.args.kv.layout().head_dim;
        assert!(d <= LONGEST && queries.len() <= most(d));
        let longest = queries.last().map_or(0, |query| query.length);
        let all = &self.args.tokens.pages_of(self.tokens.start)[..longest.div_ceil(PAGE_TOKENS)];
        for (index, pages) in all.chunks(SEGMENT_PAGES).enumerate() {
            let from = index * SEGMENT_TOKENS;
            let next = &all[index * SEGMENT_PAGES + pages.len()..];
            // SAFETY: the fields of `scratch` are only named, not read.
            let (block, scores, sums) =
                unsafe { (&raw mut (*scratch).block, &raw mut (*scratch).scores, &raw mut (*scratch).sums) };
            let (block, scores, sums) = (block.cast(), scores.cast(), sums.cast());
            let segment = Segment { from, pages, next, stride: stride(d), block, scores, sums };
            // Positions ascend, so those that see something of the segment are the last ones.
            let first = queries.partition_point(|query| query.length <= from);
            self.segment(isa, segment, &mut queries[first..]);
        }
        dispatch(isa, Finish { block: self, queries });
    }

    fn segment(&self, isa: Isa, segment: Segment<'_>, queries: &mut [Query]) {
        let most = (USUAL / segment.stride / GROUP * GROUP).clamp(GROUP, SEGMENT_TOKENS);
        let end = segment.pages.len() * PAGE_TOKENS;
        let stretches = || (0..end).step_by(most).map(|from| Stretch { from, len: most.min(end - from) });
        // While a block is used, the memory fetches what the next one is made of.
        let pages = most / PAGE_TOKENS;
        let first = |pages_of: &'_ [u32]| pages_of.len().min(pages);
        for stretch in stretches() {
            dispatch(isa, Turn { block: self, segment, stretch, half: Half::Key });
            let behind = &segment.pages[(stretch.from + stretch.len) / PAGE_TOKENS..];
            let ahead = match behind {
                [] => Ahead::new(self, &segment.pages[..first(segment.pages)], Half::Value),
                _ => Ahead::new(self, &behind[..first(behind)], Half::Key),
            };
            dispatch(isa, Scores { block: self, segment, stretch, queries, ahead });
        }
        dispatch(isa, Softmax { segment, queries });
        for stretch in stretches() {
            dispatch(isa, Turn { block: self, segment, stretch, half: Half::Value });
            let behind = &segment.pages[(stretch.from + stretch.len) / PAGE_TOKENS..];
            let ahead = match behind {
                [] => Ahead::new(self, &segment.next[..first(segment.next)], Half::Key),
                _ => Ahead::new(self, &behind[..first(behind)], Half::Value),
            };
            dispatch(isa, Values { block: self, segment, stretch, queries, ahead });
        }
    }
}

/// Whether turning keys and values pays off for so many queries of `d` elements. Code with few registers gains sooner:
/// its tiles of queries are small otherwise.
pub(super) fn pays(isa: Isa, queries: usize, d: usize) -> bool {
    let fewest = if isa == Isa::Avx512 { 16 } else { 9 };
    d <= LONGEST && queries >= fewest
}

/// Most queries of `d` elements that go together.
pub(super) fn most(d: usize) -> usize {
    (SUMS / stride(d)).min(QUERIES)
}

/// `f32` from one vector of values to the next.
fn stride(d: usize) -> usize {
    d.next_multiple_of(16)
}
