//! Models that are lost and come back, as the rank loop sees it.

use super::coverage::{Coverage, Seen};
use super::random::Random;
use super::scenario::Scenario;
use crate::config::PeerLoss;
use crate::core::Core;
use crate::ids::{MAX_MODELS, ModelId, ModelSet, Nanos};

/// A model is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When.
    pub at: Nanos,
    /// Which.
    pub model: ModelId,
    /// When it may come back, once its step in flight has ended; never, if none.
    pub back: Option<Nanos>,
}

/// In a quarter of the scenarios models are lost; half of them come back.
pub(super) fn random_outages(seed: u64, models: usize) -> (PeerLoss, Vec<Outage>, Option<Nanos>) {
    let mut random = Random::new(seed ^ 0x0705_7001);
    let on_loss = if random.chance(0.5) { PeerLoss::Continue } else { PeerLoss::Fail };
    if !random.chance(0.25) {
        return (on_loss, Vec::new(), None);
    }
    let outage = |random: &mut Random| {
        let at = 10 * random.range(0, 1_500);
        let model = ModelId(random.range(0, models as u64 - 1) as u8);
        Outage { at, model, back: random.chance(0.5).then(|| at + 10 * random.range(0, 500)) }
    };
    let mut outages: Vec<Outage> = (0..random.size(0, 3)).map(|_| outage(&mut random)).collect();
    outages.sort_by_key(|o| o.at);
    let step_timeout = random.chance(0.5).then(|| 10 * random.range(20, 200));
    (on_loss, outages, step_timeout)
}

/// What is down, and until when.
#[derive(Default)]
pub(super) struct Outages {
    next: usize,
    /// Per model: not regained before this; never, if none.
    back: [Option<Nanos>; MAX_MODELS],
}

impl Outages {
    /// Loses what is due, and regains what can be: at the end of a turn's events.
    pub(super) fn turn(&mut self, scenario: &Scenario, core: &mut Core, now: Nanos, seen: &mut Coverage) {
        let models = ModelSet::first(scenario.devices.len());
        for model in models.iter() {
            let late = |since: Nanos| scenario.step_timeout.is_some_and(|t| now >= since.saturating_add(t));
            if core.batch(model).is_some_and(|batch| late(batch.launched_at)) {
                self.lose(core, now, model, Some(now), seen);
            }
        }
        while let Some(&outage) = scenario.outages.get(self.next).filter(|o| o.at <= now) {
            self.next += 1;
            self.lose(core, now, outage.model, outage.back, seen);
        }
        for model in core.lost().iter() {
            if self.back[model.index()].is_some_and(|back| back <= now) && core.regain(now, model) {
                seen.add(Seen::Regained, 1);
            }
        }
    }

    fn lose(
        &mut self,
        core: &mut Core,
        now: Nanos,
        model: ModelId,
        back: Option<Nanos>,
        seen: &mut Coverage,
    ) {
        let busy = core.batch(model).is_some();
        let taken = core.lose(now, model);
        for other in taken.iter() {
            // Those that are lost only because of this one come back with its device.
            self.back[other.index()] = Some(now);
        }
        self.back[model.index()] = back;
        seen.note(if busy { Seen::LostBusy } else { Seen::LostIdle }, taken.contains(model));
        seen.add(Seen::LostBeside, taken.without(ModelSet::of(model)).len() as u64);
    }

    /// When something of this happens next.
    pub(super) fn next_time(&self, scenario: &Scenario, core: &Core, now: Nanos) -> Option<Nanos> {
        let models = ModelSet::first(scenario.devices.len());
        let flights = models.iter().filter_map(|model| Some(core.batch(model)?.launched_at));
        let timeouts = flights.filter_map(|since| Some(since.saturating_add(scenario.step_timeout?)));
        let backs = core.lost().iter().filter_map(|model| self.back[model.index()]).filter(|&at| at > now);
        let outage = scenario.outages.get(self.next).map(|o| o.at);
        timeouts.chain(backs).chain(outage).min()
    }
}
