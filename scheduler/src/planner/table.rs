//! Plans for every number of requests up to a limit: a change of N then only reads a row.

use super::draws::Draws;
use super::error::PlanError;
use super::forecast::steps_for;
use super::search::{SearchSpec, search_with};
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
    /// Plans for 1 to `most` requests.
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
        let _ = exact_at;
        let rows = (1..=most).map(|n| search_with(setting, n, spec, &draws, &[])).collect();
        Ok(Self { rows })
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
