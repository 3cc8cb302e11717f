//! Exact reduction of a sparse chain to a small core.
//!
//! Taking a state out of a chain and joining its ways in to its ways out (censoring) leaves the stationary vector of
//! the others as it is, up to scale, and needs no subtraction (Grassmann, Taksar, Heyman). Most states of a nearly
//! periodic chain have one way in or out, so that taking out the cheapest state first (Markowitz) shrinks it to a
//! core of a few percent, and the core mixes in few sweeps where the chain would not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::sparse::Sparse;

/// A chain with some states taken out.
pub(super) struct Reduced {
    /// What is left, numbered by position in `kept`.
    pub(super) core: Sparse,
    kept: Vec<u32>,
    /// States in the order in which they went, with their shares of the predecessors' flow.
    taken: Vec<(u32, Vec<(u32, f64)>)>,
}

impl Reduced {
    /// Takes states out, cheapest first, until `keep` are left or about `work` joins have been made.
    pub(super) fn new(chain: &Sparse, keep: usize, work: usize) -> Self {
        let mut reducer = Reducer::new(chain);
        let mut taken = Vec::new();
        let mut spent = 0;
        while chain.states() - taken.len() > keep {
            let Some(state) = reducer.cheapest() else { break };
            spent += reducer.cost(state);
            if spent > work {
                break;
            }
            taken.push((state as u32, reducer.take_out(state)));
        }
        let kept: Vec<u32> = (0..chain.states() as u32).filter(|&s| !reducer.gone[s as usize]).collect();
        let mut position = vec![0; chain.states()];
        for (at, &state) in kept.iter().enumerate() {
            position[state as usize] = at as u32;
        }
        let rows =
            kept.iter().map(|&s| reducer.out[s as usize].iter().map(|&(t, p)| (position[t as usize], p)));
        Self { core: Sparse::from_rows(rows), kept, taken }
    }

    /// The stationary vector of the whole chain from that of the core.
    pub(super) fn expand(&self, core: &[f64]) -> Vec<f64> {
        let mut pi = vec![0.0; self.kept.len() + self.taken.len()];
        for (&state, p) in self.kept.iter().zip(core) {
            pi[state as usize] = *p;
        }
        for (state, shares) in self.taken.iter().rev() {
            pi[*state as usize] = shares.iter().map(|&(from, share)| pi[from as usize] * share).sum();
        }
        let sum: f64 = pi.iter().sum();
        pi.iter_mut().for_each(|p| *p /= sum);
        pi
    }
}

struct Reducer {
    /// Ways out, ordered by target.
    out: Vec<Vec<(u32, f64)>>,
    /// Where each state comes from; may name states that are gone.
    from: Vec<Vec<u32>>,
    /// How many of `from` are not gone.
    ways_in: Vec<usize>,
    gone: Vec<bool>,
    /// States by cost; entries may be out of date.
    queue: BinaryHeap<Reverse<(usize, usize)>>,
}

impl Reducer {
    fn new(chain: &Sparse) -> Self {
        let n = chain.states();
        let incoming = chain.incoming();
        let sorted = |state| {
            let mut row: Vec<(u32, f64)> = chain.out(state).collect();
            row.sort_unstable_by_key(|&(to, _)| to);
            row
        };
        let from: Vec<Vec<u32>> = (0..n).map(|s| incoming.out(s).map(|(from, _)| from).collect()).collect();
        let mut reducer = Self {
            out: (0..n).map(sorted).collect(),
            ways_in: from.iter().map(Vec::len).collect(),
            from,
            gone: vec![false; n],
            queue: BinaryHeap::with_capacity(n),
        };
        (0..n).for_each(|state| reducer.enqueue(state));
        reducer
    }

    fn cost(&self, state: usize) -> usize {
        self.ways_in[state] * self.out[state].len()
    }

    fn enqueue(&mut self, state: usize) {
        self.queue.push(Reverse((self.cost(state), state)));
    }

    fn cheapest(&mut self) -> Option<usize> {
        while let Some(Reverse((cost, state))) = self.queue.pop() {
            if !self.gone[state] && cost == self.cost(state) {
                return Some(state);
            }
        }
        None
    }

    /// Joins the ways in to the ways out; returns the state's share of the flow of each predecessor.
    fn take_out(&mut self, state: usize) -> Vec<(u32, f64)> {
        let onward = std::mem::take(&mut self.out[state]);
        let leaves: f64 = onward.iter().map(|&(_, p)| p).sum();
        self.gone[state] = true;
        for &(to, _) in &onward {
            self.ways_in[to as usize] -= 1;
        }
        let mut shares = Vec::with_capacity(self.ways_in[state]);
        for from in std::mem::take(&mut self.from[state]) {
            if self.gone[from as usize] {
                continue;
            }
            let row = std::mem::take(&mut self.out[from as usize]);
            let Ok(at) = row.binary_search_by_key(&(state as u32), |&(to, _)| to) else { continue };
            let share = row[at].1 / leaves;
            shares.push((from, share));
            self.out[from as usize] = self.join(from, &row, state as u32, &onward, share);
            self.enqueue(from as usize);
        }
        for &(to, _) in &onward {
            self.enqueue(to as usize);
        }
        shares
    }

    /// `row` of state `from` without `state`, plus `share` of `onward` without the way back to `from`.
    fn join(
        &mut self,
        from: u32,
        row: &[(u32, f64)],
        state: u32,
        onward: &[(u32, f64)],
        share: f64,
    ) -> Vec<(u32, f64)> {
        let mut joined = Vec::with_capacity(row.len() + onward.len());
        let mut rest = row.iter().filter(|e| e.0 != state).peekable();
        for &(to, p) in onward.iter().filter(|e| e.0 != from) {
            while let Some(&&old) = rest.peek().filter(|e| e.0 < to) {
                joined.push(old);
                rest.next();
            }
            let mut entry = (to, share * p);
            if let Some(old) = rest.next_if(|e| e.0 == to) {
                entry.1 += old.1;
            } else {
                self.from[to as usize].push(from);
                self.ways_in[to as usize] += 1;
            }
            joined.push(entry);
        }
        joined.extend(rest);
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::direct;
    use crate::sim::Random;

    #[test]
    fn a_reduced_chain_has_the_stationary_vector_of_the_whole() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let n = random.size(5, 60) as u32;
            let rows = (0..n).map(|state| {
                // A ring keeps it irreducible; a few ways across it make it uneven.
                let mut row = vec![((state + 1) % n, 1.0)];
                for _ in 0..random.size(0, 3) {
                    let to = random.range(0, u64::from(n) - 1) as u32;
                    if to != state && row.iter().all(|e| e.0 != to) {
                        row.push((to, 10f64.powi(-(random.range(0, 9) as i32))));
                    }
                }
                let sum: f64 = row.iter().map(|e| e.1).sum();
                row.into_iter().map(|(to, p)| (to, p / sum)).collect::<Vec<_>>()
            });
            let chain = Sparse::from_rows(rows.collect::<Vec<_>>().into_iter());
            let whole = direct::stationary(&chain);
            for keep in [1, 3, n as usize] {
                let reduced = Reduced::new(&chain, keep, usize::MAX);
                assert_eq!(reduced.core.states(), keep.min(n as usize));
                let pi = reduced.expand(&direct::stationary(&reduced.core));
                for (a, b) in pi.iter().zip(&whole) {
                    assert!((a - b).abs() <= 1e-12 * b, "seed {seed}, keep {keep}: {a} and {b}");
                }
            }
        }
    }
}
