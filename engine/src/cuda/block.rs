//! The step block: everything that a step's kernels read besides weights and cache, in 32-bit words.
//!
//! One pinned block on the host and one of the same shape on the device. In front lies what every step has, laid out for
//! its size (for its bucket, when a graph runs it, since a graph holds addresses); behind it at fixed places the block
//! tables and the lists of sampling, of which only the used part travels. The results come back as one block as well.

use half::bf16;
use tokenrouter_kernels::cuda::{AttnRow, HeadEnd, Ptr, RowSample, RowSignals};

use super::attention::{Wave, most_entries, most_waves};
use super::shape::Shape;

/// Words of an [`AttnRow`].
pub(super) const ENTRY_WORDS: usize = size_of::<AttnRow>() / 4;
/// Words of a [`RowSample`].
pub(super) const DRAW_WORDS: usize = size_of::<RowSample>() / 4;
/// Words of a [`RowSignals`].
pub(super) const SIGNAL_WORDS: usize = size_of::<RowSignals>() / 4;
/// Words of a wave: its rows and its tokens.
pub(super) const WAVE_WORDS: usize = 2;
/// Words of a prompt's end.
pub(super) const END_WORDS: usize = size_of::<HeadEnd>() / 4;
/// Words in front: tokens, logit rows, wanted heads, prompts that end, largest logits that are wanted; the rest is room.
const HEADER_WORDS: usize = 8;
/// Logit biases of one row, on average, that a step has room for.
const BIASES_A_ROW: usize = 1024;
/// Words of all rows' lists at most, 16 MiB: the history of 64 rows of 64 Ki tokens.
const LIST_WORDS: usize = 4 << 20;

/// Where the parts of the front lie, in words, for steps of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Front {
    /// Tokens that it has room for.
    pub(super) tokens: usize,
    /// Rows, and as many that want logits.
    pub(super) rows: usize,
    /// `[waves][2]`.
    pub(super) waves: usize,
    /// `[tokens]`.
    pub(super) ids: usize,
    /// `[tokens]`.
    pub(super) positions: usize,
    /// `[tokens]`: the token's row in the step.
    pub(super) token_row: usize,
    /// `[tokens]`: its row in its wave.
    pub(super) wave_row: usize,
    /// `[rows]`: the tokens that want logits.
    pub(super) logit_tokens: usize,
    /// Entries of all waves.
    pub(super) entries: usize,
    /// `[rows]`.
    pub(super) draws: usize,
    /// `[rows]`: the prompts that end, for router heads.
    pub(super) ends: usize,
    /// `[scores]`: the tokens behind which a prompt is scored.
    pub(super) score_tokens: usize,
    /// `[scores]`: the ids that are scored there.
    pub(super) score_ids: usize,
    /// Scores of each piece.
    pub(super) score_counts: usize,
    /// All words.
    pub(super) len: usize,
}

impl Front {
    /// The place of the number of tokens.
    pub(super) const TOKENS: usize = 0;
    /// The place of the number of logit rows.
    pub(super) const ROWS: usize = 1;
    /// The place of the bits of the router heads that are wanted.
    pub(super) const HEADS: usize = 2;
    /// The place of the number of prompts that end.
    pub(super) const ENDS: usize = 3;
    /// The place of the number of largest logits that are wanted of each row.
    pub(super) const TOP: usize = 4;

    /// For `tokens` tokens, `rows` rows, `waves` waves with `entries` entries in all.
    pub(super) fn new(tokens: usize, rows: usize, waves: usize, entries: usize) -> Self {
        let mut len = HEADER_WORDS;
        // Pieces of 16 bytes, so that every part starts aligned.
        let mut part = |words: usize| {
            let at = len;
            len += words.next_multiple_of(4);
            at
        };
        let front = Self {
            tokens,
            rows,
            waves: part(waves * WAVE_WORDS),
            ids: part(tokens),
            positions: part(tokens),
            token_row: part(tokens),
            wave_row: part(tokens),
            logit_tokens: part(rows),
            entries: part(entries * ENTRY_WORDS),
            draws: part(rows * DRAW_WORDS),
            ends: part(rows * END_WORDS),
            score_tokens: 0,
            score_ids: 0,
            score_counts: 0,
            len: 0,
        };
        Self { len, ..front }
    }

    /// The same with room for `scores` scores in pieces of `piece`. No graph has any.
    pub(super) fn with_scores(self, scores: usize, piece: usize) -> Self {
        let (tokens, counts) = (scores.next_multiple_of(4), scores.div_ceil(piece).next_multiple_of(4));
        Self {
            score_tokens: self.len,
            score_ids: self.len + tokens,
            score_counts: self.len + 2 * tokens,
            len: self.len + 2 * tokens + counts,
            ..self
        }
    }

    /// For the graph of `bucket` tokens in at most `rows` rows: one wave.
    pub(super) fn bucket(bucket: usize, rows: usize) -> Self {
        let rows = rows.min(bucket);
        Self::new(bucket, rows, 1, rows + 1)
    }

    /// The largest one.
    fn largest(tokens: usize, rows: usize) -> Self {
        Self::new(tokens, rows, most_waves(tokens), most_entries(tokens, rows)).with_scores(tokens, rows)
    }
}

/// The whole step block of a model, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockMap {
    /// `[rows][table_stride]` of pages.
    pub(super) tables: usize,
    /// Pages of a row of the tables.
    pub(super) table_stride: usize,
    /// Values of the biases, whose ids are the first entries of the lists.
    pub(super) biases: usize,
    /// How many.
    pub(super) bias_room: usize,
    /// Ids: biases, then forbidden ids and histories.
    pub(super) lists: usize,
    /// How many.
    pub(super) list_room: usize,
    /// All words.
    pub(super) len: usize,
}

impl BlockMap {
    pub(super) fn new(shape: &Shape) -> Self {
        let (rows, stride) = (shape.max_rows, shape.table_stride as usize);
        let bias_room = rows.saturating_mul(BIASES_A_ROW).min(LIST_WORDS);
        let histories = rows.saturating_mul(shape.context + BIASES_A_ROW).min(LIST_WORDS);
        let tables = Front::largest(shape.max_tokens, rows).len;
        let biases = tables + (rows * stride).next_multiple_of(4);
        let lists = biases + bias_room.next_multiple_of(4);
        let list_room = bias_room + histories;
        Self { tables, table_stride: stride, biases, bias_room, lists, list_room, len: lists + list_room }
    }
}

/// Where the parts of the results lie, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResultMap {
    /// Rows that it has room for.
    pub(super) rows: usize,
    /// Room for the largest logits of a row.
    pub(super) top: usize,
    /// `[rows]` of [`RowSignals`].
    pub(super) signals: usize,
    /// `[rows]`.
    pub(super) token: usize,
    /// `[rows]`: 1 where the logits allow no draw.
    pub(super) fault: usize,
    /// `[rows]` of f32: raw logits of the tokens.
    pub(super) logit: usize,
    /// `[rows][top]`.
    pub(super) top_ids: usize,
    /// `[rows][top]` of f32.
    pub(super) top_logits: usize,
    /// All words.
    pub(super) len: usize,
}

impl ResultMap {
    /// The place of the word that an id beyond the embedding sets.
    pub(super) const EMBED_FAULT: usize = 0;

    pub(super) fn new(rows: usize, top: usize) -> Self {
        let mut len = 4;
        let mut part = |words: usize| {
            let at = len;
            len += words.next_multiple_of(4);
            at
        };
        let map = Self {
            rows,
            top,
            signals: part(rows * SIGNAL_WORDS),
            token: part(rows),
            fault: part(rows),
            logit: part(rows),
            top_ids: part(rows * top),
            top_logits: part(rows * top),
            len: 0,
        };
        Self { len, ..map }
    }
}

/// What one list of launches is made for: upper bounds, and where the kernels find their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    /// Most tokens.
    pub(super) tokens: u32,
    /// Most rows that want logits.
    pub(super) rows: u32,
    /// Tokens of prompts that are scored; 0 in a graph.
    pub(super) scores: u32,
    /// The front of the step block.
    pub(super) front: Front,
    /// The results.
    pub(super) results: ResultMap,
    /// Runs of tokens for attention; their sizes are bounds.
    pub(super) waves: &'a [Wave],
}

/// An address in a block of words.
pub(super) fn at<T>(block: Ptr<u32>, word: usize) -> Ptr<T> {
    block.add(word).cast()
}

/// The address of row `row` of activations.
pub(super) fn row_at(base: Ptr<bf16>, row: u32, stride: u32) -> Ptr<bf16> {
    base.add(row as usize * stride as usize)
}
