//! The stationary vector of a chain (Eq. 16): sweeps where they settle, exact reduction where they do not.

use super::chain::Chain;
use super::classes::closed_class;
use super::error::PlanError;
use super::reduce::Reduced;
use super::sparse::Sparse;
use super::{direct, sweep};

/// Up to this many states the direct solution costs less than a few sweeps.
const DIRECT_AT_ONCE: usize = 64;
/// Up to this many states it is affordable (n^2 numbers: 2 MB).
const DIRECT_AT_MOST: usize = 500;
/// Sweeps before a chain counts as slow. Usual chains need 10 to 100.
const PATIENCE: usize = 200;
/// Sweeps before a core is given up.
const MOST_SWEEPS: usize = 2000;
/// Joins that a reduction may make: some ten seconds. 57,177 states that hardly mix (two models, p = 0.97, N = 32)
/// need most of it.
const WORK: usize = 1_000_000_000;

/// The stationary vector over all states of the chain; states outside the closed class have none of it.
///
/// # Errors
/// Several closed classes, or a chain that neither settles nor can be reduced.
pub(super) fn stationary(chain: &Chain<'_>) -> Result<Vec<f64>, PlanError> {
    let class = closed_class(chain)?;
    let sparse = Sparse::of_class(chain, &class);
    let inner = irreducible(&sparse)?;
    let mut pi = vec![0.0; chain.states()];
    for (&state, p) in class.iter().zip(inner) {
        pi[state as usize] = p;
    }
    Ok(pi)
}

fn irreducible(chain: &Sparse) -> Result<Vec<f64>, PlanError> {
    let failed = |error| PlanError::NotConverged { states: chain.states(), error };
    let settled = if chain.states() <= DIRECT_AT_ONCE {
        direct::stationary(chain)
    } else if let Ok(pi) = sweep::stationary(chain, PATIENCE) {
        pi
    } else {
        let reduced = Reduced::new(chain, DIRECT_AT_ONCE, WORK);
        let core = if reduced.core.states() <= DIRECT_AT_MOST {
            direct::stationary(&reduced.core)
        } else {
            sweep::stationary(&reduced.core, MOST_SWEEPS).map_err(failed)?
        };
        reduced.expand(&core)
    };
    // Probabilities that vanish in 64-bit floats can cut a chain apart.
    if settled.iter().all(|p| p.is_finite()) { Ok(settled) } else { Err(failed(f64::INFINITY)) }
}
