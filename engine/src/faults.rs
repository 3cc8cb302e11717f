//! What is done about devices that stop working.

use std::time::Duration;

use tokenrouter_scheduler::{Nanos, PeerLoss};

/// Tokens of a step that may take the step timeout once; see [`FaultOptions::step_timeout`].
pub const TIMED_TOKENS: usize = 64;
/// How much longer the first step of a model may take: its weights may still be on the disk.
pub(crate) const COLD: Nanos = 10;
/// After which a step counts as stalled that may take for ever.
const STALL: Nanos = 60_000_000_000;

/// What is done about devices that stop working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultOptions {
    /// What becomes of requests that need a model which is lost.
    pub on_peer_loss: PeerLoss,
    /// How long a step of up to [`TIMED_TOKENS`] fed tokens may be in flight before its model counts as lost; a larger
    /// one gets as much more as it feeds, and the first one of a model ten times as much. None: for ever.
    pub step_timeout: Option<Duration>,
}

impl Default for FaultOptions {
    /// Requests fail by name, a minute after their step was launched at the latest. No step of a machine that can
    /// serve takes as long: at a minute per 64 tokens a prompt of a thousand takes a quarter of an hour.
    fn default() -> Self {
        Self { on_peer_loss: PeerLoss::Fail, step_timeout: Some(Duration::from_secs(60)) }
    }
}

impl FaultOptions {
    /// How long a step of so many fed tokens may take; none: for ever.
    pub(crate) fn limit(&self, fed: usize) -> Option<Nanos> {
        let once = Nanos::try_from(self.step_timeout?.as_nanos()).unwrap_or(Nanos::MAX);
        Some(once.saturating_mul(pieces(fed)))
    }

    /// How long such a step may take until it counts as stalled: half of that, or a minute.
    pub(crate) fn patience(&self, fed: usize) -> Nanos {
        self.limit(fed).map_or(STALL.saturating_mul(pieces(fed)), |limit| limit / 2)
    }
}

/// How often the time of [`TIMED_TOKENS`] a step of so many fed tokens may take.
pub(crate) fn pieces(fed: usize) -> Nanos {
    fed.div_ceil(TIMED_TOKENS).max(1) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_may_take_longer_the_more_it_feeds() {
        let options = FaultOptions { step_timeout: Some(Duration::from_secs(3)), ..FaultOptions::default() };
        for (fed, seconds) in [(0, 3), (1, 3), (64, 3), (65, 6), (512, 24)] {
            assert_eq!(options.limit(fed), Some(seconds * 1_000_000_000), "{fed}");
            assert_eq!(options.patience(fed), seconds * 500_000_000, "{fed}");
        }
        let never = FaultOptions { step_timeout: None, ..options };
        assert_eq!((never.limit(9), never.patience(9)), (None, STALL));
        let ages = FaultOptions { step_timeout: Some(Duration::MAX), ..options };
        assert_eq!(ages.limit(1000), Some(Nanos::MAX));
    }
}
