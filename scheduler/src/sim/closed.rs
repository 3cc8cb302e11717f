//! The setting of the throughput model (paper, appendix D): N requests that never end, devices whose step times
//! depend on the batch size alone, no jitter, no faults. The policy under test is the one in `Core`.

use super::run::SimError;
use crate::config::{CoreConfig, Handoff, ModelLimits, NewRequest};
use crate::core::Core;
use crate::event::RowResult;
use crate::ids::{MAX_MODELS, ModelId, Nanos, PAGE_TOKENS, RouteId};
use crate::policy::{LatencyTable, Plan, Policy, PolicyInputs};
use crate::router::Router;

/// What runs.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    /// Step times of each model.
    pub latency: Vec<LatencyTable>,
    /// One request per entry, and its route.
    pub requests: Vec<RouteId>,
    /// When to launch.
    pub policy: Policy,
    /// The numbers to predict with; none leaves the core its own estimates.
    pub inputs: Option<PolicyInputs>,
    /// The least guard time.
    pub guard: Nanos,
    /// Rows that are run and not counted, so that estimates settle and the start is forgotten.
    pub warm_up: u64,
    /// Rows that are counted.
    pub rows: u64,
    /// Seeds the routers' draws.
    pub seed: u64,
}

/// What was counted after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClosedOutcome {
    /// Time.
    pub elapsed: Nanos,
    /// Rows per model.
    pub rows: [u64; MAX_MODELS],
    /// Batches per model.
    pub batches: [u64; MAX_MODELS],
    /// Launches that only the guard made, warm-up included.
    pub guard_launches: u64,
}

impl ClosedOutcome {
    /// Rows of a model per second.
    pub fn rows_per_second(&self, model: usize) -> f64 {
        self.rows[model] as f64 * 1e9 / self.elapsed as f64
    }

    /// Equation 21 of the paper: tokens per second, when `commits[i][j]` are the tokens that a request commits which
    /// goes from `i` to `j`. Expectations over the routing replace the counts, which lowers the noise.
    pub fn tokens_per_second(&self, routing: &[Vec<f64>], commits: &[Vec<f64>]) -> f64 {
        let per_row = |(p, c): (&Vec<f64>, &Vec<f64>)| p.iter().zip(c).map(|(p, c)| p * c).sum::<f64>();
        let kappa = routing.iter().zip(commits).map(per_row);
        kappa.enumerate().map(|(model, kappa)| kappa * self.rows_per_second(model)).sum()
    }
}

impl ClosedLoop {
    /// Runs `routes` to the end of the count; [`RouteId`] `i` is `routes[i]`.
    pub fn run(&self, routes: Vec<Box<dyn Router>>) -> Result<ClosedOutcome, SimError> {
        let models = self.latency.len();
        let mut core = self.core(routes)?;
        let mut ends: Vec<Option<Nanos>> = vec![None; models];
        let (mut now, mut total) = (0, 0);
        let (mut counted, mut started) = (ClosedOutcome::default(), None);
        let mut results: Vec<RowResult> = Vec::new();
        while total < self.warm_up + self.rows {
            for model in core.launch(now).iter() {
                let rows = core.batch(model).map_or(0, |b| b.rows.len());
                ends[model.index()] = Some(now + self.latency[model.index()].at(rows));
                total += rows as u64;
                if started.is_some() {
                    counted.rows[model.index()] += rows as u64;
                    counted.batches[model.index()] += 1;
                }
            }
            if started.is_none() && total >= self.warm_up {
                started = Some(now);
            }
            now = match ends.iter().flatten().min() {
                Some(&next) => next.min(core.wake().unwrap_or(next)),
                None => return SimError::new("nothing runs"),
            };
            // The larger model's requests return before the smaller one decides.
            for model in (0..models).rev().filter(|&m| ends[m] == Some(now)).collect::<Vec<_>>() {
                let id = ModelId(model as u8);
                ends[model] = None;
                results.clear();
                results.resize(core.batch(id).map_or(0, |b| b.rows.len()), RowResult::default());
                core.complete(now, id, &results).map_err(|e| SimError(e.to_string()))?;
            }
            core.drain_effects().for_each(drop);
        }
        counted.elapsed = now - started.unwrap_or(now);
        counted.guard_launches = core.counters().guard_launches;
        Ok(counted)
    }

    fn core(&self, routes: Vec<Box<dyn Router>>) -> Result<Core, SimError> {
        let count = self.requests.len();
        // A request takes part in every row at most, so none ends before the count does.
        let lifetime = (self.warm_up + self.rows) as usize / count.max(1) * 4 + 10_000;
        let limits = ModelLimits { max_batch_rows: count.max(1), max_step_tokens: usize::MAX };
        let config = CoreConfig {
            models: vec![limits; self.latency.len()],
            pages: count * (lifetime + 1).div_ceil(PAGE_TOKENS),
            context_len: lifetime + 1,
            max_waiting: count,
            max_running: count,
            eos_ids: Vec::new(),
            guard: self.guard,
            policy: self.policy.clone(),
            prefix_cache: false,
            reserve_pages: 0,
            handoff: Handoff::default(),
        };
        let mut core = Core::new(config, routes).map_err(|e| SimError(e.to_string()))?;
        if let Some(inputs) = self.inputs.clone() {
            let plan = Plan { policy: self.policy.clone(), inputs };
            core.set_plan(plan).map_err(|e| SimError(e.to_string()))?;
        }
        for (client, &route) in self.requests.iter().enumerate() {
            let new = NewRequest {
                client: client as u64,
                prompt: vec![1],
                max_new_tokens: lifetime as u32,
                route,
                seed: self.seed.wrapping_mul(1_000_003).wrapping_add(client as u64),
                ..NewRequest::default()
            };
            core.submit(0, new).map_err(|e| SimError(e.to_string()))?;
        }
        Ok(core)
    }
}
