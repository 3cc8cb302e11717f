//! The seam between a rank's loop and its device.

use std::sync::Arc;

use tokenrouter_scheduler::ModelId;

use super::record::{LaunchRecord, RankDone};
use crate::executor::Notify;

/// One rank's device with the parts of the models that it holds.
pub(crate) trait RankDevice: Send {
    /// Starts this rank's part of a step and returns at once. Records come in ascending sequence; one step per model is
    /// in flight. What goes wrong comes back through [`Self::poll`].
    fn launch(&mut self, record: Arc<LaunchRecord>);

    /// The next part that has ended, if there is one. Never blocks.
    fn poll(&mut self) -> Option<RankDone>;

    /// Another rank of `model` has failed: the part in flight, which may wait for it, must end soon, as failed.
    fn abort(&mut self, model: ModelId, why: &str);

    /// Whether the end of parts must be asked for (events of a GPU), because nobody wakes the loop.
    fn polled(&self) -> bool;

    /// The device in words, for errors: `CUDA device 1`, `CPU rank 1`.
    fn name(&self) -> String;

    /// How a device that is not polled wakes its loop when a part has ended; said once, before the first launch.
    fn wake_by(&mut self, notify: Notify) {
        // A polled device wakes nobody.
        let _ = notify;
    }
}
