//! When to launch: a pure function of a small view of the system.

use crate::ids::{ModelId, ModelSet};

/// The launch rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Launch whatever is ready on an idle model (threshold 1).
    #[default]
    Eager,
}

/// What a policy sees of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelView {
    /// Requests in its queue.
    pub ready: usize,
    /// Whether a batch is in flight.
    pub busy: bool,
    /// Whether it has been idle with a ready request for the guard time.
    pub overdue: bool,
}

impl ModelView {
    fn launchable(&self) -> bool {
        !self.busy && self.ready > 0
    }
}

/// Which models launch now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// All of them.
    pub launch: ModelSet,
    /// Those that launch only because the guard time has passed.
    pub forced: ModelSet,
}

/// Decides for all models at once; `models[i]` is model `i`.
pub fn decide(policy: Policy, models: &[ModelView]) -> Decision {
    let wanted = match policy {
        Policy::Eager => select(models, ModelView::launchable),
    };
    keep_alive(wanted, models)
}

/// Liveness, whatever the policy wants: a model past the guard launches, and if nothing would run, everything that
/// can launch does.
fn keep_alive(wanted: ModelSet, models: &[ModelView]) -> Decision {
    let launchable = select(models, ModelView::launchable);
    let overdue = select(models, |m| m.launchable() && m.overdue);
    let launch = wanted.union(overdue);
    if launch.is_empty() && !models.iter().any(|m| m.busy) {
        return Decision { launch: launchable, forced: ModelSet::EMPTY };
    }
    Decision { launch, forced: overdue.without(wanted) }
}

fn select(models: &[ModelView], keep: impl Fn(&ModelView) -> bool) -> ModelSet {
    let chosen = models.iter().enumerate().filter(|(_, m)| keep(m));
    chosen.map(|(i, _)| ModelId(i as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(ready: usize, busy: bool, overdue: bool) -> ModelView {
        ModelView { ready, busy, overdue }
    }

    fn set(models: &[u8]) -> ModelSet {
        models.iter().map(|&m| ModelId(m)).collect()
    }

    #[test]
    fn eager_launches_every_idle_model_with_work() {
        let models =
            [view(1, false, false), view(5, true, false), view(0, false, false), view(9, false, true)];
        assert_eq!(decide(Policy::Eager, &models), Decision { launch: set(&[0, 3]), forced: set(&[]) });
        assert_eq!(decide(Policy::Eager, &[view(0, false, false)]), Decision::default());
    }

    #[test]
    fn if_nothing_would_run_everything_launches() {
        let idle = [view(1, false, false), view(0, false, false), view(2, false, false)];
        assert_eq!(keep_alive(ModelSet::EMPTY, &idle).launch, set(&[0, 2]));
        let one_busy = [view(1, false, false), view(0, true, false)];
        assert_eq!(keep_alive(ModelSet::EMPTY, &one_busy).launch, ModelSet::EMPTY);
    }

    #[test]
    fn past_the_guard_a_model_launches_and_is_counted() {
        let models = [view(1, false, true), view(3, true, true), view(0, false, true)];
        assert_eq!(keep_alive(ModelSet::EMPTY, &models), Decision { launch: set(&[0]), forced: set(&[0]) });
        assert_eq!(keep_alive(set(&[0]), &models), Decision { launch: set(&[0]), forced: set(&[]) });
    }
}
