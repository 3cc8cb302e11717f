//! The demo pair over an executor that hangs and breaks when a test says so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokenrouter_engine::executor::Executor;
use tokenrouter_engine::step::Step;
use tokenrouter_engine::{Command, EngineConfig, EngineHandle};
use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::{ModelId, ModelSet};

/// What the test decides.
#[derive(Default)]
struct Orders {
    /// Steps of these models do not end.
    hung: ModelSet,
    held: VecDeque<Box<Step>>,
    broken: Vec<ModelId>,
}

/// The test's hand on the executor.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Orders>>);

impl Faults {
    /// Steps of the model run, and do not come back.
    pub fn hang(&self, model: ModelId) {
        self.orders(|orders| orders.hung.insert(model));
    }

    /// They come back, late.
    pub fn release(&self, engine: &EngineHandle, model: ModelId) {
        self.orders(|orders| orders.hung = orders.hung.without(ModelSet::of(model)));
        wake(engine);
    }

    /// The model takes no step any more; the one in flight comes back whenever it does.
    pub fn kill(&self, engine: &EngineHandle, model: ModelId) {
        self.orders(|orders| orders.broken.push(model));
        wake(engine);
    }

    /// Whether a step of the model is being kept.
    pub fn holds(&self, model: ModelId) -> bool {
        self.orders(|orders| orders.held.iter().any(|step| step.model == model))
    }

    fn orders<T>(&self, act: impl FnOnce(&mut Orders) -> T) -> T {
        act(&mut self.0.lock().expect("orders"))
    }
}

/// A command for nobody: the loop looks again.
fn wake(engine: &EngineHandle) {
    engine.send(Command::Cancel(u64::MAX)).expect("the engine runs");
}

struct Faulty {
    inner: Box<dyn Executor>,
    faults: Faults,
}

impl Executor for Faulty {
    fn buffers(&mut self, model: ModelId) -> Box<Step> {
        self.inner.buffers(model)
    }

    fn launch(&mut self, step: Box<Step>) {
        self.inner.launch(step);
    }

    fn poll(&mut self) -> Option<Box<Step>> {
        let late = self.faults.orders(|orders| {
            let hung = orders.hung;
            let at = orders.held.iter().position(|step| !hung.contains(step.model))?;
            orders.held.remove(at)
        });
        if late.is_some() {
            return late;
        }
        while let Some(step) = self.inner.poll() {
            let model = step.model;
            let step = self.faults.orders(|orders| {
                if orders.hung.contains(model) {
                    orders.held.push_back(step);
                    return None;
                }
                Some(step)
            });
            if step.is_some() {
                return step;
            }
        }
        None
    }

    fn recycle(&mut self, step: Box<Step>) {
        self.inner.recycle(step);
    }

    fn broken(&mut self) -> Option<(ModelId, String)> {
        let broken = self.faults.orders(|orders| orders.broken.pop());
        broken.map(|model| (model, "killed by a test".to_owned())).or_else(|| self.inner.broken())
    }

    fn abandon(&mut self, model: ModelId, why: &str) {
        self.inner.abandon(model, why);
    }

    fn must_poll(&self) -> bool {
        self.inner.must_poll()
    }
}

/// Starts it.
pub fn start(config: &EngineConfig) -> (EngineHandle, Faults) {
    let faults = Faults::default();
    let mine = faults.clone();
    let wrap = |inner| Box::new(Faulty { inner, faults: mine }) as Box<dyn Executor>;
    let engine = tokenrouter_engine::start_wrapped(config, &Registry::builtin(), Box::new(|| ()), wrap);
    (engine.expect("the demo pair starts"), faults)
}
