//! Executors hide the device: they run one step per model at a time and give the buffers back.

mod cpu;
mod step;

pub use cpu::CpuModel;
pub(crate) use cpu::CpuRank;

use std::time::Duration;

use tokenrouter_scheduler::ModelId;

pub use crate::ranks::RankExecutor;
use crate::step::Step;

/// Wakes the loop that drives a device; called by other threads when something has ended.
pub type Notify = std::sync::Arc<dyn Fn() + Send + Sync>;

/// How long a loop sleeps at most while it must ask a device for the end of a step (DESIGN rule 7).
pub(crate) const POLL_WAIT: Duration = Duration::from_micros(50);

/// Lets short waits of this thread end when they say: by default Linux may add 50 microseconds, which is as much as
/// [`POLL_WAIT`].
pub(crate) fn wake_on_time() {
    #[cfg(target_os = "linux")]
    // SAFETY: the call reads two numbers and changes nothing but the timer slack of this thread, to one microsecond.
    // Without it waits are longer, so a failure needs no answer.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong) };
}

/// Why a step runs uncaptured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGraph {
    /// Nothing was captured.
    Off,
    /// Its tokens or rows fit no bucket.
    Size,
    /// Its attention is more than one wave.
    Attention,
    /// It scores tokens of prompts.
    Scores,
}

/// Steps that no captured graph could run, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ungraphed {
    /// More tokens or rows than the largest graph takes.
    pub size: u64,
    /// More attention than one wave of the device takes.
    pub attention: u64,
    /// Tokens of prompts to be scored.
    pub scores: u64,
}

/// Runs steps. One step per model is in flight at most.
pub trait Executor: Send {
    /// Empty buffers for the next step of `model`. Never called while its step is in flight.
    fn buffers(&mut self, model: ModelId) -> Box<Step>;

    /// Starts the step of `step.model`. A model that cannot run it gives the step back through `poll` with
    /// `failure` set, so that there is one way in which steps end.
    fn launch(&mut self, step: Box<Step>);

    /// The next finished step, if there is one. Its results are filled or its `failure` is set.
    fn poll(&mut self) -> Option<Box<Step>>;

    /// Takes back the buffers of a finished step.
    fn recycle(&mut self, step: Box<Step>);

    /// How many steps of `model` ran without a captured graph though there are some.
    fn ungraphed(&self, _model: ModelId) -> Ungraphed {
        Ungraphed::default()
    }

    /// The next model that can take no further step, and why; each is named once. Asked after every [`Self::poll`], before
    /// what that returned is delivered.
    fn broken(&mut self) -> Option<(ModelId, String)>;

    /// The step in flight of `model` was given up. It still comes back through [`Self::poll`] when it ends; parts of it that
    /// wait for one another need not wait any longer.
    fn abandon(&mut self, model: ModelId, why: &str);

    /// Whether a step is in flight whose end must be asked for, because nobody will wake the loop.
    fn must_poll(&self) -> bool;
}
