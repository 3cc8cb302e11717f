//! The work items of a step's attention, in waves whose partial results fit the buffer.
//!
//! Attention of a row of few queries leaves one partial result per unit of 64 positions, head and token, which the merge
//! folds; a row of [`MANY_QUERIES`] needs none. Many rows of a long context could need more memory for them than everything
//! else, so the buffer is bounded, and a step that needs more runs its attention in several waves, one after the other,
//! over runs of its tokens. No bit depends on that: an item's result depends on positions alone. Only a step of one wave
//! can run as a graph.

use tokenrouter_kernels::cuda::{AttnRow, CudaError, MANY_QUERIES, UNIT_TOKENS};

use super::shape::Shape;

/// Bytes of partial results that are always granted.
const PARTIALS_BYTES: u64 = 64 << 20;
/// Bytes granted so that a step which feeds one token of the longest context in every row is a single wave.
const DECODE_BYTES: u64 = 256 << 20;

/// A run of a step's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wave {
    /// Its first token in the step.
    pub(super) first_token: u32,
    /// Its tokens.
    pub(super) tokens: u32,
    /// The row of its first token.
    pub(super) first_row: u32,
    /// Rows that it touches.
    pub(super) rows: u32,
    /// Where its `rows + 1` entries begin.
    pub(super) entry: u32,
    /// Its work items.
    pub(super) items: u32,
}

/// One row of a step: its first token in the step, tokens, and the position of the first.
pub(super) type RowSpan = (u32, u32, u32);

/// What the buffer of partial results holds, and the heads that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttnLimits {
    kv_heads: u64,
    group: u64,
    /// Rows of partial results.
    part_rows: u64,
    /// f32 values of one.
    part_values: u64,
}

impl AttnLimits {
    /// `bytes` replaces the bounds above; at least one token of the longest context fits in any case.
    pub(super) fn new(shape: &Shape, bytes: Option<u64>) -> Self {
        let part_values = u64::from(shape.head_dim) + 4;
        let group = u64::from(shape.q_heads / shape.kv_heads);
        let mut limits = Self { kv_heads: u64::from(shape.kv_heads), group, part_rows: 0, part_values };
        let one = limits.need(1, shape.context as u64 - 1).1;
        let (tokens, rows) = (shape.max_tokens as u64, shape.max_rows as u64);
        // No step needs more: tiles of 16 queries may be filled in part, at most one a row and head.
        let units = (shape.context as u64).div_ceil(u64::from(UNIT_TOKENS));
        let queries = (tokens * group).min(rows * u64::from(MANY_QUERIES - 1));
        let worst = units * limits.kv_heads * (queries + 15 * rows);
        let granted =
            bytes.unwrap_or_else(|| (one * rows * part_values * 4).clamp(PARTIALS_BYTES, DECODE_BYTES));
        // Numbers of items and rows are 32 bits wide in the kernels.
        limits.part_rows = worst.min(granted / (4 * part_values)).max(one).min(u64::from(u32::MAX));
        limits
    }

    /// f32 values of the buffer.
    pub(super) fn values(&self) -> usize {
        (self.part_rows * self.part_values) as usize
    }

    /// Items of a step of at most `tokens` tokens in `rows` rows, none beyond `context`.
    pub(super) fn most_items(&self, tokens: u64, rows: u64, context: u64) -> u32 {
        let tiles = (tokens * self.group).div_ceil(16) + rows;
        let items = context.div_ceil(u64::from(UNIT_TOKENS)) * self.kv_heads * tiles;
        u32::try_from(items.min(self.part_rows)).unwrap_or(u32::MAX)
    }

    /// Items, and rows of partial results, of `tokens` tokens from position `start` on.
    fn need(&self, tokens: u64, start: u64) -> (u64, u64) {
        let queries = tokens * self.group;
        if queries >= u64::from(MANY_QUERIES) {
            return (0, 0);
        }
        let items = (start + tokens).div_ceil(u64::from(UNIT_TOKENS)) * self.kv_heads * queries.div_ceil(16);
        (items, items * queries.min(16))
    }

    /// Whether the rows, given as (tokens, position of the first), are one wave.
    pub(super) fn one_wave(&self, rows: impl Iterator<Item = (u32, u32)>) -> bool {
        let need = |(tokens, start)| self.need(u64::from(tokens), u64::from(start)).1;
        rows.map(need).try_fold(0u64, |sum, n| Some(sum + n).filter(|s| *s <= self.part_rows)).is_some()
    }

    /// The most of `tokens` tokens from `start` on that fit into `room`.
    fn fit(&self, tokens: u64, start: u64, room: u64) -> u64 {
        if self.need(tokens, start).1 <= room {
            return tokens;
        }
        // So these are few queries, and fewer tokens need less.
        let (mut fits, mut too_many) = (0, tokens);
        while too_many - fits > 1 {
            let middle = (fits + too_many) / 2;
            if self.need(middle, start).1 <= room {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }

    /// Cuts the rows of a step into waves and writes the entries of each, `first` counted from the wave's first token.
    /// Both lists are emptied first; with the capacity of [`most_waves`] and [`most_entries`] nothing is allocated.
    ///
    /// # Errors
    /// [`CudaError::Shape`] when one token alone does not fit: a position beyond the context.
    pub(super) fn plan(
        &self,
        rows: impl Iterator<Item = RowSpan>,
        waves: &mut Vec<Wave>,
        entries: &mut Vec<AttnRow>,
    ) -> Result<(), CudaError> {
        waves.clear();
        entries.clear();
        let mut wave = Wave::default();
        let (mut items, mut parts) = (0u64, 0u64);
        for (row, (mut first, tokens, start)) in rows.enumerate() {
            let (mut left, mut at) = (u64::from(tokens), u64::from(start));
            // A row is one entry of a wave at most: entries of a wave stand for neighbouring rows of the block tables.
            while left > 0 {
                let now = self.fit(left, at, self.part_rows - parts);
                if now == 0 && wave.tokens == 0 {
                    return Err(CudaError::Shape(format!("attention at position {at} exceeds its buffer")));
                }
                if now > 0 {
                    entries.push(AttnRow {
                        first: first - wave.first_token,
                        tokens: now as u32,
                        start: at as u32,
                        item: items as u32,
                        part: parts as u32,
                    });
                    let (more_items, more_parts) = self.need(now, at);
                    items += more_items;
                    parts += more_parts;
                    wave.rows += 1;
                    wave.tokens += now as u32;
                    first += now as u32;
                    at += now;
                    left -= now;
                }
                if left > 0 {
                    close(&mut wave, (items, parts), waves, entries);
                    (items, parts) = (0, 0);
                    let entry = entries.len() as u32;
                    wave = Wave { first_token: first, first_row: row as u32, entry, ..Wave::default() };
                }
            }
        }
        close(&mut wave, (items, parts), waves, entries);
        Ok(())
    }
}

/// Ends a wave with the entry that holds its totals.
fn close(wave: &mut Wave, (items, parts): (u64, u64), waves: &mut Vec<Wave>, entries: &mut Vec<AttnRow>) {
    wave.items = items as u32;
    entries.push(AttnRow { item: items as u32, part: parts as u32, ..AttnRow::default() });
    waves.push(*wave);
}

/// Waves of a step of `tokens` tokens at most.
pub(super) fn most_waves(tokens: usize) -> usize {
    tokens.max(1)
}

/// Entries of a step of `tokens` tokens in `rows` rows at most: each wave ends with one and may cut a row in two.
pub(super) fn most_entries(tokens: usize, rows: usize) -> usize {
    rows + 2 * most_waves(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenrouter_kernels::cuda::AttnPlan;

    fn limits(part_rows: u64) -> AttnLimits {
        AttnLimits { kv_heads: 2, group: 2, part_rows, part_values: 20 }
    }

    fn planned(limits: &AttnLimits, rows: &[RowSpan]) -> (Vec<Wave>, Vec<AttnRow>) {
        let (mut waves, mut entries) = (Vec::new(), Vec::new());
        limits.plan(rows.iter().copied(), &mut waves, &mut entries).unwrap();
        (waves, entries)
    }

    #[test]
    fn one_wave_is_the_plan_of_the_kernels() {
        for rows in [vec![], vec![(0, 1, 0)], vec![(0, 3, 0), (3, 1, 700), (4, 40, 63), (44, 1, 64)]] {
            let (waves, entries) = planned(&limits(u64::from(u32::MAX)), &rows);
            let plan = AttnPlan::new(&rows, 4, 2).unwrap();
            assert_eq!(entries, plan.rows);
            assert_eq!((waves.len(), waves[0].items), (1, plan.items()));
            assert_eq!(waves[0].rows as usize, rows.len());
        }
    }

    #[test]
    fn waves_hold_every_token_once_and_fit_the_buffer() {
        let rows = [(0, 30, 0), (30, 1, 190), (31, 9, 500), (40, 1, 7)];
        let least = limits(0).need(1, 508).1;
        for room in [least, least + 7, 2 * least, 5 * least, 100 * least] {
            let limits = limits(room);
            let (waves, entries) = planned(&limits, &rows);
            let mut positions = Vec::new();
            for wave in &waves {
                let own = &entries[wave.entry as usize..(wave.entry + wave.rows) as usize];
                let plan: Vec<RowSpan> = own.iter().map(|e| (e.first, e.tokens, e.start)).collect();
                let plan = AttnPlan::new(&plan, 4, 2).unwrap();
                let total = entries[(wave.entry + wave.rows) as usize];
                assert_eq!(plan.rows[..own.len()], *own);
                assert_eq!(plan.rows[own.len()], total);
                assert!(u64::from(total.part) <= room, "{total:?} in {room}");
                for (i, e) in own.iter().enumerate() {
                    for n in 0..e.tokens {
                        let token = wave.first_token + e.first + n;
                        positions.push((token, wave.first_row + i as u32, e.start + n));
                    }
                }
            }
            let mut expected = Vec::new();
            for (row, (first, tokens, start)) in rows.into_iter().enumerate() {
                expected.extend((0..tokens).map(|n| (first + n, row as u32, start + n)));
            }
            assert_eq!(positions, expected, "room {room}");
            assert!(waves.len() <= most_waves(41) && entries.len() <= most_entries(41, 4));
            assert_eq!(limits.one_wave(rows.into_iter().map(|r| (r.1, r.2))), waves.len() == 1);
        }
    }

    #[test]
    fn a_token_beyond_the_buffer_is_refused_by_name() {
        let (mut waves, mut entries) = (Vec::new(), Vec::new());
        let error = limits(3).plan([(0, 1, 640)].into_iter(), &mut waves, &mut entries).unwrap_err();
        assert!(error.to_string().contains("position 640"), "{error}");
    }
}
