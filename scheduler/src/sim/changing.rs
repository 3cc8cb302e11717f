//! A closed loop whose setting changes while it runs, with the online planner: does it notice, and how good is it then?

use super::closed::{endless, endless_request};
use super::devices::Devices;
use super::matrix::MatrixRouter;
use super::run::SimError;
use crate::core::Core;
use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos, RequestId, RouteId};
use crate::pilot::{PlannerConfig, PlannerStatus};
use crate::planner::PlanReply;
use crate::policy::{LatencyTable, Policy};
use crate::router::{Router, SignalSet, StepView};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A setting and how long it lasts.
#[derive(Clone, Debug)]
pub struct Phase {
    /// P.
    pub routing: Vec<Vec<f64>>,
    /// L, by model.
    pub latency: Vec<LatencyTable>,
    /// s, by model.
    pub slowdown: Vec<f64>,
    /// N.
    pub requests: usize,
    /// Rows (routing decisions, since every request has the choice) until the next phase.
    pub rows: u64,
}

/// What runs.
#[derive(Clone, Debug)]
pub struct ChangingLoop {
    /// One after the other.
    pub phases: Vec<Phase>,
    /// A step takes up to this fraction longer or shorter.
    pub jitter: f64,
    /// The policy before a plan, or without a planner.
    pub policy: Policy,
    /// The planner.
    pub planner: Option<PlannerConfig>,
    /// Virtual time that a round of planning takes.
    pub planning_time: Nanos,
    /// Seeds routing and jitter.
    pub seed: u64,
}

/// The state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// The time.
    pub now: Nanos,
    /// Rows that have ended, by model.
    pub rows: [u64; MAX_MODELS],
    /// The policy in force.
    pub policy: Policy,
    /// Whether it comes from a plan.
    pub planned: bool,
    /// Changes of the policy by the planner so far, fallbacks included.
    pub changes: u64,
    /// Rounds of planning that were answered so far.
    pub rounds: u64,
}

impl Moment {
    /// Rows of all models.
    pub fn decisions(&self) -> u64 {
        self.rows.iter().sum()
    }

    /// Tokens per second since `before`, when a row of model `i` commits `per_row[i]` tokens on average.
    pub fn tokens_per_second(&self, before: &Self, per_row: &[f64]) -> f64 {
        let rows = self.rows.iter().zip(&before.rows).map(|(now, then)| (now - then) as f64);
        let tokens: f64 = rows.zip(per_row).map(|(rows, tokens)| rows * tokens).sum();
        tokens * 1e9 / (self.now - before.now) as f64
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct ChangingOutcome {
    /// Every completion of a step, in order; by phase.
    pub moments: Vec<Vec<Moment>>,
    /// The planner at the end.
    pub status: PlannerStatus,
}

impl ChangingLoop {
    /// Runs all phases.
    pub fn run(&self) -> Result<ChangingOutcome, SimError> {
        let phase = Arc::new(AtomicUsize::new(0));
        let matrices = self.phases.iter().map(|p| MatrixRouter::new(p.routing.clone(), ModelId(0))).collect();
        let router = PhasedRouter { phase: phase.clone(), matrices };
        let first = self.phases.first().ok_or_else(|| SimError("there is no phase".into()))?;
        let most = self.phases.iter().map(|p| p.requests).max().unwrap_or(1);
        let rows: u64 = self.phases.iter().map(|p| p.rows).sum();
        let lifetime = rows as usize + 10_000;
        let mut config = endless(first.latency.len(), most, lifetime, self.policy.clone(), u64::MAX);
        config.planner = self.planner;
        let mut run = Running {
            core: Core::new(config, vec![Box::new(router)]).map_err(|e| SimError(e.to_string()))?,
            devices: Devices::new(&first.latency, &first.slowdown, self.jitter, self.seed),
            setting: self,
            lifetime,
            clients: Vec::new(),
            submitted: 0,
            reply: None,
            moment: Moment {
                now: 0,
                rows: [0; MAX_MODELS],
                policy: self.policy.clone(),
                planned: false,
                changes: 0,
                rounds: 0,
            },
        };
        let mut moments = Vec::new();
        for (index, next) in self.phases.iter().enumerate() {
            phase.store(index, Ordering::Relaxed);
            moments.push(run.phase(next)?);
        }
        Ok(ChangingOutcome { moments, status: run.core.planner_status() })
    }
}

struct Running<'a> {
    core: Core,
    devices: Devices,
    setting: &'a ChangingLoop,
    lifetime: usize,
    clients: Vec<RequestId>,
    submitted: u64,
    /// A plan on its way, and when it arrives.
    reply: Option<(Nanos, PlanReply)>,
    moment: Moment,
}

impl Running<'_> {
    fn phase(&mut self, phase: &Phase) -> Result<Vec<Moment>, SimError> {
        self.devices.change(&phase.latency, &phase.slowdown);
        let now = self.moment.now;
        while self.clients.len() > phase.requests {
            let gone = self.clients.pop();
            gone.map(|id| self.core.cancel(now, id));
        }
        while self.clients.len() < phase.requests {
            let new = endless_request(self.submitted, self.lifetime, RouteId(0), self.setting.seed);
            self.submitted += 1;
            self.clients.push(self.core.submit(now, new).map_err(|e| SimError(e.to_string()))?);
        }
        let until = self.moment.decisions() + phase.rows;
        let mut moments = Vec::new();
        while self.moment.decisions() < until {
            self.turn()?;
            moments.push(self.moment.clone());
        }
        Ok(moments)
    }

    fn turn(&mut self) -> Result<(), SimError> {
        let before = self.moment.now;
        let started = self.devices.launch(&mut self.core, before);
        self.moment.rows.iter_mut().zip(started).for_each(|(sum, rows)| *sum += rows);
        if let Some(job) = self.core.plan_due() {
            self.reply = Some((before + self.setting.planning_time, job.run()));
        }
        let next = self.devices.next(&self.core)?;
        let ready = self.reply.as_ref().map_or(Nanos::MAX, |(at, _)| *at);
        if ready <= next {
            self.moment.now = ready;
            if let Some((_, reply)) = self.reply.take() {
                self.core.plan_done(reply);
            }
        } else {
            self.moment.now = next;
            self.devices.land(&mut self.core, next)?;
            self.core.drain_effects().for_each(drop);
        }
        let (policy, planned, changes, rounds) = self.core.plan_progress();
        let moment = &mut self.moment;
        if moment.policy != *policy {
            moment.policy = policy.clone();
        }
        (moment.planned, moment.changes, moment.rounds) = (planned, changes, rounds);
        Ok(())
    }
}

/// Follows the matrix of the phase.
struct PhasedRouter {
    phase: Arc<AtomicUsize>,
    matrices: Vec<MatrixRouter>,
}

impl Router for PhasedRouter {
    fn name(&self) -> &str {
        "phased"
    }

    fn signals(&self) -> SignalSet {
        SignalSet::NONE
    }

    fn entry(&self) -> ModelId {
        ModelId(0)
    }

    fn reach(&self) -> ModelSet {
        self.matrices.iter().fold(ModelSet::EMPTY, |set, m| set.union(m.reach()))
    }

    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        self.matrices[self.phase.load(Ordering::Relaxed)].route(step, to);
    }
}
