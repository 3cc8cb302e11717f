//! A transition matrix without its diagonal, which no solver here needs: what stays put never cancels.

use super::chain::Chain;

/// Rows of outgoing transitions between different states; targets of a row are distinct.
#[derive(Clone, Debug)]
pub(super) struct Sparse {
    row: Vec<usize>,
    to: Vec<u32>,
    probability: Vec<f64>,
}

impl Sparse {
    /// The transitions within `class`, whose states are numbered by their position in it.
    pub(super) fn of_class(chain: &Chain<'_>, class: &[u32]) -> Self {
        let mut position = vec![0; chain.states()];
        for (at, &state) in class.iter().enumerate() {
            position[state as usize] = at as u32;
        }
        let rows = class.iter().map(|&state| {
            let others = chain.successors(state as usize).filter(move |&(to, _)| to != state as usize);
            others.map(|(to, p)| (position[to], p))
        });
        Self::from_rows(rows)
    }

    /// From the transitions of every state in turn.
    pub(super) fn from_rows(rows: impl Iterator<Item = impl IntoIterator<Item = (u32, f64)>>) -> Self {
        let mut sparse = Self { row: vec![0], to: Vec::new(), probability: Vec::new() };
        for row in rows {
            for (to, probability) in row {
                sparse.to.push(to);
                sparse.probability.push(probability);
            }
            sparse.row.push(sparse.to.len());
        }
        sparse
    }

    /// How many states.
    pub(super) fn states(&self) -> usize {
        self.row.len() - 1
    }

    /// Where a state goes.
    pub(super) fn out(&self, state: usize) -> impl Iterator<Item = (u32, f64)> {
        let edges = self.row[state]..self.row[state + 1];
        self.to[edges.clone()].iter().copied().zip(self.probability[edges].iter().copied())
    }

    /// Rows and columns exchanged: where each state comes from.
    pub(super) fn incoming(&self) -> Self {
        let n = self.states();
        let mut row = vec![0; n + 1];
        self.to.iter().for_each(|&to| row[to as usize + 1] += 1);
        for at in 0..n {
            row[at + 1] += row[at];
        }
        let mut free = row.clone();
        let mut incoming = Self { row, to: vec![0; self.to.len()], probability: vec![0.0; self.to.len()] };
        for from in 0..n {
            for (to, probability) in self.out(from) {
                let slot = &mut free[to as usize];
                incoming.to[*slot] = from as u32;
                incoming.probability[*slot] = probability;
                *slot += 1;
            }
        }
        incoming
    }
}
