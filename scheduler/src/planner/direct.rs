//! Direct solution by state reduction (Grassmann, Taksar, Heyman): no subtraction, so every entry is accurate.

use super::sparse::Sparse;

/// The stationary vector of an irreducible chain of n states: n^2 numbers of memory, n^3 / 3 multiplications.
/// Not finite where probabilities that vanish in 64-bit floats cut the chain apart.
pub(super) fn stationary(chain: &Sparse) -> Vec<f64> {
    let n = chain.states();
    let mut dense = vec![0.0; n * n];
    for from in 0..n {
        for (to, probability) in chain.out(from) {
            dense[from * n + to as usize] = probability;
        }
    }
    for last in (1..n).rev() {
        let (rest, row) = dense.split_at_mut(last * n);
        let row = &row[..last];
        let leaves: f64 = row.iter().sum();
        for from in 0..last {
            let base = from * n;
            if rest[base + last] > 0.0 {
                let share = rest[base + last] / leaves;
                rest[base + last] = share;
                for (cell, onward) in rest[base..base + last].iter_mut().zip(row) {
                    *cell += share * onward;
                }
            }
        }
    }
    let mut pi = vec![0.0; n];
    pi[0] = 1.0;
    for state in 1..n {
        pi[state] = (0..state).map(|from| pi[from] * dense[from * n + state]).sum();
    }
    let sum: f64 = pi.iter().sum();
    pi.iter_mut().for_each(|x| *x /= sum);
    pi
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: Vec<Vec<(u32, f64)>>, expected: &[f64]) {
        let pi = stationary(&Sparse::from_rows(rows.into_iter()));
        assert_eq!(pi.len(), expected.len());
        assert!(pi.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{pi:?}");
    }

    #[test]
    fn a_nearly_decomposable_chain_is_solved_to_the_last_digits() {
        // Two states that hardly ever swap: with 1 - p in place of p a quarter of the digits would be left.
        check(vec![vec![(1, 1e-13)], vec![(0, 3e-13)]], &[0.75, 0.25]);
    }

    #[test]
    fn a_periodic_chain_has_a_stationary_vector() {
        check(vec![vec![(1, 1.0)], vec![(2, 1.0)], vec![(0, 0.5), (1, 0.5)]], &[0.2, 0.4, 0.4]);
    }
}
