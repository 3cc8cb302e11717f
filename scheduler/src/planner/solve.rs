//! The stationary vector of a chain (Eq. 16).

use super::chain::Chain;
use super::classes::closed_class;
use super::direct::reduce;
use super::error::PlanError;

/// Up to this many states the direct solution costs less than a few sweeps.
const DIRECT_AT_ONCE: usize = 64;
/// Up to this many states it is affordable when the iteration is slow (32 MB, seconds).
const DIRECT_AT_MOST: usize = 2000;
/// Sweeps before a chain of affordable size is solved directly.
const PATIENCE: usize = 200;
/// Sweeps before a larger chain is given up.
const MOST_SWEEPS: usize = 20_000;
/// Sweeps without damping; plain Gauss-Seidel can cycle for ever on nearly periodic chains.
const PLAIN_SWEEPS: usize = 60;
const DAMPING: f64 = 0.8;
/// The accepted error of the vector, as the sum of absolute differences.
const TOLERANCE: f64 = 1e-13;
/// Sweeps over which the rate of convergence is measured.
const WINDOW: usize = 8;

/// The stationary vector over all states of the chain; states outside the closed class have none of it.
///
/// # Errors
/// Several closed classes, or no convergence in a chain too large for the direct solution.
pub(super) fn stationary(chain: &Chain<'_>) -> Result<Vec<f64>, PlanError> {
    let class = closed_class(chain)?;
    let inner = if class.len() <= DIRECT_AT_ONCE {
        direct(chain, &class)?
    } else {
        let patience = if class.len() <= DIRECT_AT_MOST { PATIENCE } else { MOST_SWEEPS };
        match Sweeper::new(chain, &class).run(patience) {
            Ok(pi) => pi,
            Err(_) if class.len() <= DIRECT_AT_MOST => direct(chain, &class)?,
            Err(error) => return Err(PlanError::NotConverged { states: class.len(), error }),
        }
    };
    let mut pi = vec![0.0; chain.states()];
    for (&state, p) in class.iter().zip(inner) {
        pi[state as usize] = p;
    }
    Ok(pi)
}

/// The position of every state of the chain within the class.
fn positions(chain: &Chain<'_>, class: &[u32]) -> Vec<u32> {
    let mut position = vec![u32::MAX; chain.states()];
    for (at, &state) in class.iter().enumerate() {
        position[state as usize] = at as u32;
    }
    position
}

fn direct(chain: &Chain<'_>, class: &[u32]) -> Result<Vec<f64>, PlanError> {
    let n = class.len();
    let position = positions(chain, class);
    let mut dense = vec![0.0; n * n];
    for (at, &state) in class.iter().enumerate() {
        for (to, probability) in chain.successors(state as usize) {
            dense[at * n + position[to] as usize] += probability;
        }
    }
    let pi = reduce(&mut dense, n);
    // Probabilities that vanish in 64-bit floats can cut an irreducible chain apart.
    if pi.iter().all(|p| p.is_finite()) {
        Ok(pi)
    } else {
        Err(PlanError::NotConverged { states: n, error: f64::INFINITY })
    }
}

/// Gauss-Seidel over the incoming transitions, in order of discovery.
struct Sweeper {
    row: Vec<usize>,
    from: Vec<u32>,
    probability: Vec<f64>,
    /// Probability to leave each state, summed over the transitions that do: `1 - p` would cancel.
    leaves: Vec<f64>,
    pi: Vec<f64>,
}

impl Sweeper {
    fn new(chain: &Chain<'_>, class: &[u32]) -> Self {
        let n = class.len();
        let position = positions(chain, class);
        let mut row = vec![0; n + 1];
        let mut leaves = vec![0.0; n];
        for (at, &state) in class.iter().enumerate() {
            for (to, probability) in chain.successors(state as usize) {
                if to != state as usize {
                    row[position[to] as usize + 1] += 1;
                    leaves[at] += probability;
                }
            }
        }
        for at in 0..n {
            row[at + 1] += row[at];
        }
        let mut free = row.clone();
        let mut from = vec![0; row[n]];
        let mut probability = vec![0.0; row[n]];
        for (at, &state) in class.iter().enumerate() {
            for (to, p) in chain.successors(state as usize).filter(|&(to, _)| to != state as usize) {
                let slot = &mut free[position[to] as usize];
                from[*slot] = at as u32;
                probability[*slot] = p;
                *slot += 1;
            }
        }
        Self { row, from, probability, leaves, pi: vec![1.0 / n as f64; n] }
    }

    /// Sweeps until the estimated error is small enough, or returns the estimate after `patience` sweeps.
    fn run(mut self, patience: usize) -> Result<Vec<f64>, f64> {
        let mut changes = Vec::new();
        let mut error = f64::INFINITY;
        for sweep in 0..patience {
            let damping = if sweep < PLAIN_SWEEPS { 1.0 } else { DAMPING };
            changes.push(self.sweep(damping));
            error = remaining(&changes);
            if error < TOLERANCE {
                return Ok(self.pi);
            }
        }
        Err(error)
    }

    /// One sweep; returns the sum of absolute changes of the normalised vector.
    fn sweep(&mut self, damping: f64) -> f64 {
        let (mut change, mut sum) = (0.0, 0.0);
        for at in 0..self.pi.len() {
            let edges = self.row[at]..self.row[at + 1];
            let inflow: f64 = self.from[edges.clone()]
                .iter()
                .zip(&self.probability[edges])
                .map(|(&from, p)| self.pi[from as usize] * p)
                .sum();
            let old = self.pi[at];
            let new = old + damping * (inflow / self.leaves[at] - old);
            change += (new - old).abs();
            self.pi[at] = new;
            sum += new;
        }
        self.pi.iter_mut().for_each(|p| *p /= sum);
        change / sum
    }
}

/// How far the vector still is from its limit, from the size and the geometric decay of the changes.
fn remaining(changes: &[f64]) -> f64 {
    let (Some(&last), Some(&before)) = (changes.last(), changes.iter().rev().nth(WINDOW)) else {
        return f64::INFINITY;
    };
    let rate = (last / before).powf(1.0 / WINDOW as f64);
    if last == 0.0 {
        0.0
    } else if rate < 1.0 {
        last * rate.max(0.5) / (1.0 - rate)
    } else {
        f64::INFINITY
    }
}
