//! Many queries of one row against one kv head: keys and values of a segment are turned into f32 once, in the order in
//! which tiles read them, and all queries pass by.
//!
//! Keys stay as the cache has them, the positions side by side, but in groups of 64: a register holds one element of sixteen
//! keys, so the eight accumulators of a dot product are eight registers, and joining them takes seven additions for sixteen
//! scores and no shuffle. They are computed one after the other, each for a whole register tile of keys and queries.
//!
//! A few queries go through scores, weights and values before the next ones, so their scores stay in the first-level
//! cache; keys and values come from the second-level one (64 KiB each for a head dimension of 64), once for six queries.

mod ahead;
mod pass;
mod scores;
mod turn;
mod values;

use std::mem::MaybeUninit;

use self::pass::{Finish, Pass};
use self::turn::Turn;
use super::block::Block;
use super::softmax::State;
use super::{SEGMENT_PAGES, SEGMENT_TOKENS};
use crate::cpu::{Isa, PAGE_TOKENS, dispatch};

/// Most queries that go together.
pub(super) const QUERIES: usize = 384;
/// Largest head dimension; vectors that are longer go without.
pub(super) const LONGEST: usize = 256;
/// Keys of a group lie side by side; a register tile takes one group at most.
const GROUP: usize = 64;
/// Most queries of a register tile.
const TILE: usize = 6;

/// Memory of a call: on the stack, never read before it is written, and touched as far as the head dimension needs it.
#[repr(align(64))]
struct Scratch {
    /// Scores, then weights, of a tile `[query][position]`.
    scores: [f32; TILE * SEGMENT_TOKENS],
    /// `[group][element][position of the group]`.
    keys: [f32; SEGMENT_TOKENS * LONGEST],
    /// `[position][element]`.
    values: [f32; SEGMENT_TOKENS * LONGEST],
}

/// A token's query head.
#[derive(Clone, Copy, Default)]
struct Query {
    /// Where it begins in q and in out.
    at: usize,
    /// Cached positions that it sees.
    length: usize,
    state: State,
}

/// A segment of the cache.
#[derive(Clone, Copy)]
struct Segment<'a> {
    /// Its first position.
    from: usize,
    pages: &'a [u32],
    /// The pages of the next one.
    next: &'a [u32],
    /// The parts of [`Scratch`].
    scores: *mut f32,
    keys: *mut f32,
    values: *mut f32,
}

impl Segment<'_> {
    /// Positions of the segment that a query sees.
    #[inline(always)]
    fn seen(&self, query: &Query) -> usize {
        query.length.saturating_sub(self.from).min(SEGMENT_TOKENS)
    }
}

/// Whether turning keys and values pays off for so many queries of `d` elements: with 32 registers not for as many as can go
/// without (Qwen3-0.6B, 24 queries at 160 positions: 114 GFLOP/s, and 160 without). With 16 registers a tile of queries is
/// half as large, and what is read is turned twice as often.
pub(super) fn pays(isa: Isa, queries: usize, d: usize) -> bool {
    let fewest = if isa == Isa::Avx512 { super::GROUP + 1 } else { 17 };
    d <= LONGEST && queries >= fewest
}

/// `f32` from one vector of values to the next: whole pairs of registers.
fn stride(d: usize) -> usize {
    d.next_multiple_of(16)
}

impl Block<'_> {
    /// All segments.
    pub(super) fn packed(&self, isa: Isa) {
        assert!(self.args.kv.layout().head_dim <= LONGEST, "vectors that do not fit");
        let mut queries = [Query::default(); QUERIES];
        let queries = &mut queries[..self.tokens.len() * self.count];
        for (i, query) in queries.iter_mut().enumerate() {
            let length = self.length(self.tokens.start + i / self.count);
            *query = Query { at: self.at(i), length, ..Query::default() };
        }
        let longest = queries.last().map_or(0, |query| query.length);
        let all = &self.args.tokens.pages_of(self.tokens.start)[..longest.div_ceil(PAGE_TOKENS)];
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let scratch = scratch.as_mut_ptr();
        // SAFETY: the fields are named, not read.
        let (scores, keys, values) =
            unsafe { (&raw mut (*scratch).scores, &raw mut (*scratch).keys, &raw mut (*scratch).values) };
        let (scores, keys, values) = (scores.cast(), keys.cast(), values.cast());
        let mut segments = all.chunks(SEGMENT_PAGES).enumerate().peekable();
        while let Some((index, pages)) = segments.next() {
            let (from, next) = (index * SEGMENT_TOKENS, segments.peek().map_or(&[][..], |(_, next)| next));
            let segment = Segment { from, pages, next, scores, keys, values };
            dispatch(isa, Turn { block: self, segment });
            // Positions ascend, so those that see something of the segment are the last ones.
            let first = queries.partition_point(|query| query.length <= from);
            dispatch(isa, Pass::new(self, segment, &mut queries[first..]));
        }
        dispatch(isa, Finish { block: self, queries });
    }
}
