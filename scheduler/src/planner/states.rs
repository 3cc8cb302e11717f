//! The reachable states, each stored once in the order of discovery.

/// States of equal width in one array, with an open-addressing index over them: one state costs its cells and two to
/// four slots of four bytes, and looking one up allocates nothing.
#[derive(Clone, Debug)]
pub(super) struct StateTable {
    width: usize,
    cells: Vec<u32>,
    /// Index of a state plus one; 0 is free. A power of two, at most half full.
    slots: Vec<u32>,
}

impl StateTable {
    /// An empty table of states with `width` cells.
    pub(super) fn new(width: usize) -> Self {
        Self { width, cells: Vec::new(), slots: vec![0; 64] }
    }

    /// How many states.
    pub(super) fn len(&self) -> usize {
        self.cells.len() / self.width
    }

    /// State `index`.
    pub(super) fn state(&self, index: usize) -> &[u32] {
        &self.cells[index * self.width..][..self.width]
    }

    /// The index of `state`, which is appended if it is new.
    pub(super) fn intern(&mut self, state: &[u32]) -> u32 {
        let slot = self.find(state);
        if self.slots[slot] != 0 {
            return self.slots[slot] - 1;
        }
        let index = self.len() as u32;
        self.cells.extend_from_slice(state);
        self.slots[slot] = index + 1;
        if self.len() * 2 > self.slots.len() {
            self.grow();
        }
        index
    }

    /// The slot that holds `state`, or the free one where it belongs.
    fn find(&self, state: &[u32]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(state) & mask;
        while self.slots[slot] != 0 && self.state(self.slots[slot] as usize - 1) != state {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 2];
        for index in 0..self.len() {
            let slot = self.find(self.state(index));
            self.slots[slot] = index as u32 + 1;
        }
    }
}

fn hash(state: &[u32]) -> usize {
    let mixed = state
        .iter()
        .fold(0u64, |h, &x| (h.rotate_left(5) ^ u64::from(x)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (mixed ^ (mixed >> 29)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_states_get_one_index_in_order_of_discovery() {
        let mut table = StateTable::new(2);
        for round in 0..2 {
            for i in 0..1000u32 {
                assert_eq!(table.intern(&[i / 7, i % 7]), i, "round {round}");
            }
        }
        assert_eq!(table.len(), 1000);
        assert_eq!(table.state(15), [2, 1]);
    }
}
