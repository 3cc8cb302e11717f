//! Prefetching what the next segment is made of, a little at a time.

use super::{Block, Segment};
use crate::cpu::kv::Half;
use crate::cpu::{Lanes, PAGE_TOKENS};

/// Lines of memory that are still to be asked for: keys, then values.
pub(super) struct Ahead<'a> {
    block: &'a Block<'a>,
    segment: Segment<'a>,
    half: Half,
    /// The pages that are left of this half.
    pages: &'a [u32],
    /// The next line in the first of them.
    line: usize,
    /// Lines of the head in half a page.
    lines: usize,
    /// Lines to ask for at a time.
    share: usize,
}

impl<'a> Ahead<'a> {
    /// All of it is to be asked for in so many times.
    #[inline(always)]
    pub(super) fn new(block: &'a Block<'a>, segment: Segment<'a>, times: usize) -> Self {
        let layout = block.args.kv.layout();
        let lines = (PAGE_TOKENS * layout.head_dim * layout.dtype.size()).div_ceil(64);
        let share = (2 * segment.next.len() * lines).div_ceil(times.max(1));
        Ahead { block, segment, half: Half::Key, pages: segment.next, line: 0, lines, share }
    }

    /// Asks for the next lines.
    #[inline(always)]
    pub(super) fn ask<V: Lanes>(&mut self) {
        let mut count = self.share;
        while let ([page, rest @ ..], true) = (self.pages, count > 0) {
            let args = self.block.args;
            let rows = args.kv.head_rows(*page, args.layer, self.half, self.block.head);
            let end = self.lines.min(self.line + count);
            for line in self.line..end {
                V::prefetch(rows.wrapping_add(64 * line));
            }
            count -= end - self.line;
            self.line = end;
            if end == self.lines {
                (self.pages, self.line) = (rest, 0);
                if rest.is_empty() && self.half == Half::Key {
                    (self.pages, self.half) = (self.segment.next, Half::Value);
                }
            }
        }
    }
}
