//! Times once more, by looking: after every event the simulator notes where each request stands, and when one ends, the
//! core's account of its time must be the sum of what was seen.

use crate::core::Core;
use crate::event::Usage;
use crate::ids::{ModelId, Nanos, RequestId};
use crate::times::{Spent, Times};

/// What was seen of one request.
#[derive(Clone, Copy, Default)]
struct Seen {
    submitted: Nanos,
    /// When it was looked at last, and the model and whether it was in a batch then; none while it waited.
    last: Nanos,
    at: Option<(ModelId, bool)>,
    /// The model that had it last.
    before: Option<ModelId>,
    visited: [bool; crate::ids::MAX_MODELS],
    handed_at: Option<Nanos>,
    times: Times,
    spent: Spent,
}

/// Everything that was seen, by client.
pub(super) struct Shadow {
    clients: Vec<Option<Seen>>,
}

impl Shadow {
    pub(super) fn new(clients: usize) -> Self {
        Self { clients: vec![None; clients] }
    }

    pub(super) fn submitted(&mut self, client: usize, now: Nanos) {
        self.clients[client] = Some(Seen { submitted: now, last: now, ..Seen::default() });
    }

    /// A token of the client came out of an event at `now`.
    pub(super) fn token(&mut self, client: usize, now: Nanos) {
        if let Some(seen) = &mut self.clients[client] {
            seen.times.first_token.get_or_insert(now - seen.submitted);
        }
    }

    /// Where everybody stands after an event at `now`. Between events nobody moves.
    pub(super) fn look(&mut self, core: &Core, ids: &[Option<RequestId>], now: Nanos) {
        for (seen, id) in self.clients.iter_mut().zip(ids) {
            let (Some(seen), Some(id)) = (seen, id) else { continue };
            seen.pass(now);
            let Some(standing) = core.standing(*id) else { continue };
            let owner = standing.owner.map(|owner| (owner, standing.running));
            let ran = seen.at.is_some_and(|(_, running)| running);
            // It leaves a batch for another model, or to be admitted again there.
            let leaves = owner.is_none_or(|(model, _)| seen.before.is_some_and(|b| b != model));
            if ran && leaves {
                seen.handed_at = Some(now);
            }
            if let Some((model, _)) = owner {
                seen.visited[model.index()] = true;
                seen.before = Some(model);
            }
            // A launch may admit a request and take its pages for another at once.
            if owner.is_some() || standing.preempted {
                seen.times.admitted.get_or_insert(now - seen.submitted);
            }
            seen.at = owner;
        }
    }

    /// The admission delays of a batch that a client of this order is in.
    pub(super) fn delays(&mut self, clients: &[usize], now: Nanos) -> Vec<Nanos> {
        let handed = |&client: &usize| self.clients[client].as_mut()?.handed_at.take();
        clients.iter().filter_map(handed).map(|at| now - at).collect()
    }

    /// The client's request ended at `now`: what does not fit, in words.
    pub(super) fn ended(&mut self, client: usize, now: Nanos, usage: &Usage) -> Result<(), String> {
        let Some(mut seen) = self.clients[client].take() else { return Err("it was never submitted".into()) };
        seen.pass(now);
        seen.times.finished = Some(now - seen.submitted);
        if (usage.times, usage.spent) == (seen.times, seen.spent) {
            return Ok(());
        }
        let Seen { times, spent, .. } = seen;
        Err(format!("its account says {:?} {:?}; seen were {times:?} {spent:?}", usage.times, usage.spent))
    }
}

impl Seen {
    /// Books the time since the last look.
    fn pass(&mut self, now: Nanos) {
        let passed = now - std::mem::replace(&mut self.last, now);
        let Some((owner, running)) = self.at else { return };
        let there = if running { &mut self.spent.compute_ns } else { &mut self.spent.queue_ns };
        there[owner.index()] += passed;
        for (model, pending) in self.spent.pending_ns.iter_mut().enumerate() {
            *pending += if self.visited[model] && model != owner.index() { passed } else { 0 };
        }
    }
}
