//! The built-in routers pass, and each fault is found under its rule.

use super::*;
use crate::ids::ModelId;
use crate::router::{
    Budget, Budgeted, Choice, EntryRow, Fixed, HeadKind, Mixture, ParamValue, Payload, Query, RStitch,
    ReachRow, ReceiveRow, Registry, RouterSpec, Scored, SignalSet, Single, Source, StepView, Verdict, Visit,
};
use crate::sim::RandomRouter;
use std::cell::Cell;

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);

fn registered(name: &str, models: usize, params: &[(&str, ParamValue)]) -> Box<dyn Router> {
    let params = params.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Registry::builtin().build(name, &RouterSpec { models, params, ..RouterSpec::default() }).unwrap()
}

#[test]
fn the_builtin_routers_conform() {
    check(|| Box::new(Single::new(B)), 2).unwrap();
    for fraction in [0.0, 0.3, 1.0] {
        check(|| Box::new(Fixed::new(A, B, fraction)), 2).unwrap();
        check(|| Box::new(Fixed::new(B, A, fraction)), 3).unwrap();
    }
    for seed in 0..5 {
        check(|| Box::new(RandomRouter::new(seed, 3, 0.7, 0.8)), 3).unwrap();
    }
    for draw_at_admission in [false, true] {
        let weights = [[0.5, 0.5, 0.0], [1.0, 2.0, 3.0], [0.0, 0.2, 0.8]];
        for weights in weights {
            check(|| Box::new(Mixture::new(A, &weights, draw_at_admission).unwrap()), 3).unwrap();
        }
    }
}

#[test]
fn the_routers_with_a_threshold_conform() {
    for threshold in thresholds(&Single::new(A)).into_iter().flatten() {
        check(|| Box::new(RStitch::new(A, B, threshold)), 2).unwrap();
        for kind in HeadKind::OF_TOKENS {
            let scored = |peers| Box::new(Scored::new(kind, peers, 3, (threshold, Source::File)));
            check(|| scored([A, B]), 2).unwrap();
            check(|| scored([B, A]), 2).unwrap();
        }
        check(|| Box::new(Query::new([A, B], Choice::Score(threshold))), 2).unwrap();
        let by_head = Choice::Head { head: 2, threshold, source: Source::File };
        check(|| Box::new(Query::new([A, B], by_head)), 2).unwrap();
        check(|| Box::new(Query::new([B, A], by_head)), 3).unwrap();
    }
    check(|| Box::new(Query::new([B, A], Choice::Share(0.4))), 2).unwrap();
}

#[test]
fn every_registered_router_conforms_within_a_budget() {
    let names: Vec<String> = Registry::builtin().names().map(str::to_owned).collect();
    for name in &names {
        for share in [0.0, 0.25, 0.6] {
            let mut params = vec![("max_llm_fraction", ParamValue::Float(share))];
            match name.as_str() {
                "fixed" | "query" => params.push(("fraction", ParamValue::Float(0.5))),
                "single" | "me" => {}
                _ => params.push(("threshold", ParamValue::Float(0.4))),
            }
            check(|| registered(name, 2, &params), 2).unwrap_or_else(|e| panic!("{name} {share}: {e}"));
        }
    }
    let random = || Budgeted::new(Box::new(RandomRouter::new(3, 3, 0.7, 0.8)), Budget::new(0.3));
    check(|| Box::new(random()), 3).unwrap();
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
    StartOutside,
    TooSmallASet,
    BudgetBytes,
    StuckWhenSure,
    Allocates,
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
    fn entry_for(&self, row: &EntryRow) -> Option<ModelId> {
        let outside = self.fault == Fault::StartOutside && row.query_score.is_some_and(|s| s > 0.9);
        Some(if outside { ModelId(2) } else { self.entry() })
    }
    fn reach(&self) -> ModelSet {
        ModelSet::first(2)
    }
    fn may_visit(&self, row: &ReachRow<'_>) -> ModelSet {
        let small = self.fault == Fault::TooSmallASet && row.generated == 50;
        if small { ModelSet::of(row.model) } else { self.reach() }
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        self.calls.set(self.calls.get() + 1);
        for (i, (row, to)) in step.rows.iter().zip(to).enumerate() {
            let uncertain = row.signals.entropy_norm > 0.5;
            *to = match self.fault {
                Fault::Destination if row.signals.margin > 0.9 => ModelId(2),
                Fault::Counter => ModelId((self.calls.get() % 2) as u8),
                Fault::Order => ModelId((i % 2) as u8),
                Fault::StuckWhenSure if row.signals.entropy_norm == 1.0 => ModelId(1 - row.model.0),
                Fault::Name => ModelId((row.request.slot() % 2) as u8),
                _ => ModelId(u8::from(uncertain)),
            };
        }
    }
    fn send(&self, row: &RouteRow, _to: ModelId, _payload: &mut Payload) -> Verdict {
        self.calls.set(row.candidate);
        let stuck = self.fault == Fault::StuckWhenSure && row.signals.entropy_norm == 1.0;
        if stuck || self.fault == Fault::Livelock || row.model == A { Verdict::Drop } else { Verdict::Keep }
    }
    fn receive(&self, _row: &ReceiveRow, _from: ModelId, _payload: &Payload, visit: &mut Visit) {
        match self.fault {
            Fault::Smuggle => visit.limit = self.calls.get(),
            Fault::Committed => visit.committed = 1,
            Fault::BudgetBytes => visit.scratch[13] = 1,
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
        (Fault::StartOutside, Some(Rule::Reach)),
        (Fault::TooSmallASet, Some(Rule::MayVisit)),
        (Fault::BudgetBytes, Some(Rule::Payload)),
        (Fault::StuckWhenSure, Some(Rule::Progress)),
    ];
    for (fault, expected) in cases {
        let found = check(|| Box::new(Faulty { fault, calls: Cell::new(0) }), 2);
        assert_eq!(found.err().map(|v| v.rule), expected);
    }
}

#[test]
fn an_allocation_in_a_call_is_found() {
    // The fake counter is the number of calls of `route`, which this fault makes look like an allocation.
    thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });
    struct Counting(Faulty);
    impl Router for Counting {
        fn name(&self) -> &str {
            "counting"
        }
        fn signals(&self) -> SignalSet {
            SignalSet::NONE
        }
        fn entry(&self) -> ModelId {
            A
        }
        fn reach(&self) -> ModelSet {
            ModelSet::first(2)
        }
        fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
            CALLS.set(CALLS.get() + u64::from(self.0.fault == Fault::Allocates));
            self.0.route(step, to);
        }
    }
    let checked = |fault| {
        let factory = || -> Box<dyn Router> { Box::new(Counting(Faulty { fault, calls: Cell::new(0) })) };
        check_allocations(factory, &|| CALLS.get()).err().map(|v| v.rule)
    };
    assert_eq!((checked(Fault::None), checked(Fault::Allocates)), (None, Some(Rule::Allocation)));
}
