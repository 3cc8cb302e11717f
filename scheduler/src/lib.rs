//! Scheduling and routing decisions of TokenRouter as a pure state machine: no I/O, no threads, no clock.
//!
//! [`Core`] owns the requests of one process and everything that is decided about them. Events and the time go in
//! ([`Core::submit`], [`Core::cancel`], [`Core::stop`], [`Core::complete`]), batches ([`Core::launch`],
//! [`Core::batch`]) and effects ([`Core::drain_effects`]) come out. One turn of the caller's loop is: deliver every
//! event that has happened, then call `launch` once, start the batches it names, and pass the effects on.
//!
//! [`router`] holds the trait that decides per token which model writes on, and the built-in routers;
//! [`conformance`] checks any router; [`sim`] drives the same `Core` over virtual devices.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod router;
pub mod sim;

mod config;
mod core;
mod event;
mod ids;
mod ledger;
mod pages;
mod policy;
mod queue;
mod request;
mod subserver;
mod walk;

pub use crate::config::{CompleteError, ConfigError, CoreConfig, ModelLimits, NewRequest, SubmitError};
pub use crate::core::{Core, Counters};
pub use crate::event::{
    Batch, Effect, FailKind, FinishReason, Row, RowFault, RowResult, Signals, TOP, Usage,
};
pub use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos, PAGE_TOKENS, PageId, RequestId, RouteId};
pub use crate::ledger::Terminals;
pub use crate::pages::PageCounts;
pub use crate::policy::{Decision, ModelView, Policy, decide};
pub use crate::router::{Router, Threshold};
