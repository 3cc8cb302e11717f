//! Scheduling and routing decisions of TokenRouter as a pure state machine: no I/O, no threads, no clock.
//!
//! [`Core`] owns the requests of one process and everything that is decided about them. Events and the time go in
//! ([`Core::submit`], [`Core::cancel`], [`Core::stop`], [`Core::complete`]), batches ([`Core::launch`],
//! [`Core::batch`]) and effects ([`Core::drain_effects`]) come out. One turn of the caller's loop is: deliver every
//! event that has happened, then call `launch` once, start the batches it names, and pass the effects on.
//!
//! ```
//! use tokenrouter_scheduler::router::{Registry, RouterSpec};
//! use tokenrouter_scheduler::*;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//!
//! let router = Registry::builtin().build("r-stitch", &RouterSpec { models: 2, ..RouterSpec::default() })?;
//! let config = CoreConfig {
//!     models: vec![ModelLimits { max_batch_rows: 16, max_step_tokens: 256 }; 2],
//!     pages: 64,
//!     context_len: 512,
//!     max_waiting: 32,
//!     max_running: 16,
//!     eos_ids: vec![2],
//!     guard: 1_000_000_000,
//!     policy: Policy::default(),
//!     prefix_cache: true,
//!     reserve_pages: 2,
//!     planner: None,
//!     handoff: Handoff::default(),
//! };
//! let mut core = Core::new(config, vec![router])?;
//! let request = NewRequest { prompt: vec![5, 6, 7], max_new_tokens: 1, ..NewRequest::default() };
//! let id = core.submit(0, request)?;
//!
//! // One turn: decide, run what launched, deliver the results, read the effects.
//! assert!(core.launch(0).contains(ModelId(0)));
//! let row = core.batch(ModelId(0)).ok_or("no batch")?.rows[0];
//! assert_eq!(&core.tokens(id)[row.start as usize..][..row.len as usize], [5, 6, 7]);
//! core.complete(1_000, ModelId(0), &[RowResult { token: 9, ..RowResult::default() }])?;
//! let effects: Vec<Effect> = core.drain_effects().collect();
//! assert!(matches!(effects[0], Effect::Token { token: 9, .. }));
//! assert!(matches!(effects[1], Effect::Terminal { reason: FinishReason::Length, .. }));
//! # Ok(())
//! # }
//! ```
//!
//! [`router`] holds the trait that decides per token which model writes on, and the built-in routers;
//! [`conformance`] checks any router; [`sim`] drives the same `Core` over virtual devices; [`planner`] computes the
//! throughput of a launch rule.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod planner;
pub mod router;
pub mod sim;

mod config;
mod contention;
mod core;
mod effects;
mod estimate;
mod event;
mod ids;
mod ledger;
mod measured;
mod online;
mod pages;
mod pilot;
mod policy;
mod prefix;
mod queue;
mod request;
mod sharing;
mod subserver;
mod times;
mod walk;

pub use crate::config::{
    CompleteError, ConfigError, CoreConfig, Handoff, ModelLimits, NewRequest, PeerLoss, SubmitError,
};
pub use crate::core::{Core, Counters};
pub use crate::effects::DrainEffects;
pub use crate::event::{
    Batch, Effect, FailKind, FinishReason, MAX_HEADS, Row, RowFault, RowResult, Signals, TOP, Usage,
};
pub use crate::ids::{
    MAX_MODELS, ModelId, ModelIter, ModelSet, Nanos, PAGE_TOKENS, PageId, RequestId, RouteId,
};
pub use crate::ledger::Terminals;
pub use crate::measured::Measured;
pub use crate::online::{Calibrator, Purse};
pub use crate::pages::PageCounts;
pub use crate::pilot::{ModelStatus, PlannerConfig, PlannerStatus};
pub use crate::planner::{PlanJob, PlanReply};
pub use crate::policy::{
    CountTable, Decision, LatencyTable, ModelView, Plan, Policy, PolicyError, PolicyInputs, PolicySpec,
    SpecError, Thresholds, decide,
};
pub use crate::router::{Router, Threshold};
pub use crate::sharing::{Parts, Sharing, slowdown_beside};
pub use crate::times::{Spent, Times};
