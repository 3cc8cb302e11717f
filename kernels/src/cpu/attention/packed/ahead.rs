//! Prefetching what the next block is made of.

use super::Block;
use crate::cpu::kv::Half;
use crate::cpu::{Lanes, PAGE_TOKENS};

/// Lines of memory that are still to be asked for.
pub(super) struct Ahead<'a> {
    block: &'a Block<'a>,
    pages: &'a [u32],
    half: Half,
    /// Lines of this head in a page.
    lines: usize,
    /// The next line in the first of the pages.
    line: usize,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(block: &'a Block<'a>, pages: &'a [u32], half: Half) -> Self {
        let layout = block.args.kv.layout();
        let lines = (PAGE_TOKENS * layout.head_dim * layout.dtype.size()).div_ceil(64);
        Ahead { block, pages, half, lines, line: 0 }
    }

    /// How many lines to ask for at each of `times` occasions.
    #[inline(always)]
    pub(super) fn share(&self, times: usize) -> usize {
        (self.pages.len() * self.lines).div_ceil(times.max(1))
    }

    /// Asks for the next `count` lines.
    #[inline(always)]
    pub(super) fn ask<V: Lanes>(&mut self, mut count: usize) {
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
            }
        }
    }
}
