//! The launch rules. Each takes the views and returns the models it wants to launch; liveness is added by the caller.

use super::table::{CountTable, Thresholds};
use super::view::ModelView;
use crate::ids::{MAX_MODELS, ModelId, ModelSet};

/// The models that pass `keep`.
pub(super) fn select(models: &[ModelView], keep: impl Fn(usize, &ModelView) -> bool) -> ModelSet {
    let chosen = models.iter().enumerate().filter(|(i, m)| keep(*i, m));
    chosen.map(|(i, _)| ModelId(i as u8)).collect()
}

/// Step-Sync (paper, Figure 4a): the next round starts when every batch of the last one has ended.
pub(super) fn step_sync(models: &[ModelView]) -> ModelSet {
    if models.iter().any(|m| m.busy) { ModelSet::EMPTY } else { select(models, |_, m| m.launchable()) }
}

/// Whether the queue of a model has reached its threshold. A queue that starts with a cut request, or that fills a
/// batch, has nothing to wait for.
fn reached(thresholds: &Thresholds, index: usize, model: &ModelView) -> bool {
    let threshold = thresholds.at(ModelId(index as u8), model.visitors);
    model.launchable() && (model.cut || model.full || model.ready >= threshold)
}

/// Model indices in order of increasing step time, index order while one of them is unknown. The first is the
/// base: the model that works while nothing else asks for the device, the small model of the paper.
fn by_step_time(models: &[ModelView]) -> ([usize; MAX_MODELS], usize) {
    let mut order = [0; MAX_MODELS];
    let count = models.len().min(MAX_MODELS);
    for (i, entry) in order.iter_mut().enumerate() {
        *entry = i;
    }
    if models.iter().all(|m| m.step.is_some()) {
        order[..count].sort_unstable_by_key(|&i| (models[i].step, i));
    }
    (order, count)
}

/// Exclusive(K), Model-Sync (Figure 4b) with a threshold: one model at a time. Another model than the base runs
/// when its queue has reached K or the base has nothing to do; between two runs of the base each of them runs at
/// most once, so that requests that never leave a model cannot keep the device from the base.
pub(super) fn exclusive(k: &Thresholds, models: &[ModelView]) -> ModelSet {
    if models.iter().any(|m| m.busy) {
        return ModelSet::EMPTY;
    }
    let (order, count) = by_step_time(models);
    let Some((&base, peers)) = order[..count].split_first() else { return ModelSet::EMPTY };
    let waiting = models[base].ready > 0;
    let may_run = |&&i: &&usize| {
        let had_its_turn = models[i].last_launch > models[base].last_launch;
        if waiting { reached(k, i, &models[i]) && !had_its_turn } else { models[i].launchable() }
    };
    // Who has waited longest for its turn first, so that peers alternate.
    let peer = peers.iter().filter(may_run).min_by_key(|&&i| models[i].last_launch);
    match peer {
        Some(&i) => ModelSet::of(ModelId(i as u8)),
        None if waiting => ModelSet::of(ModelId(base as u8)),
        None => ModelSet::EMPTY,
    }
}

/// Delayed batching (section 4.2): a model launches when its queue has reached its threshold. With `hold` the base
/// also waits for a batch that is about to send it more than it has (see [`worth_waiting`]); beside a peer that runs
/// or is about to launch, the base needs `beside` ready requests.
pub(super) fn delayed(b: &Thresholds, hold: bool, beside: &CountTable, models: &[ModelView]) -> ModelSet {
    let (order, count) = by_step_time(models);
    let Some(&base) = order[..count].first() else { return ModelSet::EMPTY };
    let wanted = select(models, |i, m| reached(b, i, m));
    let view = &models[base];
    let base_set = ModelSet::of(ModelId(base as u8));
    if !wanted.contains(ModelId(base as u8)) || view.cut || view.full {
        return wanted;
    }
    let peer = |j: usize| j != base && (models[j].busy || wanted.contains(ModelId(j as u8)));
    let shares = (0..count).any(peer);
    let too_few = shares && view.ready < beside.at(view.visitors);
    let holds =
        hold && (0..count).any(|j| j != base && models[j].busy && worth_waiting(models, base, j, 1.0));
    if too_few || holds { wanted.without(base_set) } else { wanted }
}

/// Lookahead: no threshold anywhere. A model launches unless a peer that runs, or launches in this very call, makes
/// waiting worth it. Models are decided in order of increasing step time.
pub(super) fn lookahead(alpha: f64, models: &[ModelView]) -> ModelSet {
    let (order, count) = by_step_time(models);
    let mut wanted = ModelSet::EMPTY;
    for &i in &order[..count] {
        let view = &models[i];
        let counts = |j: usize| j != i && (models[j].busy || wanted.contains(ModelId(j as u8)));
        let waits = || (0..count).any(|j| counts(j) && worth_waiting(models, i, j, alpha));
        if view.launchable() && (view.cut || view.full || !waits()) {
            wanted.insert(ModelId(i as u8));
        }
    }
    wanted
}

/// Whether idle model `i` gains by waiting for the end of the batch of `j`: the requests expected from `j`, each of
/// which would otherwise wait out the rest of the batch of `i`, against the waiters of `i`, each of which waits for
/// `j` (scheduling study, section 5). A prediction that is missing says no.
///
/// For a batch in flight the answer can only turn to yes as time passes, so a decision between two events would
/// never launch what the event did not.
fn worth_waiting(models: &[ModelView], i: usize, j: usize, alpha: f64) -> bool {
    let (Some(own), Some(rest)) = (models[i].ends_in, models[j].ends_in) else { return false };
    if rest >= own {
        return false;
    }
    let gain = alpha * models[j].sends[i] * (own - rest) as f64;
    gain > models[i].ready as f64 * rest as f64
}
