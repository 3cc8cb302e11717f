//! Plans for every number of requests up to a limit: a change of N then only reads a row.

use std::collections::{BTreeMap, BTreeSet};

use super::candidate::scaled;
use super::draws::Draws;
use super::error::PlanError;
use super::forecast::steps_for;
use super::search::{Candidates, SearchSpec, search_with};
use super::setting::Setting;
use crate::ids::Nanos;
use crate::policy::Policy;

/// The plan for one number of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRow {
    /// When to launch.
    pub policy: Policy,
    /// The forecast of its rate.
    pub tokens_per_s: f64,
    /// The forecast of the 99th percentile of the time between two tokens; only where a limit was set.
    pub p99: Option<Nanos>,
}

/// Plans for N = 1, 2, ...
#[derive(Clone, Debug, PartialEq)]
pub struct PlanTable {
    /// Entry `N - 1`; never empty.
    rows: Vec<PlanRow>,
}

impl PlanTable {
    /// Plans for 1 to `most` requests: searched at `exact_at` (clipped to them) and on a grid in which each number is
    /// 1.4 times the one before; between, the better of the two neighbours' rules with parameters in proportion, or a
    /// rule without parameters.
    ///
    /// # Errors
    /// As [`super::search_policy`].
    pub fn fill(
        setting: &Setting,
        exact_at: usize,
        most: usize,
        spec: &SearchSpec,
    ) -> Result<Self, PlanError> {
        setting.check_for(most)?;
        let draws = Draws::new(setting, steps_for(spec.request_steps, most), spec.seed)?;
        let mut rows: BTreeMap<usize, PlanRow> = BTreeMap::new();
        let hints_at = |n: usize, neighbours: &[Option<(&usize, &PlanRow)>]| {
            let both = |(&m, row): (&usize, &PlanRow)| {
                [false, true].map(|up| scaled(&row.policy, setting.models(), m, n, up))
            };
            neighbours.iter().flatten().copied().flat_map(both).collect::<Vec<_>>()
        };
        for n in grid(exact_at.clamp(1, most), most) {
            // What was good for fewer requests is worth a try.
            let hints = hints_at(n, &[rows.range(..n).next_back()]);
            rows.insert(n, search_with(setting, n, spec, &draws, &Candidates { hints, climb: true }));
        }
        let searched = rows.clone();
        for n in (1..=most).filter(|n| !searched.contains_key(n)) {
            let hints = hints_at(n, &[searched.range(..n).next_back(), searched.range(n..).next()]);
            rows.insert(n, search_with(setting, n, spec, &draws, &Candidates { hints, climb: false }));
        }
        Ok(Self { rows: rows.into_values().collect() })
    }

    /// The row for `requests`, or the nearest one.
    pub fn at(&self, requests: usize) -> &PlanRow {
        &self.rows[requests.clamp(1, self.rows.len()) - 1]
    }

    /// Multiplies every forecast rate.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.rows.iter_mut().for_each(|row| row.tokens_per_s *= factor);
    }

    /// The most requests that there is a row for.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Never: there is a row for one request.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// 1, 2, 3, 4, 6, 8, 11, ... up to `most`, which is a member, as is `also`.
fn grid(also: usize, most: usize) -> BTreeSet<usize> {
    let next = |&n: &usize| Some((n * 7 / 5).max(n + 1));
    std::iter::successors(Some(1), next).take_while(|&n| n < most).chain([also, most]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_holds_the_ends_and_the_number_that_counts() {
        let of = |also, most| grid(also, most).into_iter().collect::<Vec<_>>();
        assert_eq!(of(1, 1), [1]);
        assert_eq!(of(7, 20), [1, 2, 3, 4, 5, 7, 9, 12, 16, 20]);
        assert_eq!(of(8, 9), [1, 2, 3, 4, 5, 7, 8, 9]);
        assert!(grid(13, 1000).len() < 25);
    }
}
