//! Thresholds as tables over the number of requests that count.

use crate::ids::ModelId;

/// A number for every count of requests: entry `N - 1` for `N`, the last entry for every larger count. A single
/// entry is a constant. Zero entries are read as 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountTable(Vec<u32>);

impl CountTable {
    /// The same number for every count.
    pub fn constant(value: u32) -> Self {
        Self(vec![value])
    }

    /// Entry `N - 1` for a count of `N`; the last entry for every larger count. No entries: 1 for every count.
    pub fn by_count(entries: Vec<u32>) -> Self {
        Self(entries)
    }

    /// The number for `count` requests, at least 1 and (for a count above 0) at most `count`: a stale table can
    /// never ask for more requests than there are.
    pub fn at(&self, count: usize) -> usize {
        let last = self.0.len().saturating_sub(1);
        let entry = self.0.get(count.saturating_sub(1).min(last)).copied().unwrap_or(1);
        (entry as usize).min(count).max(1)
    }
}

/// A threshold for every model: the vector B of the paper (section 4.2), each entry a table over the count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// By model index.
    named: Vec<CountTable>,
    /// For the models beyond.
    others: CountTable,
}

impl Thresholds {
    /// Model 0 launches at one ready request, every other model at `peers`: the paper's setting, in which the best
    /// threshold of the small model is always 1.
    pub fn peers(peers: CountTable) -> Self {
        Self { named: vec![CountTable::constant(1)], others: peers }
    }

    /// One table per model, by index; models beyond the list launch at 1.
    pub fn per_model(tables: Vec<CountTable>) -> Self {
        Self { named: tables, others: CountTable::constant(1) }
    }

    /// Constants per model.
    pub fn constants(values: &[u32]) -> Self {
        Self::per_model(values.iter().map(|&b| CountTable::constant(b)).collect())
    }

    /// The threshold of `model` when `count` admitted requests may still visit it; see [`CountTable::at`].
    pub fn at(&self, model: ModelId, count: usize) -> usize {
        self.named.get(model.index()).unwrap_or(&self.others).at(count)
    }

    /// How many models the list names.
    pub(super) fn models(&self) -> usize {
        self.named.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_by_count_and_clipped_to_it() {
        let table = CountTable::by_count(vec![1, 2, 2, 3, 9, 0]);
        let read: Vec<usize> = (0..9).map(|n| table.at(n)).collect();
        assert_eq!(read, [1, 1, 2, 2, 3, 5, 1, 1, 1]);
        assert_eq!((0..4).map(|n| CountTable::constant(3).at(n)).collect::<Vec<_>>(), [1, 1, 2, 3]);
        assert_eq!(CountTable::constant(u32::MAX).at(7), 7);
        assert_eq!(CountTable::by_count(vec![]).at(5), 1);
    }

    #[test]
    fn thresholds_name_the_peers_or_each_model() {
        let peers = Thresholds::peers(CountTable::constant(5));
        let at = |t: &Thresholds| [0, 1, 7].map(|m| t.at(ModelId(m), 8));
        assert_eq!(at(&peers), [1, 5, 5]);
        assert_eq!(at(&Thresholds::constants(&[2, 3])), [2, 3, 1]);
    }
}
