//! The search for the best thresholds (D.3).

use super::chain::Chain;
use super::error::PlanError;
use super::performance::{Performance, Solution};
use super::rule::LaunchRule;
use super::system::System;

/// Rates that differ by less (relative) are the same.
const TIE: f64 = 1e-10;

/// Bounds on the work of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most states of one chain.
    pub states: usize,
    /// Most threshold vectors.
    pub vectors: usize,
}

impl Default for Limits {
    /// A million states (some 200 MB for three models) and ten thousand vectors.
    fn default() -> Self {
        Self { states: 1_000_000, vectors: 10_000 }
    }
}

/// One evaluated threshold vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// B.
    pub thresholds: Vec<u32>,
    /// Its rates.
    pub performance: Performance,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Every evaluated vector, in the order given (a full search: lexicographic).
    pub rows: Vec<Evaluated>,
    /// Index of the best row: the first of `ties`.
    pub best: usize,
    /// All rows within 1e-10 (relative) of the largest rate.
    pub ties: Vec<usize>,
}

impl Table {
    /// The best row.
    pub fn best(&self) -> &Evaluated {
        &self.rows[self.best]
    }

    /// Picks the best of evaluated rows.
    ///
    /// # Errors
    /// An empty list.
    pub fn new(rows: Vec<Evaluated>) -> Result<Self, PlanError> {
        let rate = |row: &Evaluated| row.performance.tokens_per_s;
        let top = rows.iter().map(rate).fold(0.0, f64::max);
        let ties: Vec<usize> = (0..rows.len()).filter(|&i| rate(&rows[i]) >= top * (1.0 - TIE)).collect();
        let best = *ties.first().ok_or(PlanError::Empty)?;
        Ok(Self { rows, best, ties })
    }
}

/// The number of feasible vectors of `models` thresholds for `requests` (Eq. 23), or none beyond 64 bits.
pub fn count_feasible(models: usize, requests: u32) -> Option<u64> {
    // The vectors of non-negative B_i - 1 with a sum of at most N - 1: binomial(N - 1 + M, M).
    let slack = u64::from(requests).checked_sub(1)?;
    (1..=models as u64).try_fold(1u64, |count, i| Some(count.checked_mul(slack + i)? / i))
}

/// All feasible vectors in lexicographic order (Eq. 23).
///
/// # Errors
/// If there are more than `limit`.
pub fn feasible(models: usize, requests: u32, limit: usize) -> Result<Vec<Vec<u32>>, PlanError> {
    let vectors =
        count_feasible(models, requests).and_then(|v| usize::try_from(v).ok()).unwrap_or(usize::MAX);
    if models == 0 || requests == 0 {
        return Err(PlanError::Empty);
    }
    if vectors > limit {
        return Err(PlanError::TooManyVectors { vectors, limit });
    }
    let mut all = Vec::with_capacity(vectors);
    let mut current = vec![1; models];
    let mut slack = requests - 1;
    loop {
        all.push(current.clone());
        // Count up: raise the last threshold while the slack lasts, else carry.
        let mut at = models - 1;
        while slack == 0 {
            slack += current[at] - 1;
            current[at] = 1;
            if at == 0 {
                return Ok(all);
            }
            at -= 1;
            if slack > 0 {
                break;
            }
        }
        current[at] += 1;
        slack -= 1;
    }
}

/// Evaluates one rule exactly. `slowdown` as in [`Solution::performance`].
///
/// # Errors
/// As [`Chain::new`], [`Solution::new`] and [`Solution::performance`].
pub fn evaluate(
    system: &System,
    rule: &LaunchRule,
    slowdown: f64,
    state_limit: usize,
) -> Result<Performance, PlanError> {
    Solution::new(Chain::new(system, rule, state_limit)?)?.performance(slowdown)
}

/// Evaluates the paper's rule for the given vectors and picks the best.
///
/// # Errors
/// The first vector that cannot be evaluated, or an empty list.
pub fn compare(
    system: &System,
    vectors: impl IntoIterator<Item = Vec<u32>>,
    slowdown: f64,
    limits: Limits,
) -> Result<Table, PlanError> {
    let rows = vectors.into_iter().map(|thresholds| {
        let rule = LaunchRule::Threshold(thresholds.clone());
        let performance = evaluate(system, &rule, slowdown, limits.states)?;
        Ok(Evaluated { thresholds, performance })
    });
    Table::new(rows.collect::<Result<_, _>>()?)
}

/// The best of all feasible vectors (Eq. 24).
///
/// # Errors
/// More vectors or states than the limits allow, or as [`compare`].
pub fn search_all(system: &System, slowdown: f64, limits: Limits) -> Result<Table, PlanError> {
    compare(system, feasible(system.models(), system.requests(), limits.vectors)?, slowdown, limits)
}

/// The closed form for the peer's threshold of two models (step times in any common unit): the smallest queue that is
/// worth an early start beside a fresh batch of the entry model, `ceil(N x / (L0 + x))`, `x = p01 (L1 - L0)`, in 1..=N.
pub fn closed_form(p01: f64, l0: f64, l1: f64, requests: u32) -> u32 {
    let x = p01 * (l1 - l0);
    let b = (f64::from(requests) * x / (l0 + x)).ceil();
    (b.max(1.0) as u32).min(requests.max(1))
}
