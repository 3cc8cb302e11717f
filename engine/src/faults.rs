//! What is done about devices that stop working.

use std::time::Duration;

use tokenrouter_scheduler::PeerLoss;

/// Tokens of a step that may take the step timeout once; see [`FaultOptions::step_timeout`].
pub const TIMED_TOKENS: usize = 64;

/// What is done about devices that stop working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultOptions {
    /// What becomes of requests that need a model which is lost.
    pub on_peer_loss: PeerLoss,
    /// How long a step of up to [`TIMED_TOKENS`] fed tokens may be in flight before its model counts as lost; a larger
    /// one gets as much more as it feeds. None: for ever.
    pub step_timeout: Option<Duration>,
}

impl Default for FaultOptions {
    /// Requests fail by name, a minute after their step was launched at the latest. No step of a machine that can
    /// serve takes as long: at a minute per 64 tokens a prompt of a thousand takes a quarter of an hour.
    fn default() -> Self {
        Self { on_peer_loss: PeerLoss::Fail, step_timeout: Some(Duration::from_secs(60)) }
    }
}
