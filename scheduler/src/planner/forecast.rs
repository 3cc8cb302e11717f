//! The forecast: what a launch rule yields in a setting, by a short simulation with shared random numbers.
//!
//! The exact chain ([`super::Chain`]) takes seconds where this takes a millisecond, knows no p99, and grows out of
//! reach for three models. A candidate that is forecast runs the engine's own [`crate::decide`].

use super::draws::Draws;
use super::meter::Meter;
use super::run::{Prepared, Sums};
use super::setting::Setting;
use crate::ids::{MAX_MODELS, Nanos};
use crate::policy::Policy;

/// A simulation is at least so many rows per request, whatever is asked for: less is all start.
const LEAST_PER_REQUEST: u64 = 64;
/// Most rows of one simulation.
const MOST_STEPS: u64 = 1 << 26;

/// How much to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForecastSpec {
    /// Rows (request-steps) over all models that are counted, at least 64 for each request; a fifth more is simulated
    /// for the starts.
    pub request_steps: u64,
    /// Whether the times between tokens are measured.
    pub p99: bool,
}

impl Default for ForecastSpec {
    /// 30,000 rows: an error of about 0.3 %.
    fn default() -> Self {
        Self { request_steps: 30_000, p99: false }
    }
}

/// What a launch rule yields in the long run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Tokens per second over all requests. Expectations over the routing replace the commits that were drawn.
    pub tokens_per_s: f64,
    /// The 99th percentile of the time between two tokens of a request, if it was asked for and there were tokens.
    pub p99: Option<Nanos>,
    /// Fraction of time each model runs.
    pub utilisation: [f64; MAX_MODELS],
    /// Rows per batch of each model; 0 for one that never ran.
    pub mean_batch: [f64; MAX_MODELS],
    /// Times at which something ended, while counted.
    pub epochs: u64,
}

impl Forecast {
    fn new(total: &Sums, p99: Option<Nanos>) -> Self {
        let mut this =
            Self { tokens_per_s: total.tokens_per_s(), p99, epochs: total.epochs, ..Self::default() };
        for i in 0..MAX_MODELS {
            this.utilisation[i] = if total.time > 0.0 { total.busy[i] / total.time } else { 0.0 };
            this.mean_batch[i] = total.rows[i] as f64 / total.batches[i].max(1) as f64;
        }
        this
    }
}

/// The rows that are simulated for `asked`.
pub(super) fn steps_for(asked: u64, requests: usize) -> u64 {
    asked.max(LEAST_PER_REQUEST * requests as u64).min(MOST_STEPS)
}

/// Forecasts `policy` for `requests` requests. A setting that [`Setting::check`] refuses, no requests, or draws for
/// another number of models yield zeros.
pub fn forecast(
    setting: &Setting,
    requests: usize,
    policy: &Policy,
    draws: &Draws,
    spec: ForecastSpec,
) -> Forecast {
    if setting.check_for(requests).is_err() || draws.models() != setting.models() {
        return Forecast::default();
    }
    let prepared = Prepared::new(setting, requests);
    let mut meter = Meter::new(&prepared, policy, spec.p99);
    meter.count(&prepared, policy, draws, steps_for(spec.request_steps, requests));
    let p99 = meter.p99();
    Forecast::new(meter.total(), p99)
}
