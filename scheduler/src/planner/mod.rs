//! The throughput model: how many tokens per second a launch rule yields, exactly.
//!
//! A closed system of N requests and M models is a finite Markov chain at its batch-completion epochs (appendix D of
//! the paper). [`System`] holds the checked inputs, [`LaunchRule`] the paper's thresholds or one of the rules that go
//! past them, [`Chain`] the reachable states, [`Solution`] the stationary vector, and [`Performance`] the rates.
//! [`search_all`] finds the best thresholds, [`search_climbing`] where there are too many, and [`Grid`] puts step times
//! in milliseconds on a common quantum. Everything is a pure function; the caller bounds the work by a limit on
//! states, since a chain grows fast (two models, 16 requests: 14,257 states; three models, 6 requests: 403,283).
//!
//! What an engine plans with while it runs is quicker and less exact. A [`Setting`] holds the measured inputs,
//! [`forecast()`] simulates a launch rule in about a millisecond, [`search_policy`] races candidates for one
//! number of requests in under ten, and [`PlanTable`] holds a plan for every number of requests.
//!
//! ```
//! use tokenrouter_scheduler::planner::*;
//! # fn main() -> Result<(), PlanError> {
//! let system = System::new(SystemSpec {
//!     routing: vec![vec![0.65, 0.35], vec![1.0, 0.0]],
//!     commit: vec![vec![1.0, 0.0], vec![1.0, 0.0]],
//!     steps: StepQuanta::Constant(vec![20, 93]),
//!     quantum_ms: 0.3,
//!     requests: 8,
//!     entry: 0,
//! })?;
//! let table = search_all(&system, 1.0, Limits::default())?;
//! assert_eq!(table.best().thresholds, [1, 5]);
//! # Ok(())
//! # }
//! ```

mod candidate;
mod chain;
mod classes;
mod climb;
mod direct;
mod draws;
mod error;
mod forecast;
mod grid;
mod job;
mod meter;
mod outcomes;
mod performance;
mod race;
mod reduce;
mod rule;
mod run;
mod search;
mod setting;
mod solve;
mod sparse;
mod states;
mod sweep;
mod system;
mod table;
mod tail;
mod thresholds;

pub use chain::Chain;
pub use climb::search_climbing;
pub use draws::Draws;
pub use error::PlanError;
pub use forecast::{Forecast, ForecastSpec, forecast};
pub use grid::Grid;
pub(crate) use job::Proposal;
pub use job::{PlanJob, PlanReply};
pub use performance::{Performance, Solution};
pub use rule::LaunchRule;
pub use search::{SearchSpec, search_policy};
pub use setting::Setting;
pub use system::{StepQuanta, System, SystemSpec};
pub use table::{PlanRow, PlanTable};
pub use thresholds::{
    Evaluated, Limits, Table, closed_form, compare, count_feasible, evaluate, feasible, search_all,
};
