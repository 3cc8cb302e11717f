//! Executors hide the device: they run one step per model at a time and give the buffers back.

mod cpu;

pub use cpu::{CpuExecutor, Notify};

use tokenrouter_scheduler::ModelId;

use crate::step::Step;

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
}
