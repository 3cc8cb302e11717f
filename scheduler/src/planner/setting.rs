//! What the planner plans for: a closed system of requests that never end, measured while the engine runs.

use super::error::PlanError;
use crate::ids::{MAX_MODELS, ModelId};
use crate::policy::LatencyTable;
use crate::sharing::Parts;

/// How far a row of P may be from one; measured shares carry rounding.
const ROW_TOLERANCE: f64 = 1e-6;
/// Rows of a latency table that are looked at.
const MOST_ROWS: usize = 1 << 12;
/// More requests than any plan is made for.
const MOST_REQUESTS: usize = 1 << 16;

/// What a forecast predicts with: N requests that never end, step times that depend on the rows of the batch and on
/// whether another model runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// P: row `i` is where requests go after a step of model `i`.
    pub routing: Vec<Vec<f64>>,
    /// C: tokens that one request commits which finishes a step on `i` and goes to `j`.
    pub commit: Vec<Vec<f64>>,
    /// L: the step time alone, by rows; one table per model.
    pub latency: Vec<LatencyTable>,
    /// s, per model, at least 1: how much longer a step takes while another model runs.
    pub slowdown: Vec<f64>,
    /// How much of that a step suffers and causes: `[model][rows - 1]`, as far as it goes and then the last; a model without
    /// any: all of it.
    pub parts: Vec<Vec<Parts>>,
    /// Where a request starts. Matters only where P has several closed classes.
    pub entry: ModelId,
    /// Most rows of one batch, per model.
    pub max_batch: Vec<usize>,
}

impl Setting {
    /// M.
    pub fn models(&self) -> usize {
        self.routing.len()
    }

    /// Checks shapes and values.
    ///
    /// # Errors
    /// Names the first value that makes no sense; [`PlanError::NothingCommitted`] where no token is ever committed.
    pub fn check(&self) -> Result<(), PlanError> {
        let models = self.models();
        if models == 0 {
            return Err(PlanError::Empty);
        }
        if models > MAX_MODELS {
            let value = models as f64;
            return Err(PlanError::Parameter { name: "the number of models", value, allowed: "at most 8" });
        }
        self.check_shapes(models)?;
        for (from, row) in self.routing.iter().enumerate() {
            if let Some((to, &value)) = row.iter().enumerate().find(|(_, p)| !(0.0..=1.0).contains(*p)) {
                return Err(PlanError::Probability { from, to, value });
            }
            let sum: f64 = row.iter().sum();
            if (sum - 1.0).abs() > ROW_TOLERANCE {
                return Err(PlanError::RowSum { from, sum });
            }
        }
        for (from, row) in self.commit.iter().enumerate() {
            if let Some((to, &value)) = row.iter().enumerate().find(|(_, c)| !(c.is_finite() && **c >= 0.0)) {
                return Err(PlanError::Commit { from, to, value });
            }
        }
        self.check_steps()?;
        if self.entry.index() >= models {
            return Err(PlanError::Entry { model: self.entry.index(), models });
        }
        let tokens: f64 = self.visits().iter().enumerate().map(|(i, v)| v * self.tokens_per_row(i)).sum();
        if tokens > 0.0 && tokens.is_finite() { Ok(()) } else { Err(PlanError::NothingCommitted) }
    }

    /// As [`Setting::check`], for `requests` of them.
    pub(super) fn check_for(&self, requests: usize) -> Result<(), PlanError> {
        self.check()?;
        match requests {
            0 => Err(PlanError::Empty),
            1..=MOST_REQUESTS => Ok(()),
            _ => {
                let value = requests as f64;
                Err(PlanError::Parameter { name: "N", value, allowed: "at most 65536" })
            }
        }
    }

    fn check_shapes(&self, models: usize) -> Result<(), PlanError> {
        let sizes = [
            ("the commit matrix", self.commit.len()),
            ("the list of step times", self.latency.len()),
            ("the list of slowdowns", self.slowdown.len()),
            ("the list of batch limits", self.max_batch.len()),
            ("the list of parts", self.parts.len()),
        ];
        let rows = |what: &'static str, matrix: &[Vec<f64>]| {
            matrix.iter().map(|row| (what, row.len())).collect::<Vec<_>>()
        };
        let all = sizes
            .into_iter()
            .chain(rows("a row of the routing matrix", &self.routing))
            .chain(rows("a row of the commit matrix", &self.commit));
        match all.into_iter().find(|(_, found)| *found != models) {
            Some((what, found)) => Err(PlanError::Shape { what, found, needed: models }),
            None => Ok(()),
        }
    }

    fn check_steps(&self) -> Result<(), PlanError> {
        for (model, (table, &most)) in self.latency.iter().zip(&self.max_batch).enumerate() {
            if most == 0 {
                return Err(PlanError::Parameter { name: "a batch limit", value: 0.0, allowed: "1 or more" });
            }
            if let Some(batch) = (1..=most.min(MOST_ROWS)).find(|&rows| table.at(rows) == 0) {
                return Err(PlanError::ZeroStep { model, batch });
            }
        }
        let parts = self.parts.iter().flatten().flat_map(|p| [p.own, p.imposed]);
        if let Some(value) = parts.into_iter().find(|p| !(p.is_finite() && *p >= 0.0)) {
            return Err(PlanError::Parameter { name: "a part of a slowdown", value, allowed: "0 or more" });
        }
        match self.slowdown.iter().find(|s| !(s.is_finite() && **s >= 1.0)) {
            Some(&value) => Err(PlanError::Parameter { name: "a slowdown", value, allowed: "1 or more" }),
            None => Ok(()),
        }
    }

    /// Tokens that a row of model `i` commits on average: `sum_j p_ij c_ij`.
    pub(super) fn tokens_per_row(&self, model: usize) -> f64 {
        self.routing[model].iter().zip(&self.commit[model]).map(|(p, c)| p * c).sum()
    }

    /// The share of a request's steps that each model does in the long run, from the entry on. A request that starts
    /// in several closed classes with some chance gets the mean. Shapes must be right.
    pub(super) fn visits(&self) -> Vec<f64> {
        let models = self.models();
        // The lazy chain has no period; its powers converge to the same limit.
        let mut power: Vec<Vec<f64>> = (0..models)
            .map(|i| (0..models).map(|j| 0.5 * (self.routing[i][j] + f64::from(i == j))).collect())
            .collect();
        // 2^40 steps; each square is scaled back to rows of sum one, so that rounding cannot grow.
        for _ in 0..40 {
            let cell = |i: usize, j: usize| (0..models).map(|k| power[i][k] * power[k][j]).sum::<f64>();
            let mut next: Vec<Vec<f64>> =
                (0..models).map(|i| (0..models).map(|j| cell(i, j)).collect()).collect();
            for row in &mut next {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|p| *p /= sum);
            }
            power = next;
        }
        power.swap_remove(self.entry.index())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The paper's pair at p = 0.35.
    pub(in crate::planner) fn pair() -> Setting {
        Setting {
            routing: vec![vec![0.65, 0.35], vec![1.0, 0.0]],
            commit: vec![vec![1.0, 0.0], vec![1.0, 0.0]],
            latency: vec![LatencyTable::constant(6_000_000), LatencyTable::constant(27_900_000)],
            slowdown: vec![1.0; 2],
            parts: vec![Vec::new(); 2],
            entry: ModelId(0),
            max_batch: vec![64; 2],
        }
    }

    #[test]
    fn visits_are_those_of_the_class_that_the_entry_leads_to() {
        let visits = pair().visits();
        assert!((visits[1] - 0.35 / 1.35).abs() < 1e-9, "{visits:?}");
        let absorbing = Setting { routing: vec![vec![0.5, 0.5], vec![0.0, 1.0]], ..pair() };
        let visits = absorbing.visits();
        assert!(visits[0] < 1e-9 && (visits[1] - 1.0).abs() < 1e-9, "{visits:?}");
        let apart = Setting { routing: vec![vec![1.0, 0.0], vec![0.0, 1.0]], entry: ModelId(1), ..pair() };
        assert_eq!(apart.visits(), [0.0, 1.0]);
        let swap = Setting { routing: vec![vec![0.0, 1.0], vec![1.0, 0.0]], ..pair() };
        assert!((swap.visits()[0] - 0.5).abs() < 1e-9);
    }

    /// Breaks a good setting.
    type Change = fn(&mut Setting);

    #[test]
    fn settings_that_make_no_sense_are_refused_by_value() {
        assert_eq!(pair().check(), Ok(()));
        let refusals: [(Change, &str); 16] = [
            (|s| s.routing.clear(), "at least one model"),
            (|s| s.routing[0].push(0.0), "a row of the routing matrix"),
            (|s| s.routing[0][1] = 0.36, "sums to"),
            (|s| s.routing[0] = vec![1.5, -0.5], "probability"),
            (|s| s.routing[1][0] = f64::NAN, "probability"),
            (|s| s.commit[0][0] = -1.0, "commit count"),
            (|s| s.commit[1].clear(), "a row of the commit matrix"),
            (|s| s.commit = vec![vec![0.0; 2]; 2], "commits a token"),
            (|s| s.latency[1] = LatencyTable::by_rows(vec![5, 0]), "takes no time"),
            (|s| s.latency[1] = LatencyTable::by_rows(vec![]), "takes no time"),
            (|s| s.slowdown[0] = 0.9, "a slowdown is 0.9"),
            (|s| s.slowdown[1] = f64::INFINITY, "a slowdown"),
            (|s| s.parts = vec![], "the list of parts"),
            (|s| s.parts[1] = vec![Parts { own: -0.1, imposed: 1.0 }], "a part of a slowdown"),
            (|s| s.max_batch[0] = 0, "a batch limit"),
            (|s| s.entry = ModelId(2), "entry model 2"),
        ];
        for (change, expected) in refusals {
            let mut setting = pair();
            change(&mut setting);
            let error = setting.check().map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(expected)), "{expected}: {error:?}");
        }
        let many = Setting { routing: vec![vec![1.0]; 9], ..pair() };
        assert!(matches!(many.check(), Err(PlanError::Parameter { .. })));
        // Only a model that nobody comes to in the long run commits.
        let mut never = pair();
        never.routing = vec![vec![0.5, 0.5], vec![0.0, 1.0]];
        never.commit = vec![vec![1.0, 0.0], vec![0.0, 0.0]];
        assert_eq!(never.check(), Err(PlanError::NothingCommitted));
        assert_eq!(pair().check_for(0), Err(PlanError::Empty));
        assert!(pair().check_for(1 << 20).is_err());
    }
}
