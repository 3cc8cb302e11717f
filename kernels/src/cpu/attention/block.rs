//! Some tokens of one row and some query heads of one kv head, over all segments of the cache.

use std::ops::Range;

use super::softmax::{State, softmax};
use super::tiles::{Ahead, Tile};
use super::{AttnArgs, GROUP, SEGMENT_PAGES, SEGMENT_TOKENS};
use crate::cpu::shared::SharedMut;
use crate::cpu::weight::{Elem, with_elem};
use crate::cpu::{Kernel, Lanes, PAGE_TOKENS, Registers};

/// Most queries in a register tile.
pub(super) const QUERIES: usize = 4;

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

/// A segment of the cache as some queries see it.
#[derive(Clone, Copy)]
struct Segment<'a> {
    /// Its pages, as far as the queries see them.
    pages: &'a [u32],
    /// The pages behind it.
    next: &'a [u32],
    /// Positions that the queries see.
    count: usize,
    /// It is the first one.
    first: bool,
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
        let length = |token: usize| self.args.tokens.positions[token] as usize + 1;
        let all = self.args.tokens.pages_of(self.tokens.start);
        let all = &all[..length(self.tokens.end - 1).div_ceil(PAGE_TOKENS)];
        for (index, pages) in all.chunks(SEGMENT_PAGES).enumerate() {
            let (from, to) = (index * SEGMENT_TOKENS, (index + 1) * SEGMENT_TOKENS);
            let next = &all[index * SEGMENT_PAGES + pages.len()..];
            let mut ahead = Ahead::On;
            // Tokens that see a part of the segment go one by one, those that see all of it together.
            let whole = self.tokens.clone().find(|t| length(*t) >= to).unwrap_or(self.tokens.end);
            for token in (self.tokens.start..whole).filter(|t| length(*t) > from) {
                let count = length(token) - from;
                let pages = &pages[..count.div_ceil(PAGE_TOKENS)];
                let segment = Segment { pages, next, count, first: index == 0 };
                self.queries::<V, E>(token..token + 1, segment, &mut ahead, &mut states, &mut scores);
            }
            if whole < self.tokens.end {
                let segment = Segment { pages, next, count: SEGMENT_TOKENS, first: index == 0 };
                self.queries::<V, E>(whole..self.tokens.end, segment, &mut ahead, &mut states, &mut scores);
            }
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

    /// The queries of some tokens over a segment, in tiles of equal size.
    #[inline(always)]
    fn queries<V: Lanes, E: Elem>(
        &self,
        tokens: Range<usize>,
        segment: Segment<'_>,
        ahead: &mut Ahead,
        states: &mut [State; GROUP],
        scores: &mut [[f32; SEGMENT_TOKENS]; QUERIES],
    ) {
        let first = (tokens.start - self.tokens.start) * self.count;
        let queries = tokens.len() * self.count;
        let most = match V::REGISTERS {
            Registers::Unknown => 1,
            Registers::Sixteen => 3,
            Registers::ThirtyTwo => QUERIES,
        };
        let tiles = queries.div_ceil(most);
        for i in 0..tiles {
            let (from, to) = (first + queries * i / tiles, first + queries * (i + 1) / tiles);
            let states = &mut states[from..to];
            match to - from {
                1 => self.tile::<V, E, 1>(from, segment, *ahead, states, scores),
                2 if V::WIDE_TILES => self.tile::<V, E, 2>(from, segment, *ahead, states, scores),
                3 if V::WIDE_TILES => self.tile::<V, E, 3>(from, segment, *ahead, states, scores),
                _ if V::REGISTERS == Registers::ThirtyTwo => {
                    self.tile::<V, E, QUERIES>(from, segment, *ahead, states, scores);
                }
                _ => {}
            }
            *ahead = Ahead::Off;
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, E: Elem, const C: usize>(
        &self,
        query: usize,
        segment: Segment<'_>,
        ahead: Ahead,
        states: &mut [State],
        scores: &mut [[f32; SEGMENT_TOKENS]; QUERIES],
    ) {
        let d = self.args.kv.layout().head_dim;
        let at: [usize; C] = std::array::from_fn(|c| self.at(query + c));
        // SAFETY: the queries of this call belong to it alone.
        let out = at.map(|at| unsafe { self.out.part(at, d) }.as_mut_ptr());
        let q = at.map(|at| self.args.q[at..at + d].as_ptr());
        let Segment { pages, next, count, first } = segment;
        let tile = Tile { args: self.args, head: self.head, pages, next, count, d, q, out, ahead };
        tile.score::<V, E>(scores);
        let mut fold = [(0.0, 1.0); C];
        // SAFETY: the scores are there, in rows of a segment.
        let own = unsafe { softmax::<V, C>(scores.as_mut_ptr().cast(), &[count; C]) };
        for c in 0..C {
            if first {
                states[c] = own[c];
            } else {
                fold[c] = states[c].fold(&own[c]);
            }
        }
        tile.values::<V, E>(scores, (!first).then_some(&fold));
    }
}
