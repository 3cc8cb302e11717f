//! A simulator: virtual devices and a virtual clock drive the very [`crate::Core`] that serves.
//!
//! The models are fake but strict: a token is a hash of the prefix, and the device checks through the page table
//! that every cache position the row reads was computed for that prefix, so a wrong watermark, a wrong page or a
//! reused page ends the run. The answer of a
//! request therefore depends on its prompt, its route and its seed alone, and [`reference()`] computes it without
//! any scheduler: whatever the latencies, limits, cancels and faults, [`check`] compares the two.
//!
//! [`ClosedLoop`] is the setting of the throughput model instead: requests that never end over devices without jitter,
//! to compare `Core` under a policy with exact values; [`ChangingLoop`] has the same devices and changes under way, to
//! see what the online planner makes of it.
//!
//! A [`Scenario`] is made from a seed; the same seed replays the same run, event for event.

mod changing;
mod check;
mod closed;
mod coverage;
mod device;
mod devices;
mod matrix;
mod model;
mod outage;
#[cfg(test)]
mod planted;
mod random;
mod random_policy;
mod random_router;
mod reference;
mod route;
mod run;
mod scenario;
pub mod serving;
mod shadow;

pub use changing::{ChangingLoop, ChangingOutcome, Moment, Phase};
pub use check::check;
pub use closed::{ClosedLoop, ClosedOutcome};
pub use coverage::{Coverage, Seen};
pub use device::DeviceSpec;
pub use matrix::MatrixRouter;
pub use model::{FAKE_VOCAB, fake_result};
pub use outage::Outage;
pub use random::Random;
pub use random_policy::random_policy;
pub use random_router::RandomRouter;
pub use reference::reference;
pub(crate) use reference::{Reference, Say};
pub use route::{RouteKind, SimRoute};
pub use run::{Outcome, SimError, Stream, run};
pub use scenario::{Action, Scenario, SimRequest, What};
