//! The performance simulator: the very [`crate::Core`], policies and routers over virtual devices, measured.
//!
//! A [`ServingSpec`] says which devices there are (step times, jitter, contention, failures), who asks what when
//! (closed loops, Poisson arrivals, bursts, conversations, recorded traces) and what clients do to their requests;
//! [`serve`] runs it on a virtual clock and returns a [`Report`]. Everything is drawn from one seed by name (the n-th
//! step of a model, the k-th request of a conversation), so that two policies are compared on the same draws.
//!
//! The strict devices of [`super::run()`] check every cache position; these only take time, which makes them fast.
//! Invariants are checked all the same: [`crate::Core::audit`] after every event on demand, and at the end one
//! terminal per request and every page back.

mod agenda;
mod clients;
mod device;
mod histogram;
mod phase;
mod replay;
mod report;
mod run;
mod source;
mod spec;

pub use histogram::{Histogram, Summary};
pub use phase::{Phase, SwitchRouter};
pub use replay::ReplayRouter;
pub use report::{ModelReport, Report, RouteReport};
pub use run::serve;
pub use spec::{
    Arrivals, Change, ChangeKind, ClientFaults, Length, RunLength, ServingDevice, ServingSpec, TraceRequest,
    Workload,
};
