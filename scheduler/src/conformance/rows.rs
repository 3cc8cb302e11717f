//! Random rows, one call at a time.

use super::{Rule, Violation, require, thresholds};
use crate::event::{MAX_HEADS, Signals};
use crate::ids::{ModelId, RequestId};
use crate::router::{
    Budget, EntryRow, Payload, ROUTER_PAYLOAD, ROUTER_SCRATCH, ReceiveRow, RouteRow, Router, StepView,
    Verdict, Visit,
};
use crate::sim::{FAKE_VOCAB, Random};

/// Where requests start: within the reach, and equally on two routers.
pub(super) fn check_entry(
    random: &mut Random,
    router: &dyn Router,
    twin: &dyn Router,
) -> Result<(), Violation> {
    let row = EntryRow {
        position: random.range(1, 100) as u32,
        threshold: pick(random, &thresholds(router)),
        budget: random_budget(random),
        query_score: random.chance(0.8).then(|| random_signals(random).scores[0]),
        seed: random.bits(),
        choice: random.range(0, 3) as u32,
    };
    let entry = router.entry_for(&row);
    require(Rule::Reach, entry.is_none_or(|e| router.reach().contains(e)), || {
        format!("{entry:?} for {row:?}")
    })?;
    for (again, which) in [(router.entry_for(&row), "itself"), (twin.entry_for(&row), "a new router")] {
        require(Rule::Determinism, entry == again, || format!("{entry:?}, {which} {again:?} for {row:?}"))?;
    }
    Ok(())
}

pub(super) fn check_batch(
    router: &dyn Router,
    other: &dyn Router,
    model: ModelId,
    rows: &[RouteRow],
    to: &[ModelId],
) -> Result<(), Violation> {
    let reach = router.reach();
    for (row, &to) in rows.iter().zip(to) {
        require(Rule::Destinations, reach.contains(to), || format!("{to} for {row:?}"))?;
    }
    let again = route(router, model, rows);
    require(Rule::Determinism, again == to, || format!("first {to:?}, then {again:?} for {rows:?}"))?;
    let fresh = route(other, model, rows);
    require(Rule::Determinism, fresh == to, || format!("{to:?}, a new router {fresh:?} for {rows:?}"))?;

    let alone: Vec<ModelId> = rows.iter().flat_map(|row| route(router, model, &[*row])).collect();
    require(Rule::Independence, alone == to, || format!("{to:?} together, {alone:?} alone for {rows:?}"))?;
    let reversed: Vec<RouteRow> = rows.iter().rev().copied().collect();
    let mut backwards = route(router, model, &reversed);
    backwards.reverse();
    require(Rule::Independence, backwards == to, || {
        format!("{to:?}, in reverse {backwards:?} for {rows:?}")
    })?;
    let renamed: Vec<RouteRow> =
        rows.iter().map(|row| RouteRow { request: RequestId::new(7, 7), ..*row }).collect();
    let named = route(router, model, &renamed);
    require(Rule::Independence, named == to, || format!("the request's name matters for {rows:?}"))
}

/// `peer` has only ever received: what it knows of the sender is the payload.
pub(super) fn check_handoff(
    [router, twin, peer]: [&dyn Router; 3],
    row: &RouteRow,
    to: ModelId,
) -> Result<(), Violation> {
    let sent = send(router, row, to);
    for (again, which) in [(send(router, row, to), "itself"), (send(twin, row, to), "a new router")] {
        require(Rule::Determinism, sent == again, || format!("{sent:?}, {which} {again:?} for {row:?}"))?;
    }
    let (verdict, payload) = sent;
    let arrival = arrival(row, to, verdict);
    let (mut here, mut there) = (Visit::default(), Visit::default());
    router.receive(&arrival, row.model, &payload, &mut here);
    peer.receive(&arrival, row.model, &payload, &mut there);
    require(Rule::Payload, here == there, || format!("{here:?}, at another router {there:?} for {row:?}"))?;
    require(Rule::Payload, here.committed == 0, || format!("receive set committed to {}", here.committed))?;
    let untouched =
        payload.0[ROUTER_PAYLOAD..].iter().chain(&here.scratch[ROUTER_SCRATCH..]).all(|&b| b == 0);
    require(Rule::Payload, untouched || router.keeps_budgets(), || {
        format!("the last bytes belong to budgets: {payload:?}, {here:?}")
    })
}

pub(super) fn arrival(row: &RouteRow, to: ModelId, verdict: Verdict) -> ReceiveRow {
    let kept = u32::from(verdict == Verdict::Keep);
    ReceiveRow {
        request: row.request,
        model: to,
        position: row.position + kept,
        generated: row.generated + kept,
        threshold: row.threshold,
        seed: row.seed,
        choice: row.choice,
        budget: row.budget,
    }
}

pub(super) fn route(router: &dyn Router, model: ModelId, rows: &[RouteRow]) -> Vec<ModelId> {
    let mut to = vec![model; rows.len()];
    router.route(&StepView { model, rows }, &mut to);
    to
}

fn send(router: &dyn Router, row: &RouteRow, to: ModelId) -> (Verdict, Payload) {
    let mut payload = Payload::default();
    let verdict = router.send(row, to, &mut payload);
    (verdict, payload)
}

/// A row as the core may hand it over: the router's own bytes of the scratch hold anything, those of budgets are zero.
pub(super) fn random_row(random: &mut Random, router: &dyn Router, model: ModelId) -> RouteRow {
    let generated = random.range(0, 200) as u32;
    let limit = if random.chance(0.5) { random.range(0, 5) as u32 } else { u32::MAX };
    let mut scratch = [0; 16];
    if random.chance(0.5) {
        let own = if router.keeps_budgets() { scratch.len() } else { ROUTER_SCRATCH };
        scratch[..own].fill_with(|| random.bits() as u8);
    }
    RouteRow {
        request: RequestId::new(random.range(0, 50) as u32, random.range(0, 3) as u32),
        model,
        position: generated + random.range(1, 100) as u32,
        generated,
        candidate: random.range(0, u64::from(FAKE_VOCAB)) as u32,
        signals: random_signals(random),
        threshold: pick(random, &thresholds(router)),
        visit: Visit { committed: random.range(0, 6) as u32, limit, scratch },
        seed: random.bits(),
        choice: random.range(0, 3) as u32,
        budget: random_budget(random),
    }
}

fn random_budget(random: &mut Random) -> Option<Budget> {
    random.chance(0.5).then(|| Budget::from_millionths(random.range(0, 10) * 100_000))
}

/// Ordinary values, the ends of their ranges, and what broken logits would give.
fn random_signals(random: &mut Random) -> Signals {
    let unit = random.range(0, 1_000) as f32 / 1_000.0;
    let odd = [0.0, 1.0, -0.0, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let mut value = |usual: f32| if random.chance(0.2) { pick(random, &odd) } else { usual };
    Signals {
        lse: value(10.0 * unit),
        entropy: value(3.0 * unit),
        entropy_norm: value(unit),
        margin: value(1.0 - unit),
        scores: [(); MAX_HEADS].map(|()| value(unit)),
        top_ids: [1, 2, 3, 4, 5, 6, 7, 8],
        top_logits: [value(9.0); 8],
        top_len: random.range(0, 8) as u32,
    }
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.size(0, from.len() - 1)]
}
