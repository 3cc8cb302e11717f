//! Some tokens of one row and some query heads of one kv head, over all segments of the cache.

use std::ops::Range;

use super::softmax::{State, softmax};
use super::tiles::{Tile, pages_ahead};
use super::{AttnArgs, GROUP, SEGMENT_PAGES, SEGMENT_TOKENS};
use crate::cpu::shared::SharedMut;
use crate::cpu::weight::{Elem, with_elem};
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS, Registers};

/// Most queries in a register tile.
pub(super) const QUERIES: usize = 6;

/// The work of one call.
pub(super) struct Block<'a> {
    pub(super) args: &'a AttnArgs<'a>,
    /// Of one row, positions ascending.
    pub(super) tokens: Range<usize>,
    /// The kv head.
    pub(super) head: usize,
    /// The first of its query heads, and how many.
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) out: &'a SharedMut<'a, f32>,
}

/// A segment of the cache.
#[derive(Clone, Copy)]
struct Segment<'a> {
    /// Its first position.
    from: usize,
    /// Its pages, as far as the tokens see them.
    pages: &'a [u32],
    /// The pages behind it.
    next: &'a [u32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        with_elem!(self.args.kv.layout().dtype, V, self.segments())
    }
}

impl Block<'_> {
    #[inline(always)]
    fn segments<V: Lanes, E: Elem>(self) {
        let mut scores = [[0.0; SEGMENT_TOKENS]; QUERIES];
        let mut states = [State::default(); GROUP];
        let ahead = pages_ahead(PAGE_TOKENS * self.args.kv.layout().head_dim * E::SIZE);
        let all = self.args.tokens.pages_of(self.tokens.start);
        let all = &all[..self.length(self.tokens.end - 1).div_ceil(PAGE_TOKENS)];
        for (index, pages) in all.chunks(SEGMENT_PAGES).enumerate() {
            let from = index * SEGMENT_TOKENS;
            let segment = Segment { from, pages, next: &all[index * SEGMENT_PAGES + pages.len()..] };
            // Positions ascend, so those that see something of the segment are the last ones.
            let mut first = self.tokens.start;
            while self.length(first) <= from {
                first += 1;
            }
            self.queries::<V, E>(first, segment, ahead, &mut states, &mut scores);
        }
        let queries = self.tokens.len() * self.count;
        for (query, state) in states[..queries].iter().enumerate() {
            let d = self.args.kv.layout().head_dim;
            // SAFETY: the queries of this call belong to it alone.
            let out = unsafe { self.out.part(self.at(query), d) };
            let inverse = 1.0 / state.sum;
            out.iter_mut().for_each(|x| *x *= inverse);
        }
    }

    /// Where query `query` begins in q and in out: query heads of one token follow each other.
    #[inline(always)]
    pub(super) fn at(&self, query: usize) -> usize {
        let layout = self.args.kv.layout();
        let (token, head) = (self.tokens.start + query / self.count, self.first + query % self.count);
        let heads = self.args.q_heads / layout.kv_heads;
        ((token * layout.kv_heads + self.head) * heads + head) * layout.head_dim
    }

    /// Cached positions that a token sees.
    #[inline(always)]
    pub(super) fn length(&self, token: usize) -> usize {
        self.args.tokens.positions[token] as usize + 1
    }

    /// The queries of token `token` and those behind it over a segment, in tiles of equal size.
    #[inline(always)]
    fn queries<V: Lanes, E: Elem>(
        &self,
        token: usize,
        segment: Segment<'_>,
        ahead: usize,
        states: &mut [State; GROUP],
        scores: &mut [[f32; SEGMENT_TOKENS]; QUERIES],
    ) {
        let first = (token - self.tokens.start) * self.count;
        let queries = self.tokens.len() * self.count - first;
        let most = match V::REGISTERS {
            Registers::Unknown => 1,
            Registers::Sixteen => 3,
            Registers::ThirtyTwo => QUERIES,
        };
        let (tiles, mut ahead) = (queries.div_ceil(most), Some(ahead));
        for i in 0..tiles {
            let (from, to) = (first + queries * i / tiles, first + queries * (i + 1) / tiles);
            let states = &mut states[from..to];
            match to - from {
                1 => self.tile::<V, E, 1>(from, segment, ahead, states, scores),
                2 if V::WIDE_TILES => self.tile::<V, E, 2>(from, segment, ahead, states, scores),
                3 if V::WIDE_TILES => self.tile::<V, E, 3>(from, segment, ahead, states, scores),
                4 if V::REGISTERS == Registers::ThirtyTwo => {
                    self.tile::<V, E, 4>(from, segment, ahead, states, scores);
                }
                5 if V::REGISTERS == Registers::ThirtyTwo => {
                    self.tile::<V, E, 5>(from, segment, ahead, states, scores);
                }
                _ if V::REGISTERS == Registers::ThirtyTwo => {
                    self.tile::<V, E, QUERIES>(from, segment, ahead, states, scores);
                }
                _ => {}
            }
            ahead = None;
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, E: Elem, const C: usize>(
        &self,
        query: usize,
        segment: Segment<'_>,
        ahead: Option<usize>,
        states: &mut [State],
        scores: &mut [[f32; SEGMENT_TOKENS]; QUERIES],
    ) {
        let d = self.args.kv.layout().head_dim;
        let (mut q, mut out, mut seen) = ([std::ptr::null(); C], [std::ptr::null_mut(); C], [0; C]);
        for c in 0..C {
            let at = self.at(query + c);
            q[c] = self.args.q[at..at + d].as_ptr();
            // SAFETY: the queries of this call belong to it alone.
            out[c] = unsafe { self.out.part(at, d) }.as_mut_ptr();
            let token = self.tokens.start + (query + c) / self.count;
            seen[c] = (self.length(token) - segment.from).min(SEGMENT_TOKENS);
        }
        let pages = &segment.pages[..seen[C - 1].div_ceil(PAGE_TOKENS)];
        let tile =
            Tile { args: self.args, head: self.head, pages, next: segment.next, seen, d, q, out, ahead };
        tile.score::<V, E>(scores);
        let mut fold = [(0.0, 1.0); C];
        // SAFETY: the scores are there, in rows of a segment.
        let own = unsafe { softmax::<V, C>(scores.as_mut_ptr().cast(), &seen) };
        for c in 0..C {
            if segment.from == 0 {
                states[c] = own[c];
            } else {
                fold[c] = states[c].fold(&own[c]);
            }
        }
        tile.values::<V, E>(scores, (segment.from > 0).then_some(&fold));
    }
}
