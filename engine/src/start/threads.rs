//! The threads of models that do not say how many they want: one per core each, and the cores are shared.
//!
//! Whoever works while the others rest has all cores; when several work, each has its part. So a large model's step is
//! not bound to the cores that its weights would buy it, and a request alone gets the whole machine at every model.

use std::sync::Arc;

use tokenrouter_kernels::cpu::Cores;

use super::{EngineConfig, Hints};

/// Cores that this process may use.
pub(super) fn available() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// What the models of a deployment share.
pub(super) struct Sharing<'a> {
    config: &'a EngineConfig,
    hints: &'a Hints,
    cores: Arc<Cores>,
}

impl<'a> Sharing<'a> {
    pub(super) fn new(config: &'a EngineConfig, hints: &'a Hints) -> Self {
        Self { config, hints, cores: Cores::new(available()) }
    }

    /// The cores that a model shares with others; `None` where it has a number of threads or cores of its own.
    pub(super) fn of(&self, model: usize) -> Option<&Arc<Cores>> {
        let free = self.config.models[model].threads == 0 && self.hints.cores_of(model).is_empty();
        free.then_some(&self.cores)
    }
}
