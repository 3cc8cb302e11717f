//! The conformance kit: every router must pass [`check`], the built-in ones and anyone's.
//!
//! It looks for what would make an answer depend on the schedule (hidden state, the order or grouping of rows, the
//! request's name), for destinations out of reach, and for routers that circle without committing a token.

use crate::config::NewRequest;
use crate::event::{FinishReason, MAX_HEADS, Signals};
use crate::ids::{MAX_MODELS, ModelId, ModelSet, RequestId};
use crate::router::{Payload, ReceiveRow, RouteRow, Router, StepView, Threshold, Verdict, Visit};
use crate::sim::{FAKE_VOCAB, Random, Stream, reference};
use std::fmt;

/// Batches of random rows per check.
const BATCHES: usize = 60;
/// Requests walked from prompt to end.
const WALKS: u64 = 40;

/// A rule of the router contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The entry is in the reach and the reach within the models.
    Reach,
    /// Every destination is in the reach.
    Destinations,
    /// Equal rows give equal answers, on one instance and on two.
    Determinism,
    /// A row's answer depends on no other row, on no order, no grouping and no request name.
    Independence,
    /// What `receive` needs is in the payload, and it leaves the count of committed tokens alone.
    Payload,
    /// Some candidate is kept before long.
    Progress,
}

/// A rule that a router breaks, with an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

impl std::error::Error for Violation {}

fn require(rule: Rule, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { rule, detail: detail() }) }
}

/// Checks the routers that `factory` builds, for a system of `models` models. Every call must build an equal,
/// fresh router. The checks are seeded: they find the same violation every time.
pub fn check(factory: impl Fn() -> Box<dyn Router>, models: usize) -> Result<(), Violation> {
    let router = factory();
    check_reach(&*router, models)?;
    let mut random = Random::new(0x7e57);
    for _ in 0..BATCHES {
        for model in router.reach().iter() {
            let rows: Vec<RouteRow> =
                (0..random.size(1, 12)).map(|_| random_row(&mut random, model)).collect();
            let to = route(&*router, model, &rows);
            let (twin, peer) = (factory(), factory());
            check_batch(&*router, &*twin, model, &rows, &to)?;
            for (row, &to) in rows.iter().zip(&to).filter(|&(_, &to)| to != model) {
                check_handoff([&*router, &*twin, &*peer], row, to)?;
            }
        }
    }
    check_walks(&factory)
}

fn check_reach(router: &dyn Router, models: usize) -> Result<(), Violation> {
    let (entry, reach) = (router.entry(), router.reach());
    let detail = || format!("entry {entry:?} and reach {reach:?} with {models} models");
    let fits = models <= MAX_MODELS && reach.is_subset(ModelSet::first(models)) && reach.contains(entry);
    require(Rule::Reach, fits, detail)
}

fn check_batch(
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
fn check_handoff(
    [router, twin, peer]: [&dyn Router; 3],
    row: &RouteRow,
    to: ModelId,
) -> Result<(), Violation> {
    let sent = send(router, row, to);
    for (again, which) in [(send(router, row, to), "itself"), (send(twin, row, to), "a new router")] {
        require(Rule::Determinism, sent == again, || format!("{sent:?}, {which} {again:?} for {row:?}"))?;
    }
    let (verdict, payload) = sent;
    let kept = u32::from(verdict == Verdict::Keep);
    let arrival = ReceiveRow {
        request: row.request,
        model: to,
        position: row.position + kept,
        generated: row.generated + kept,
        threshold: row.threshold,
        seed: row.seed,
        choice: row.choice,
    };
    let (mut here, mut there) = (Visit::default(), Visit::default());
    router.receive(&arrival, row.model, &payload, &mut here);
    peer.receive(&arrival, row.model, &payload, &mut there);
    require(Rule::Payload, here == there, || format!("{here:?}, at another router {there:?} for {row:?}"))?;
    require(Rule::Payload, here.committed == 0, || format!("receive set committed to {}", here.committed))
}

/// Whole answers over fake models: alone on a fresh router, and again on one that has served many.
fn check_walks(factory: &impl Fn() -> Box<dyn Router>) -> Result<(), Violation> {
    let used = factory();
    for seed in 0..WALKS {
        for threshold in thresholds() {
            let request = NewRequest {
                prompt: vec![(seed % u64::from(FAKE_VOCAB)) as u32, 1, 2],
                max_new_tokens: 60,
                seed,
                threshold,
                ignore_eos: true,
                ..NewRequest::default()
            };
            let alone: Stream = reference(&request, &*factory(), &[]);
            let stuck = matches!(alone.reason, Some(FinishReason::Failed(_)));
            let detail = || {
                let (written, model) = (alone.tokens.len(), alone.writers.last());
                format!("threshold {threshold:?}: stuck after {written} tokens, the last by {model:?}")
            };
            require(Rule::Progress, !stuck, detail)?;
            let later = reference(&request, &*used, &[]);
            let detail =
                || format!("threshold {threshold:?}, seed {seed}: earlier requests change the answer");
            require(Rule::Determinism, alone == later, detail)?;
        }
    }
    Ok(())
}

fn thresholds() -> impl Iterator<Item = Option<Threshold>> {
    let values = [f32::NEG_INFINITY, -1.0, 0.0, 0.03, 0.5, 1.0, 2.0, f32::INFINITY];
    let numbers = values.into_iter().map(|v| Some(Threshold::Value(v)));
    [None, Some(Threshold::Always), Some(Threshold::Never)].into_iter().chain(numbers)
}

fn route(router: &dyn Router, model: ModelId, rows: &[RouteRow]) -> Vec<ModelId> {
    let mut to = vec![model; rows.len()];
    router.route(&StepView { model, rows }, &mut to);
    to
}

fn send(router: &dyn Router, row: &RouteRow, to: ModelId) -> (Verdict, Payload) {
    let mut payload = Payload::default();
    let verdict = router.send(row, to, &mut payload);
    (verdict, payload)
}

fn random_row(random: &mut Random, model: ModelId) -> RouteRow {
    let generated = random.range(0, 200) as u32;
    let limit = if random.chance(0.5) { random.range(0, 5) as u32 } else { u32::MAX };
    let mut scratch = [0; 16];
    if random.chance(0.5) {
        scratch.fill_with(|| random.bits() as u8);
    }
    RouteRow {
        request: RequestId::new(random.range(0, 50) as u32, random.range(0, 3) as u32),
        model,
        position: generated + random.range(1, 100) as u32,
        generated,
        candidate: random.range(0, u64::from(FAKE_VOCAB)) as u32,
        signals: random_signals(random),
        threshold: pick(random, &thresholds().collect::<Vec<_>>()),
        visit: Visit { committed: random.range(0, 6) as u32, limit, scratch },
        seed: random.bits(),
        choice: random.range(0, 3) as u32,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::{Fixed, RStitch, SignalSet, Single};
    use crate::sim::RandomRouter;
    use std::cell::Cell;

    const A: ModelId = ModelId(0);
    const B: ModelId = ModelId(1);

    #[test]
    fn the_builtin_routers_conform() {
        check(|| Box::new(Single::new(B)), 2).unwrap();
        for fraction in [0.0, 0.3, 1.0] {
            check(|| Box::new(Fixed::new(A, B, fraction)), 2).unwrap();
            check(|| Box::new(Fixed::new(B, A, fraction)), 3).unwrap();
        }
        for threshold in thresholds().flatten() {
            check(|| Box::new(RStitch::new(A, B, threshold)), 2).unwrap();
        }
        for seed in 0..5 {
            check(|| Box::new(RandomRouter::new(seed, 3, 0.7, 0.8)), 3).unwrap();
        }
    }

    /// One fault each.
    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        EntryOutside,
        Destination,
        Counter,
        Order,
        Name,
        Smuggle,
        Committed,
        Livelock,
    }

    struct Faulty {
        fault: Fault,
        calls: Cell<u32>,
    }

    impl Router for Faulty {
        fn name(&self) -> &str {
            "faulty"
        }
        fn signals(&self) -> SignalSet {
            SignalSet::ENTROPY
        }
        fn entry(&self) -> ModelId {
            if self.fault == Fault::EntryOutside { ModelId(2) } else { A }
        }
        fn reach(&self) -> ModelSet {
            ModelSet::first(2)
        }
        fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
            self.calls.set(self.calls.get() + 1);
            for (i, (row, to)) in step.rows.iter().zip(to).enumerate() {
                let uncertain = row.signals.entropy_norm > 0.5;
                *to = match self.fault {
                    Fault::Destination if row.signals.margin > 0.9 => ModelId(2),
                    Fault::Counter => ModelId(u8::from(self.calls.get() > 40)),
                    Fault::Order => ModelId((i % 2) as u8),
                    Fault::Name => ModelId((row.request.slot() % 2) as u8),
                    _ => ModelId(u8::from(uncertain)),
                };
            }
        }
        fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
            self.calls.set(row.candidate);
            if self.fault == Fault::Livelock || row.model == A { Verdict::Drop } else { Verdict::Keep }
        }
        fn receive(&self, _row: &ReceiveRow, _from: ModelId, _payload: &Payload, visit: &mut Visit) {
            match self.fault {
                Fault::Smuggle => visit.limit = self.calls.get(),
                Fault::Committed => visit.committed = 1,
                _ => {}
            }
        }
    }

    #[test]
    fn each_fault_is_found_under_its_rule() {
        let cases = [
            (Fault::None, None),
            (Fault::EntryOutside, Some(Rule::Reach)),
            (Fault::Destination, Some(Rule::Destinations)),
            (Fault::Counter, Some(Rule::Determinism)),
            (Fault::Order, Some(Rule::Independence)),
            (Fault::Name, Some(Rule::Independence)),
            (Fault::Smuggle, Some(Rule::Payload)),
            (Fault::Committed, Some(Rule::Payload)),
            (Fault::Livelock, Some(Rule::Progress)),
        ];
        for (fault, expected) in cases {
            let found = check(|| Box::new(Faulty { fault, calls: Cell::new(0) }), 2);
            assert_eq!(found.err().map(|v| v.rule), expected);
        }
    }
}
