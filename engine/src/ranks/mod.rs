//! Ranks: one device and one loop each, driven by numbered launch records (DESIGN rule 9).

mod checksum;
mod device;
mod executor;
pub(crate) mod placement;
mod record;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use device::RankDevice;
pub use executor::RankExecutor;
pub(crate) use executor::{Placed, Rank};
pub(crate) use record::{GraphKey, LaunchRecord, RankDone, Room};
