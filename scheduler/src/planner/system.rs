//! The closed system whose throughput is asked for: routing, commits, step times, requests.

use super::error::PlanError;

/// How far a row of P may be from one; such a row is scaled to one.
const ROW_TOLERANCE: f64 = 1e-9;
/// More requests than any chain can be built for.
const MOST_REQUESTS: u32 = 1 << 16;

/// Inputs of the model, unchecked. The names are those of appendix D.
#[derive(Clone, Debug, PartialEq)]
pub struct SystemSpec {
    /// `P[i][j]`: probability that a request that finishes a step on i goes to j.
    pub routing: Vec<Vec<f64>>,
    /// `C[i][j]`: tokens that such a request commits.
    pub commit: Vec<Vec<f64>>,
    /// Step times in quanta.
    pub steps: StepQuanta,
    /// The quantum, in milliseconds.
    pub quantum_ms: f64,
    /// N.
    pub requests: u32,
    /// Where all requests wait at the start.
    pub entry: usize,
}

/// Step times `d_i` in quanta of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepQuanta {
    /// One per model, whatever the batch (the paper's assumption).
    Constant(Vec<u32>),
    /// `[i][b - 1]`: of model i with a batch of b; at least N entries per model.
    ByBatch(Vec<Vec<u32>>),
}

/// A checked system. Immutable, so that every chain built on it is well defined.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    routing: Vec<Vec<f64>>,
    commit: Vec<Vec<f64>>,
    /// `[model][batch - 1]`.
    quanta: Vec<Vec<u32>>,
    quantum_ms: f64,
    requests: u32,
    entry: usize,
}

impl System {
    /// Checks the inputs.
    ///
    /// # Errors
    /// Names the first value that makes no sense.
    pub fn new(spec: SystemSpec) -> Result<Self, PlanError> {
        let models = spec.routing.len();
        if models == 0 {
            return Err(PlanError::Empty);
        }
        check_requests(spec.requests)?;
        let routing = check_routing(spec.routing)?;
        check_commit(&spec.commit, models)?;
        let quanta = expand(spec.steps, models, spec.requests as usize)?;
        positive("the quantum", spec.quantum_ms)?;
        if spec.entry >= models {
            return Err(PlanError::Entry { model: spec.entry, models });
        }
        let SystemSpec { commit, quantum_ms, requests, entry, .. } = spec;
        Ok(Self { routing, commit, quanta, quantum_ms, requests, entry })
    }

    /// M.
    pub fn models(&self) -> usize {
        self.routing.len()
    }

    /// N.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The entry model.
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// The quantum, in milliseconds.
    pub fn quantum_ms(&self) -> f64 {
        self.quantum_ms
    }

    /// `p_ij`.
    pub fn probability(&self, from: usize, to: usize) -> f64 {
        self.routing[from][to]
    }

    /// Step time in quanta of model i with a batch of `batch` requests (1..=N).
    pub fn step(&self, model: usize, batch: u32) -> u32 {
        self.quanta[model][batch as usize - 1]
    }

    /// Expected tokens committed by one request that finishes a step on `model`: `sum_j p_ij c_ij`.
    pub fn tokens_per_step(&self, model: usize) -> f64 {
        self.routing[model].iter().zip(&self.commit[model]).map(|(p, c)| p * c).sum()
    }

    /// The models in order of increasing step time (of one request), ties by index: the order in which launch rules
    /// that look at their peers are asked.
    pub fn by_speed(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.models()).collect();
        order.sort_by_key(|&i| self.quanta[i][0]);
        order
    }

    /// The same system with another number of requests. Step times must be constant or cover it.
    ///
    /// # Errors
    /// As [`System::new`].
    pub fn with_requests(&self, requests: u32) -> Result<Self, PlanError> {
        check_requests(requests)?;
        let mut quanta = self.quanta.clone();
        for times in &mut quanta {
            let constant = times.iter().all(|&t| t == times[0]);
            if !constant && times.len() < requests as usize {
                return Err(PlanError::Shape {
                    what: "a step-time table",
                    found: times.len(),
                    needed: requests as usize,
                });
            }
            times.resize(requests as usize, times[0]);
        }
        Ok(Self { quanta, requests, ..self.clone() })
    }
}

fn check_requests(requests: u32) -> Result<(), PlanError> {
    match requests {
        0 => Err(PlanError::Empty),
        1..=MOST_REQUESTS => Ok(()),
        _ => Err(PlanError::Parameter { name: "N", value: f64::from(requests), allowed: "at most 65536" }),
    }
}

fn check_routing(mut routing: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, PlanError> {
    let models = routing.len();
    for (from, row) in routing.iter_mut().enumerate() {
        if row.len() != models {
            return Err(PlanError::Shape {
                what: "a row of the routing matrix",
                found: row.len(),
                needed: models,
            });
        }
        if let Some((to, &value)) = row.iter().enumerate().find(|(_, p)| !(0.0..=1.0).contains(*p)) {
            return Err(PlanError::Probability { from, to, value });
        }
        let sum: f64 = row.iter().sum();
        if (sum - 1.0).abs() > ROW_TOLERANCE {
            return Err(PlanError::RowSum { from, sum });
        }
        row.iter_mut().for_each(|p| *p /= sum);
    }
    Ok(routing)
}

fn check_commit(commit: &[Vec<f64>], models: usize) -> Result<(), PlanError> {
    if commit.len() != models {
        return Err(PlanError::Shape { what: "the commit matrix", found: commit.len(), needed: models });
    }
    for (from, row) in commit.iter().enumerate() {
        if row.len() != models {
            return Err(PlanError::Shape {
                what: "a row of the commit matrix",
                found: row.len(),
                needed: models,
            });
        }
        if let Some((to, &value)) = row.iter().enumerate().find(|(_, c)| !(c.is_finite() && **c >= 0.0)) {
            return Err(PlanError::Commit { from, to, value });
        }
    }
    Ok(())
}

fn expand(steps: StepQuanta, models: usize, requests: usize) -> Result<Vec<Vec<u32>>, PlanError> {
    let mut table = match steps {
        StepQuanta::Constant(each) => each.into_iter().map(|d| vec![d; requests]).collect(),
        StepQuanta::ByBatch(table) => table,
    };
    if table.len() != models {
        return Err(PlanError::Shape { what: "the list of step times", found: table.len(), needed: models });
    }
    for (model, times) in table.iter_mut().enumerate() {
        if times.len() < requests {
            return Err(PlanError::Shape { what: "a step-time table", found: times.len(), needed: requests });
        }
        times.truncate(requests);
        if let Some(at) = times.iter().position(|&d| d == 0) {
            return Err(PlanError::ZeroStep { model, batch: at + 1 });
        }
    }
    Ok(table)
}

/// Refuses durations that are not positive and finite.
pub(super) fn positive(what: &'static str, value: f64) -> Result<(), PlanError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(PlanError::Duration { what, value }) }
}
