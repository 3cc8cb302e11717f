use std::collections::BTreeMap;

use tokenrouter_scheduler::router::{ParamValue, RouterSpec};
use tokenrouter_scheduler::sim::reference;
use tokenrouter_scheduler::{NewRequest, RequestId, Signals, Usage};

use super::*;

const SMALL: ModelId = ModelId(0);
const LARGE: ModelId = ModelId(1);

fn router() -> Margin {
    Margin::new(SMALL, LARGE, Threshold::Value(0.5)).with_stays(3, 8)
}

fn row(model: ModelId, margin: f32) -> RouteRow {
    RouteRow {
        request: RequestId::new(0, 0),
        model,
        position: 10,
        generated: 0,
        candidate: 5,
        signals: Signals { margin, ..Signals::default() },
        threshold: None,
        visit: Visit::default(),
        seed: 0,
        choice: 0,
        budget: None,
    }
}

fn destination(router: &Margin, row: RouteRow) -> ModelId {
    let mut to = [row.model];
    router.route(&StepView { model: row.model, rows: &[row] }, &mut to);
    to[0]
}

/// Routes the margins of an answer, one by one; gives what each became: the writer of the position, or a drop.
fn walk(router: &Margin, margins: &[(ModelId, f32)]) -> String {
    let (mut at, mut visit, mut trace) = (SMALL, Visit::default(), String::new());
    for &(model, margin) in margins {
        assert_eq!(model, at, "after {trace}");
        let row = RouteRow { visit, ..row(at, margin) };
        let to = destination(router, row);
        let mut payload = Payload::default();
        let dropped = to != at && router.send(&row, to, &mut payload) == Verdict::Drop;
        trace.push(match (dropped, at) {
            (true, _) => '-',
            (false, SMALL) => 's',
            (false, _) => 'L',
        });
        visit.committed += u32::from(!dropped);
        if to != at {
            let arrival = ReceiveRow {
                request: row.request,
                model: to,
                position: row.position,
                generated: row.generated,
                threshold: row.threshold,
                seed: row.seed,
                choice: row.choice,
                budget: row.budget,
            };
            visit = Visit::default();
            router.receive(&arrival, at, &payload, &mut visit);
            at = to;
        }
    }
    trace
}

#[test]
fn the_small_model_leaves_below_the_threshold_and_the_large_one_hands_back_at_it() {
    let router = router();
    for (margin, unsure) in [(0.0, true), (0.49, true), (f32::NAN, true), (0.5, false), (1.0, false)] {
        let expected = if unsure { LARGE } else { SMALL };
        assert_eq!(destination(&router, row(SMALL, margin)), expected, "{margin}");
        let at_the_end = Visit { limit: 1, ..Visit::default() };
        assert_eq!(destination(&router, RouteRow { visit: at_the_end, ..row(LARGE, margin) }), expected);
        let before_the_end = Visit { limit: 2, ..Visit::default() };
        assert_eq!(destination(&router, RouteRow { visit: before_the_end, ..row(LARGE, margin) }), LARGE);
    }
}

#[test]
fn stays_double_with_relapses_and_start_anew_after_patience() {
    const ASK: (ModelId, f32) = (SMALL, 0.1);
    const OK: (ModelId, f32) = (SMALL, 0.9);
    const LL: (ModelId, f32) = (LARGE, 0.9);
    const UNSURE: (ModelId, f32) = (LARGE, 0.1);
    let router = router();
    // One token, and back.
    assert_eq!(walk(&router, &[OK, ASK, LL, OK]), "s-Ls");
    // It hands back when the stay is over and it is confident, not before.
    assert_eq!(walk(&router, &[ASK, UNSURE, UNSURE, LL, OK]), "-LLLs");
    // Two confident tokens are fewer than the patience of three: the next stay is two tokens, then four, eight, eight.
    let relapses = [ASK, LL, OK, OK, ASK, LL, LL, ASK, LL, LL, LL, LL, OK, ASK];
    assert_eq!(walk(&router, &relapses), "-Lss-LL-LLLLs-");
    let long: Vec<_> = relapses.into_iter().chain([LL; 8]).chain([ASK]).chain([LL; 8]).chain([OK]).collect();
    assert_eq!(walk(&router, &long), "-Lss-LL-LLLLs-LLLLLLLL-LLLLLLLLs");
    // Three are enough.
    assert_eq!(walk(&router, &[ASK, LL, ASK, LL, LL, OK, OK, OK, ASK, LL, OK]), "-L-LLsss-Ls");
}

#[test]
fn the_words_leave_one_model_alone() {
    let usage = Usage::default();
    for own in [Threshold::Always, Threshold::Never, Threshold::Value(0.5)] {
        let router = Margin::new(SMALL, LARGE, own);
        let open = |model, threshold| {
            router.may_visit(&ReachRow {
                model,
                generated: 0,
                threshold,
                budget: None,
                max_new_tokens: 50,
                visit: Visit::default(),
                usage: &usage,
            })
        };
        for (word, model) in [(Threshold::Always, LARGE), (Threshold::Never, SMALL)] {
            let request = NewRequest {
                prompt: vec![1, 2, 3],
                max_new_tokens: 50,
                threshold: Some(word),
                ..NewRequest::default()
            };
            let answer = reference(&request, &router, &[]);
            assert_eq!(answer.writers, [model; 50], "{word} over {own}");
            assert_eq!(open(model, Some(word)), ModelSet::of(model));
        }
        assert_eq!(open(SMALL, Some(Threshold::Value(0.1))), ModelSet::first(2));
    }
}

fn build(params: &[(&str, ParamValue)], models: usize) -> Result<Box<dyn Router>, String> {
    let mut registry = Registry::builtin();
    register(&mut registry).expect("a new name");
    assert!(register(&mut registry).is_err(), "the name is taken now");
    let params: BTreeMap<_, _> = params.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let spec = RouterSpec { models, params, ..RouterSpec::default() };
    registry.build(NAME, &spec).map_err(|e| e.to_string())
}

#[test]
fn a_configuration_builds_it_and_mistakes_are_named() {
    use ParamValue::{Float, Int, Text};
    let good = [("threshold", Float(0.9)), ("patience", Int(0)), ("max_stay", Int(255))];
    let router = build(&good, 2).expect("good parameters");
    assert_eq!(router.name(), NAME);
    assert_eq!(router.terms().threshold, Some((Threshold::Value(0.9), Source::Config)));
    assert_eq!(build(&[], 2).expect("defaults").terms().threshold.map(|t| t.1), Some(Source::Published));
    let bad = [
        ("threshold", Float(1.5), "from 0 to 1"),
        ("threshold", Text("often".into()), "`always`"),
        ("patience", Float(2.5), "a whole number"),
        ("patience", Int(-1), "from 0 to 255"),
        ("max_stay", Int(0), "from 1 to 255"),
        ("max_stays", Int(3), "did you mean `max_stay`?"),
        ("peer", Int(0), "entry model itself"),
    ];
    for (key, value, expected) in bad {
        let error = build(&[(key, value)], 2).err().unwrap_or_default();
        assert!(error.contains("`margin`") && error.contains(expected), "{key}: {error:?}");
    }
    assert!(build(&[], 1).is_err_and(|e| e.contains("two models")));
}

#[test]
fn a_budget_binds_it_like_every_router() {
    let request = NewRequest { prompt: vec![4], max_new_tokens: 400, ..NewRequest::default() };
    let by_large = |params: &[(&str, ParamValue)]| {
        let answer = reference(&request, &*build(params, 2).expect("good parameters"), &[]);
        assert_eq!(answer.tokens.len(), 400);
        answer.writers.iter().filter(|&&w| w == LARGE).count()
    };
    // The fake models of the simulator are as often unsure as not: the large one gets more than half.
    assert!(by_large(&[]) > 200);
    assert_eq!(by_large(&[("max_llm_fraction", ParamValue::Float(0.2))]), 80);
}
