//! Ranks: one device and one loop each, driven by numbered launch records (DESIGN rule 9).

mod device;
mod record;

pub(crate) use device::RankDevice;
pub(crate) use record::{GraphKey, LaunchRecord, RankDone};
