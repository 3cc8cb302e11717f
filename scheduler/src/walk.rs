//! The walk: what becomes of a request after a candidate was sampled.
//!
//! A pure step over one request (route, send, commit, finish check, receive), separate from choosing and launching
//! steps: whoever has a candidate for the next position, from a step just run or remembered from an earlier one,
//! takes the same walk.

use crate::config::PeerLoss;
use crate::effects::Effects;
use crate::event::{FailKind, FinishReason};
use crate::ids::{ModelId, ModelSet, RequestId};
use crate::request::Request;
use crate::router::{Payload, ROUTER_PAYLOAD, ReceiveRow, RouteRow, Router, Verdict, Visit};

/// A request whose router drops this many candidates in a row fails instead of circling for ever.
pub(crate) const MAX_DROPS: u32 = 64;

/// What the walk needs to know about the route.
#[derive(Clone, Copy)]
pub(crate) struct Guide<'a> {
    pub(crate) router: &'a dyn Router,
    pub(crate) reach: ModelSet,
    pub(crate) eos_ids: &'a [u32],
    /// The model that budgets leave alone.
    pub(crate) entry: ModelId,
    /// Models that nobody can be sent to.
    pub(crate) lost: ModelSet,
    /// What becomes of those who would be.
    pub(crate) on_loss: PeerLoss,
}

/// Where the request goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stay,
    HandOver(ModelId),
    Finish(FinishReason),
}

/// Walks one candidate whose destination is known. Commits it to `request` and tells `effects`, unless it is
/// dropped; a dropped candidate leaves no trace but the account's count of it.
#[inline]
pub(crate) fn settle(
    guide: Guide<'_>,
    row: &RouteRow,
    to: ModelId,
    request: &mut Request,
    effects: &mut Effects,
) -> Outcome {
    let from = row.model;
    if !guide.reach.contains(to) {
        return Outcome::Finish(FinishReason::Failed(FailKind::OutOfReach { from, to }));
    }
    if to == from {
        return match commit(guide, row, request, effects) {
            Some(reason) => Outcome::Finish(reason),
            None => Outcome::Stay,
        };
    }
    if guide.lost.contains(to) && guide.on_loss == PeerLoss::Continue {
        return stay_instead(guide, row, to, request, effects);
    }
    let mut payload = Payload::default();
    if guide.router.send(row, to, &mut payload) == Verdict::Drop {
        request.account.discard(from);
        request.drops += 1;
        if request.drops >= MAX_DROPS {
            return Outcome::Finish(FinishReason::Failed(FailKind::NoProgress { drops: request.drops }));
        }
    } else if let Some(reason) = commit(guide, row, request, effects) {
        // Finish before handing over: the peer never sees a request that has ended.
        return Outcome::Finish(reason);
    }
    if guide.lost.contains(to) {
        return Outcome::Finish(FinishReason::Failed(FailKind::ModelLost { model: to }));
    }
    arrive(guide.router, row.request, (from, to), &payload, request);
    Outcome::HandOver(to)
}

/// The router sends the row to a lost model: it stays where it is, and its candidate with it, as far as its budget lets
/// this model write on.
fn stay_instead(
    guide: Guide<'_>,
    row: &RouteRow,
    to: ModelId,
    request: &mut Request,
    effects: &mut Effects,
) -> Outcome {
    request.account.degrade();
    if let Some(reason) = commit(guide, row, request, effects) {
        return Outcome::Finish(reason);
    }
    match row.model == guide.entry || allows_another(request, guide.entry) {
        true => Outcome::Stay,
        false => Outcome::Finish(FinishReason::Failed(FailKind::ModelLost { model: to })),
    }
}

/// Tokens of the answer by other models than the route's entry.
fn by_others(request: &Request, entry: ModelId) -> u32 {
    let usage = request.account.usage();
    usage.completion_tokens - usage.committed[entry.index()]
}

/// Whether the budget lets another model than the entry write the next token.
pub(crate) fn allows_another(request: &Request, entry: ModelId) -> bool {
    let others = u64::from(by_others(request, entry));
    request.budget.is_none_or(|budget| budget.allows(others, request.generated()))
}

/// The model that owned the request is lost: it arrives at another, without a message from there but the count that
/// budgets are kept by.
pub(crate) fn arrive_instead(
    router: &dyn Router,
    id: RequestId,
    (from, to): (ModelId, ModelId),
    entry: ModelId,
    request: &mut Request,
) {
    let mut payload = Payload::default();
    payload.0[ROUTER_PAYLOAD..].copy_from_slice(&by_others(request, entry).to_le_bytes());
    arrive(router, id, (from, to), &payload, request);
}

/// Commits the candidate and tells `effects`; why the request ends with it, if it does.
#[inline]
fn commit(
    guide: Guide<'_>,
    row: &RouteRow,
    request: &mut Request,
    effects: &mut Effects,
) -> Option<FinishReason> {
    request.commit(row.candidate, row.model);
    effects.token(row.request, request.client, row.candidate, row.model);
    finish_reason(guide.eos_ids, row.candidate, row.generated, request)
}

/// Whether the token just committed, written after `generated` others, ends the request.
#[inline]
fn finish_reason(eos_ids: &[u32], token: u32, generated: u32, request: &Request) -> Option<FinishReason> {
    if generated >= request.min_tokens {
        if !request.ignore_eos && eos_ids.contains(&token) {
            return Some(FinishReason::Eos(token));
        }
        if request.stop_ids.contains(&token) {
            return Some(FinishReason::StopId(token));
        }
    }
    (request.generated() >= request.max_new_tokens).then_some(FinishReason::Length)
}

/// The peer's side of a handoff: a fresh visit, and something to feed.
fn arrive(
    router: &dyn Router,
    id: RequestId,
    (from, to): (ModelId, ModelId),
    payload: &Payload,
    request: &mut Request,
) {
    let arrival = ReceiveRow {
        request: id,
        model: to,
        position: request.tokens.len() as u32,
        generated: request.generated(),
        threshold: request.threshold,
        seed: request.seed,
        choice: request.choice,
        budget: request.budget,
    };
    let mut visit = Visit::default();
    router.receive(&arrival, from, payload, &mut visit);
    // `committed` is the core's own count, whatever the router wrote there.
    request.visit = Visit { committed: 0, ..visit };
    request.account.handoff();
    request.ensure_suffix(to);
}
