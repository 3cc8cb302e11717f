//! What happened along the way; a test over many seeds asserts that nothing is missing.

use super::scenario::What;
use crate::core::standing::Standing;
use std::fmt;

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Something that can happen in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Seen { $($(#[$doc])* $name,)* }

        impl Seen {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

seen! {
    /// A turn.
    Turn,
    /// A request refused because the queue was full.
    Refused,
    /// A turn in which several models completed together.
    Simultaneous,
    /// A row cut by a token limit.
    CutRow,
    /// A turn that ended with pages deferred.
    Deferred,
    /// A turn that ended with pages cached.
    Cached,
    /// A step that failed as a whole.
    FailedStep,
    /// A step of a model that had died.
    DeadStep,
    /// A step that took hundreds of times longer.
    Stall,
    /// A model lost while no step of it was in flight.
    LostIdle,
    /// A model lost with a step in flight.
    LostBusy,
    /// A model lost with another, which holds their devices.
    LostBeside,
    /// An abandoned step that ended.
    LateStep,
    /// A model that came back.
    Regained,
    /// A request refused because it would start at a lost model.
    LostRefused,
    /// A request that failed because it needed a lost model.
    LostFailed,
    /// A request for which others wrote in the place of a lost model.
    Degraded,
    /// Such a request that ended by itself.
    DegradedEnded,
    /// A launch that only the guard made.
    GuardLaunch,
    /// A preemption.
    Preemption,
    /// A request preempted as often as is allowed.
    PreemptedTwice,
    /// A token of a prompt found in a cache.
    CachedToken,
    /// A cancel or stop that came too early or too late.
    EndedNothing,
    /// A client left while its request waited for the first time.
    VanishedWaiting,
    /// A client left while its request was in a queue.
    VanishedReady,
    /// A client left while its request was in a batch.
    VanishedRunning,
    /// A client left while its request was pending at a model that it had visited.
    VanishedPending,
    /// A client left while its request waited after a preemption.
    VanishedPreempted,
    /// A client left while its request was cut in the middle of a chunk.
    VanishedCut,
    /// A stop of a request that waited for the first time.
    StoppedWaiting,
    /// A stop of a request in a queue.
    StoppedReady,
    /// A stop of a request in a batch.
    StoppedRunning,
    /// A stop of a request pending at a model that it had visited.
    StoppedPending,
    /// A stop of a request that waited after a preemption.
    StoppedPreempted,
    /// A stop of a request cut in the middle of a chunk.
    StoppedCut,
    /// The claimant of a page ended in the middle of a chunk that another row of its batch read.
    ClaimantEndedRead,
    /// The claimant of a page ended in the middle of a chunk, and another request waited for the page.
    ClaimantEndedAwaited,
    /// The claimant of a page was preempted in the middle of a chunk, and another request waited for the page.
    ClaimantPreempted,
}

/// How often each thing happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Coverage([u64; Seen::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Seen::ALL.len()])
    }
}

impl Coverage {
    /// How often it happened.
    pub fn of(&self, what: Seen) -> u64 {
        self.0[what as usize]
    }

    /// Adds the counts of another run.
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum += n);
    }

    pub(super) fn add(&mut self, what: Seen, times: u64) {
        self.0[what as usize] += times;
    }

    pub(super) fn note(&mut self, what: Seen, happened: bool) {
        self.add(what, u64::from(happened));
    }

    /// A request that stood so was ended by its client.
    pub(super) fn ended(&mut self, what: What, was: Standing) {
        use Seen::*;
        let [waiting, ready, running, pending, preempted, cut] = match what {
            What::Cancel => [
                VanishedWaiting,
                VanishedReady,
                VanishedRunning,
                VanishedPending,
                VanishedPreempted,
                VanishedCut,
            ],
            What::Stop { .. } => {
                [StoppedWaiting, StoppedReady, StoppedRunning, StoppedPending, StoppedPreempted, StoppedCut]
            }
        };
        let cases = [
            (waiting, was.waiting),
            (ready, was.ready),
            (running, was.running),
            (pending, was.pending),
            (preempted, was.preempted),
            (cut, was.cut),
            (ClaimantEndedRead, was.is_read),
            (ClaimantEndedAwaited, was.is_awaited),
        ];
        cases.into_iter().for_each(|(what, is_so)| self.note(what, is_so));
    }
}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(Seen::ALL.iter().map(|&s| (s, self.of(s)))).finish()
    }
}
