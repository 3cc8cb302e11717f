//! Iterative solution: Gauss-Seidel over the incoming transitions, in the order of the states.

use super::sparse::Sparse;

/// Sweeps without damping; plain Gauss-Seidel can cycle for ever on nearly periodic chains.
const PLAIN_SWEEPS: usize = 60;
const DAMPING: f64 = 0.8;
/// The accepted error of the vector, as the sum of absolute differences.
const TOLERANCE: f64 = 1e-13;
/// Sweeps over which the rate of convergence is measured.
const WINDOW: usize = 8;

/// Sweeps until the estimated error of the stationary vector is small enough.
///
/// # Errors
/// The estimate after `patience` sweeps.
pub(super) fn stationary(chain: &Sparse, patience: usize) -> Result<Vec<f64>, f64> {
    let incoming = chain.incoming();
    // Summed over the transitions that leave: one minus the probability to stay would cancel.
    let leaves: Vec<f64> = (0..chain.states()).map(|s| chain.out(s).map(|(_, p)| p).sum()).collect();
    let mut pi = vec![1.0 / chain.states() as f64; chain.states()];
    let mut changes = Vec::new();
    let mut error = f64::INFINITY;
    for sweep in 0..patience {
        let damping = if sweep < PLAIN_SWEEPS { 1.0 } else { DAMPING };
        changes.push(sweep_once(&incoming, &leaves, &mut pi, damping));
        error = remaining(&changes);
        if error < TOLERANCE {
            return Ok(pi);
        }
    }
    Err(error)
}

/// One sweep; returns the sum of absolute changes of the normalised vector.
fn sweep_once(incoming: &Sparse, leaves: &[f64], pi: &mut [f64], damping: f64) -> f64 {
    let (mut change, mut sum) = (0.0, 0.0);
    for at in 0..pi.len() {
        let inflow: f64 = incoming.out(at).map(|(from, p)| pi[from as usize] * p).sum();
        let old = pi[at];
        let new = old + damping * (inflow / leaves[at] - old);
        change += (new - old).abs();
        pi[at] = new;
        sum += new;
    }
    pi.iter_mut().for_each(|p| *p /= sum);
    change / sum
}

/// How far the vector still is from its limit, from the size and the geometric decay of the changes: a slow chain
/// changes little in a sweep long before it has arrived.
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
