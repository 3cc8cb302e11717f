//! What the planner knows and does, for people and metrics.

use crate::ids::Nanos;
use crate::policy::Policy;

/// The running estimates of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelStatus {
    /// L: predicted step time alone of 1, 2, 4, .. rows, as `(rows, time)`; empty before the first step.
    pub latency: Vec<(usize, Nanos)>,
    /// s: how much longer a step takes while another model runs.
    pub slowdown: f64,
    /// P: the share of its requests with a choice that go to each model.
    pub routing: Vec<f64>,
    /// C: tokens that such a request commits, by where it goes.
    pub commit: Vec<f64>,
    /// Routing decisions since the start, or since the routing was found to have changed.
    pub decisions: u64,
    /// Steps since the start, or since their times were found to have changed.
    pub steps: u64,
}

/// The planner's state, see [`crate::Core::planner_status`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannerStatus {
    /// Whether there is a planner at all.
    pub enabled: bool,
    /// Estimates by model.
    pub models: Vec<ModelStatus>,
    /// Admitted requests that may visit more than one model: N.
    pub requests: usize,
    /// The policy in force for them.
    pub policy: Policy,
    /// Whether it comes from a plan.
    pub planned: bool,
    /// The most requests that the plan has a row for; 0 without one.
    pub plan_len: usize,
    /// Forecast of the policy in force, in tokens per second; none before the first forecast.
    pub predicted: Option<f64>,
    /// Tokens per second over the last window without prompts; none before it is full.
    pub measured: Option<f64>,
    /// Forecast 99th percentile of the time between two tokens, where a limit is set and the policy comes from a plan.
    pub predicted_p99: Option<Nanos>,
    /// Rounds of planning.
    pub rounds: u64,
    /// Rounds that changed the policy.
    pub plans: u64,
    /// Plans that were given up because they did not keep what they had promised.
    pub fallbacks: u64,
    /// Why the last round failed, if it did.
    pub error: Option<String>,
}
