//! Where a finished set of batches goes: the distribution of the arrivals at every model (Eq. 11 to 13).

use std::collections::HashMap;

use super::error::PlanError;
use super::system::System;

/// Distinct arrival vectors with their probabilities. A vector is coded as a number in base N+1, so that arrivals
/// of several batches add as their codes do (no digit can pass N).
#[derive(Clone, Debug)]
struct Coded(Vec<(u64, f64)>);

/// The distribution of one set of finished batches.
#[derive(Debug)]
pub(super) struct Outcomes {
    models: usize,
    /// Arrivals, `models` per outcome.
    arrivals: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Outcomes {
    /// Arrivals per model and their probability, for every outcome of positive probability.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u32], f64)> {
        self.arrivals.chunks_exact(self.models).zip(self.probabilities.iter().copied())
    }
}

/// Makes and keeps the distributions, keyed by the finished batch sizes (0: not finished).
pub(super) struct OutcomeCache<'a> {
    system: &'a System,
    /// `[model][b]`, grown one request at a time: sums of products only, so no factorial overflows.
    single: Vec<Vec<Coded>>,
    joint: HashMap<Vec<u32>, usize>,
    made: Vec<Outcomes>,
    base: u64,
}

impl<'a> OutcomeCache<'a> {
    /// An empty cache.
    pub(super) fn new(system: &'a System, limit: usize) -> Result<Self, PlanError> {
        let models = system.models();
        let base = u64::from(system.requests()) + 1;
        // A system whose arrival vectors do not fit 64 bits has more states than any limit.
        base.checked_pow(models as u32).ok_or(PlanError::TooManyStates { limit })?;
        let nothing = Coded(vec![(0, 1.0)]);
        Ok(Self {
            system,
            single: vec![vec![nothing]; models],
            joint: HashMap::new(),
            made: Vec::new(),
            base,
        })
    }

    /// The distribution when these batches finish at one instant.
    pub(super) fn get(&mut self, finished: &[u32]) -> &Outcomes {
        let at = match self.joint.get(finished) {
            Some(&at) => at,
            None => {
                let outcomes = self.make(finished);
                self.made.push(outcomes);
                self.joint.insert(finished.to_vec(), self.made.len() - 1);
                self.made.len() - 1
            }
        };
        &self.made[at]
    }

    fn make(&mut self, finished: &[u32]) -> Outcomes {
        let mut all = Coded(vec![(0, 1.0)]);
        for (model, &batch) in finished.iter().enumerate().filter(|(_, b)| **b > 0) {
            self.grow(model, batch as usize);
            all = convolve(&all, &self.single[model][batch as usize]);
        }
        let models = finished.len();
        let mut outcomes = Outcomes { models, arrivals: Vec::new(), probabilities: Vec::new() };
        for (mut code, probability) in all.0 {
            // Products of many small probabilities may vanish in 64-bit floats; they then cannot matter.
            if probability > 0.0 {
                for _ in 0..models {
                    outcomes.arrivals.push((code % self.base) as u32);
                    code /= self.base;
                }
                outcomes.probabilities.push(probability);
            }
        }
        outcomes
    }

    fn grow(&mut self, model: usize, batch: usize) {
        let mut one = Vec::new();
        let mut unit = 1u64;
        for to in 0..self.system.models() {
            let p = self.system.probability(model, to);
            if p > 0.0 {
                one.push((unit, p));
            }
            unit = unit.saturating_mul(self.base);
        }
        let one = Coded(one);
        while self.single[model].len() <= batch {
            let next = convolve(&self.single[model][self.single[model].len() - 1], &one);
            self.single[model].push(next);
        }
    }
}

fn convolve(a: &Coded, b: &Coded) -> Coded {
    let mut all: Vec<(u64, f64)> =
        a.0.iter().flat_map(|&(x, p)| b.0.iter().map(move |&(y, q)| (x + y, p * q))).collect();
    all.sort_by_key(|&(code, _)| code);
    all.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 += later.1;
        }
        same
    });
    Coded(all)
}
