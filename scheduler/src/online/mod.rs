//! What a route learns from the requests it serves: a threshold for a share, and what the deployment may still spend.
//!
//! Both are off unless configured, and both act only when a request is submitted, by fixing its threshold and its
//! budget (design rule 6). What they fix is reported with the answer, so a request replays exactly from its seed and
//! its terms, whatever was learned before or after.

mod calibrator;
mod purse;
mod sketch;

pub use calibrator::Calibrator;
pub use purse::Purse;
