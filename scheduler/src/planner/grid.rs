//! A common quantum for step times in milliseconds (Eq. 6).

use super::error::PlanError;
use super::system::positive;

/// Latencies are read to a nanosecond when a common divisor is looked for.
const PER_MS: f64 = 1e6;
/// The finest exact grid: the longest step in quanta. States grow with it, the rate hardly moves.
const FINEST: u64 = 500;
/// Where no exact grid is coarse enough, the shortest step gets this many quanta (to twice as many); the rate then
/// moves by less than 0.1 %.
const COARSE: u32 = 20;
/// Quanta of one step that still make sense.
const MOST: f64 = 1e6;

/// Step times on a grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The quantum.
    pub quantum_ms: f64,
    /// Step times in quanta.
    pub steps: Vec<u32>,
    /// The largest relative difference between a step time and its place on the grid.
    pub error: f64,
}

impl Grid {
    /// The coarsest grid that holds all step times exactly (to a nanosecond), unless it has more than 500 quanta per
    /// longest step: then the grid with 20 to 40 quanta per shortest step that fits best.
    ///
    /// # Errors
    /// Times that are not positive, or too far apart for one grid.
    pub fn automatic(latency_ms: &[f64]) -> Result<Self, PlanError> {
        check(latency_ms)?;
        if let Some(quantum_ms) = common_divisor(latency_ms) {
            return Self::with_quantum(latency_ms, quantum_ms);
        }
        let shortest = latency_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let mut best: Option<Self> = None;
        for parts in COARSE..=2 * COARSE {
            let grid = Self::with_quantum(latency_ms, shortest / f64::from(parts))?;
            if best.as_ref().is_none_or(|b| grid.error < b.error) {
                best = Some(grid);
            }
        }
        best.ok_or(PlanError::Empty)
    }

    /// Rounds to multiples of a given quantum.
    ///
    /// # Errors
    /// Times or a quantum that are not positive; a quantum of which a step is less than a half, or more than a
    /// million.
    pub fn with_quantum(latency_ms: &[f64], quantum_ms: f64) -> Result<Self, PlanError> {
        check(latency_ms)?;
        positive("the quantum", quantum_ms)?;
        let mut grid = Self { quantum_ms, steps: Vec::with_capacity(latency_ms.len()), error: 0.0 };
        for &latency in latency_ms {
            let steps = (latency / quantum_ms).round();
            if !(1.0..=MOST).contains(&steps) {
                let allowed = "between a millionth of the longest and twice the shortest step time";
                return Err(PlanError::Parameter { name: "the quantum (ms)", value: quantum_ms, allowed });
            }
            grid.steps.push(steps as u32);
            grid.error = grid.error.max((steps * quantum_ms / latency - 1.0).abs());
        }
        Ok(grid)
    }
}

fn check(latency_ms: &[f64]) -> Result<(), PlanError> {
    if latency_ms.is_empty() {
        return Err(PlanError::Empty);
    }
    latency_ms.iter().try_for_each(|&latency| positive("a step time", latency))
}

/// The largest common divisor in milliseconds, if the times are whole nanoseconds and the grid is coarse enough.
fn common_divisor(latency_ms: &[f64]) -> Option<f64> {
    let mut divisor = 0u64;
    let mut longest = 0;
    for latency in latency_ms {
        let units = latency * PER_MS;
        // Above 2^53 units the fraction is lost, and no grid is wanted anyway.
        if units > 9e15 || (units - units.round()).abs() > 1e-3 {
            return None;
        }
        let units = units.round() as u64;
        longest = longest.max(units);
        divisor = gcd(units, divisor);
    }
    (divisor > 0 && longest / divisor <= FINEST).then(|| divisor as f64 / PER_MS)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_divisor_is_found_where_there_is_one() {
        let grid = Grid::automatic(&[6.0, 27.9]).expect("a grid");
        assert_eq!((grid.quantum_ms, grid.steps.as_slice()), (0.3, [20, 93].as_slice()));
        assert!(grid.error < 1e-12);
        assert_eq!(Grid::automatic(&[6.0, 1200.0]).expect("a grid").steps, [1, 200]);
    }

    #[test]
    fn other_times_are_rounded_to_a_coarse_grid() {
        let grid = Grid::automatic(&[6.0131, 27.9177]).expect("a grid");
        assert!((20..=40).contains(&grid.steps[0]) && grid.error < 5e-3 && grid.error > 0.0, "{grid:?}");
        let grid = Grid::with_quantum(&[6.0131, 27.9177], 1.0).expect("a grid");
        assert_eq!(grid.steps, [6, 28]);
    }

    #[test]
    fn senseless_times_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Grid::automatic(&[6.0, bad]), Err(PlanError::Duration { .. })), "{bad}");
            assert!(matches!(Grid::with_quantum(&[6.0], bad), Err(PlanError::Duration { .. })), "{bad}");
        }
        assert!(matches!(Grid::with_quantum(&[6.0], 12.1), Err(PlanError::Parameter { .. })));
        assert!(matches!(Grid::with_quantum(&[6.0], 1e-9), Err(PlanError::Parameter { .. })));
        assert!(matches!(Grid::automatic(&[1e-9, 1e12]), Err(PlanError::Parameter { .. })));
    }
}
