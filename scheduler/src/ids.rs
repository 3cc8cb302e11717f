//! Names of things: requests, models, pages, routes. Small copyable integers, never interchangeable.

use std::fmt;

/// Integer nanoseconds on whatever clock the caller keeps. The core only compares and subtracts them.
pub type Nanos = u64;

/// Tokens in one page, the same for every model (DESIGN rule 2).
pub const PAGE_TOKENS: usize = 16;

/// The most models one core can hold; per-model arrays have this length.
pub const MAX_MODELS: usize = 8;

/// One live request: a slot of the request table and the generation of its tenant.
///
/// The slot is a dense index, so callers may key plain arrays with it ([`crate::Core::slot_capacity`] bounds it);
/// the generation tells a stale id from the slot's next tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    slot: u32,
    generation: u32,
}

impl RequestId {
    /// Builds an id from its parts; ids the core did not hand out are stale to it.
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }

    /// The dense index of the request.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// How many tenants the slot had before this one.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}.{}", self.slot, self.generation)
    }
}

/// A model by its index in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u8);

impl ModelId {
    /// The index, for per-model arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model {}", self.0)
    }
}

/// A joint page: the same index in every model's key/value arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A configured route (router and parameters) by its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(pub u16);

/// A set of models as a bit mask, bit `i` for [`ModelId`] `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelSet(pub u32);

impl ModelSet {
    /// No model.
    pub const EMPTY: Self = Self(0);

    /// The set of one model; empty when the index is out of the mask's range.
    pub const fn of(model: ModelId) -> Self {
        if model.0 < 32 { Self(1 << model.0) } else { Self(0) }
    }

    /// The first `count` models.
    pub const fn first(count: usize) -> Self {
        if count >= 32 { Self(u32::MAX) } else { Self((1 << count) - 1) }
    }

    /// Whether `model` is a member.
    pub const fn contains(self, model: ModelId) -> bool {
        model.0 < 32 && self.0 & (1 << model.0) != 0
    }

    /// Whether every member is a member of `other`.
    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Adds a model.
    pub const fn insert(&mut self, model: ModelId) {
        self.0 |= Self::of(model).0;
    }

    /// Members of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Members of both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Members of this set that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Number of members.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is no member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, lowest index first.
    pub const fn iter(self) -> ModelIter {
        ModelIter(self.0)
    }
}

/// The members of a [`ModelSet`]; a step is one bit operation, however many models there could be.
#[derive(Clone, Copy, Debug)]
pub struct ModelIter(u32);

impl Iterator for ModelIter {
    type Item = ModelId;

    fn next(&mut self) -> Option<ModelId> {
        if self.0 == 0 {
            return None;
        }
        let lowest = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(ModelId(lowest as u8))
    }
}

impl DoubleEndedIterator for ModelIter {
    fn next_back(&mut self) -> Option<ModelId> {
        let highest = self.0.checked_ilog2()?;
        self.0 ^= 1 << highest;
        Some(ModelId(highest as u8))
    }
}

impl FromIterator<ModelId> for ModelSet {
    fn from_iter<I: IntoIterator<Item = ModelId>>(models: I) -> Self {
        models.into_iter().fold(Self::EMPTY, |set, m| set.union(Self::of(m)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_set_is_a_set() {
        let mut set: ModelSet = [ModelId(2), ModelId(0)].into_iter().collect();
        assert!(set.contains(ModelId(0)) && !set.contains(ModelId(1)) && set.contains(ModelId(2)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [ModelId(0), ModelId(2)]);
        assert_eq!(set.iter().next_back(), Some(ModelId(2)));
        set.insert(ModelId(1));
        assert_eq!(set, ModelSet::first(3));
        assert_eq!(set.without(ModelSet::of(ModelId(2))), ModelSet::first(2));
        assert_eq!(ModelSet::first(2).intersection(ModelSet(6)), ModelSet::of(ModelId(1)));
        assert!(ModelSet::first(2).is_subset(set) && !set.is_subset(ModelSet::first(2)));
        assert!(ModelSet::of(ModelId(200)).is_empty() && !ModelSet::first(40).contains(ModelId(200)));
    }
}
