//! Where the tokens of a step belong.

/// Tokens in one page of the KV cache.
pub const PAGE_TOKENS: usize = 16;

/// The fed tokens of a step: whose they are and where they stand. `T` is the number of tokens.
#[derive(Clone, Copy, Debug)]
pub struct StepTokens<'a> {
    /// Row of each token, `T` entries, each below `rows`.
    pub token_row: &'a [u32],
    /// Absolute position of each token in its row, `T` entries.
    pub positions: &'a [u32],
    /// The page tables of all rows, one after the other: entry `i` of a row holds the page of
    /// positions `16 i .. 16 i + 16`.
    pub row_pages: &'a [u32],
    /// Where the page table of each row starts in `row_pages`, and the end: `rows + 1` entries.
    pub row_page_start: &'a [u32],
}

impl<'a> StepTokens<'a> {
    /// Number of fed tokens.
    pub fn len(&self) -> usize {
        self.token_row.len()
    }

    /// Whether no token is fed.
    pub fn is_empty(&self) -> bool {
        self.token_row.is_empty()
    }

    /// The page table of the row of token `t`.
    ///
    /// # Panics
    /// When the arrays contradict each other.
    pub(crate) fn pages_of(&self, t: usize) -> &'a [u32] {
        let row = self.token_row[t] as usize;
        &self.row_pages[self.row_page_start[row] as usize..self.row_page_start[row + 1] as usize]
    }
}
