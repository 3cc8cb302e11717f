//! The setting of the throughput model (paper, appendix D): N requests that never end, devices whose step times
//! depend on the batch size alone, no jitter, no faults. The policy under test is the one in `Core`.

use super::devices::Devices;
use super::run::SimError;
use crate::config::{CoreConfig, Handoff, ModelLimits, NewRequest};
use crate::core::Core;
use crate::ids::{MAX_MODELS, Nanos, PAGE_TOKENS, RouteId};
use crate::policy::{LatencyTable, Plan, Policy, PolicyInputs};
use crate::router::Router;

/// What runs.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    /// Step times of each model.
    pub latency: Vec<LatencyTable>,
    /// How much longer each model's steps take while another runs; empty for not at all.
    pub slowdown: Vec<f64>,
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
        let mut core = self.core(routes)?;
        let mut devices = Devices::new(&self.latency, &self.slowdown, 0.0, self.seed);
        let (mut now, mut total) = (0, 0);
        let (mut counted, mut started) = (ClosedOutcome::default(), None);
        while total < self.warm_up + self.rows {
            for (model, rows) in devices.launch(&mut core, now).into_iter().enumerate() {
                total += rows;
                if started.is_some() && rows > 0 {
                    counted.rows[model] += rows;
                    counted.batches[model] += 1;
                }
            }
            if started.is_none() && total >= self.warm_up {
                started = Some(now);
            }
            now = devices.next(&core)?;
            devices.land(&mut core, now)?;
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
        let config = endless(self.latency.len(), count, lifetime, self.policy.clone(), self.guard);
        let mut core = Core::new(config, routes).map_err(|e| SimError(e.to_string()))?;
        if let Some(inputs) = self.inputs.clone() {
            let plan = Plan { policy: self.policy.clone(), inputs };
            core.set_plan(plan).map_err(|e| SimError(e.to_string()))?;
        }
        for (client, &route) in self.requests.iter().enumerate() {
            core.submit(0, endless_request(client as u64, lifetime, route, self.seed))
                .map_err(|e| SimError(e.to_string()))?;
        }
        Ok(core)
    }
}

/// A core with room for `count` requests of up to `lifetime` tokens, and no limits.
pub(super) fn endless(
    models: usize,
    count: usize,
    lifetime: usize,
    policy: Policy,
    guard: Nanos,
) -> CoreConfig {
    CoreConfig {
        models: vec![ModelLimits { max_batch_rows: count.max(1), max_step_tokens: usize::MAX }; models],
        pages: count * (lifetime + 1).div_ceil(PAGE_TOKENS),
        context_len: lifetime + 1,
        max_waiting: count,
        max_running: count,
        eos_ids: Vec::new(),
        guard,
        policy,
        prefix_cache: false,
        reserve_pages: 0,
        planner: None,
        handoff: Handoff::default(),
    }
}

/// A request of one token that writes `lifetime` more.
pub(super) fn endless_request(client: u64, lifetime: usize, route: RouteId, seed: u64) -> NewRequest {
    NewRequest {
        client,
        prompt: vec![1],
        max_new_tokens: lifetime as u32,
        route,
        seed: seed.wrapping_mul(1_000_003).wrapping_add(client),
        ..NewRequest::default()
    }
}
