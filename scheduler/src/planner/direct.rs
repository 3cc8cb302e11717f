//! Direct solution by state reduction (Grassmann, Taksar, Heyman): no subtraction, so every entry is accurate.

/// The stationary vector of an irreducible chain given as a dense row-major matrix of `n` states, which is
/// overwritten. Takes n^3 / 3 multiplications.
pub(super) fn reduce(p: &mut [f64], n: usize) -> Vec<f64> {
    for last in (1..n).rev() {
        let (rest, row) = p.split_at_mut(last * n);
        let row = &row[..last];
        let out: f64 = row.iter().sum();
        for from in 0..last {
            let base = from * n;
            if rest[base + last] > 0.0 {
                let share = rest[base + last] / out;
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
        pi[state] = (0..state).map(|from| pi[from] * p[from * n + state]).sum();
    }
    let sum: f64 = pi.iter().sum();
    pi.iter_mut().for_each(|x| *x /= sum);
    pi
}

#[cfg(test)]
mod tests {
    use super::reduce;

    #[test]
    fn a_nearly_decomposable_chain_is_solved_to_the_last_digits() {
        // Two states that swap with probability 1e-13 and 3e-13: 1/4 of the time is lost if 1 - p is rounded.
        let mut p = [1.0 - 1e-13, 1e-13, 3e-13, 1.0 - 3e-13];
        let pi = reduce(&mut p, 2);
        assert!((pi[0] - 0.75).abs() < 1e-15 && (pi[1] - 0.25).abs() < 1e-15, "{pi:?}");
    }

    #[test]
    fn a_periodic_chain_has_a_stationary_vector() {
        let mut p = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.0];
        let pi = reduce(&mut p, 3);
        assert!(pi.iter().zip([0.2, 0.4, 0.4]).all(|(a, b)| (a - b).abs() < 1e-15), "{pi:?}");
    }
}
