//! Query-level routing: the whole answer by one model, and the other one does nothing.

use crate::drive::{A, Answer, B, by_head, config, fake, request, run, serve};
use tokenrouter_scheduler::router::{Budget, Choice, Query, ReachRow, SignalSet, Single};
use tokenrouter_scheduler::*;

fn answers(choice: Choice, requests: Vec<NewRequest>) -> Vec<ModelId> {
    let by = |answer: &crate::drive::Answer| {
        let (writer, other) = (answer.writers[0], ModelId(1 - answer.writers[0].0));
        assert!(answer.writers.iter().all(|&w| w == writer));
        let usage = &answer.usage;
        assert_eq!((usage.steps[other.index()], usage.prefill[other.index()], usage.handoffs), (0, 0, 0));
        writer
    };
    run(Box::new(Query::new([A, B], choice)), requests, &fake).iter().map(by).collect()
}

#[test]
fn a_score_at_the_threshold_goes_to_the_large_model_alone() {
    let scores = [0.0, 0.4f32.next_down(), 0.4, 0.9, f32::NAN];
    let with = |threshold| {
        let new = |&score: &f32| NewRequest { query_score: Some(score), threshold, ..request(3, 9) };
        answers(Choice::Score(Threshold::Value(0.4)), scores.iter().map(new).collect())
    };
    assert_eq!(with(None), [A, A, B, B, B]);
    assert_eq!(with(Some(Threshold::Value(0.95))), [A, A, A, A, B], "the request's own number");
    assert_eq!(with(Some(Threshold::Always)), [B; 5]);
    assert_eq!(with(Some(Threshold::Never)), [A; 5]);
}

#[test]
fn a_share_of_the_requests_goes_to_the_large_model() {
    for share in [0.0, 0.25, 1.0] {
        let mut large = 0;
        for block in 0..40 {
            let requests = (0..60).map(|i| request(60 * block + i, 1)).collect();
            large += answers(Choice::Share(share), requests).iter().filter(|&&m| m == B).count();
        }
        // Fixed draws; 0.035 is four standard deviations.
        assert!((large as f32 / 2_400.0 - share).abs() < 0.035, "{large} of 2400 for {share}");
    }
}

#[test]
fn without_its_score_a_request_is_refused_by_name() {
    let router = Query::new([A, B], Choice::Score(Threshold::Value(0.4)));
    let mut core = Core::new(crate::drive::config(2, Policy::Eager), vec![Box::new(router)]).unwrap();
    let bare = NewRequest { query_score: None, ..request(1, 3) };
    let error = core.submit(0, bare.clone()).unwrap_err();
    assert_eq!(error, SubmitError::NoQueryScore { route: RouteId(0) });
    assert!(error.to_string().contains("query_score"), "{error}");
    assert!(core.submit(0, NewRequest { threshold: Some(Threshold::Never), ..bare }).is_ok());
}

/// A head that says of the prompt what the request's client number is in tenths, and afterwards would always move.
fn judge(client: u64, tokens: &[u32], model: ModelId) -> RowResult {
    let usual = fake(client, tokens, model);
    let score = if tokens.len() > 3 { 1.0 } else { client as f32 / 10.0 };
    let scores = [score, f32::NAN, f32::NAN, f32::NAN];
    RowResult { signals: Signals { scores, ..usual.signals }, ..usual }
}

fn judged(threshold: Threshold, own: Option<Threshold>) -> Vec<Answer> {
    let requests = (0..10).map(|seed| NewRequest { threshold: own, ..request(seed, 20) }).collect();
    serve(&mut Core::new(config(2, Policy::Eager), vec![by_head(threshold)]).unwrap(), requests, &judge)
}

/// The small model's one candidate leaves no trace; the answer is the large model's own.
#[test]
fn a_head_decides_once_after_the_prompt_and_the_request_never_moves_again() {
    let alone = |model| {
        let requests = (0..10).map(|seed| request(seed, 20)).collect();
        let answers = run(Box::new(Single::new(model)), requests, &judge);
        answers.into_iter().map(|a| a.tokens).collect::<Vec<_>>()
    };
    let (small, large) = (alone(A), alone(B));
    assert!((0..10).all(|i| small[i] != large[i]));
    for (i, answer) in judged(Threshold::Value(0.4), None).iter().enumerate() {
        let (writer, tokens) = if i < 4 { (A, &small[i]) } else { (B, &large[i]) };
        assert!(answer.writers.iter().all(|&w| w == writer), "{i}: {:?}", answer.writers);
        assert_eq!(&answer.tokens, tokens, "{i}");
        let moved = u32::from(writer == B);
        assert_eq!((answer.usage.handoffs, answer.usage.discarded[0]), (moved, moved), "{i}");
        assert_eq!(answer.usage.steps[0], if moved == 1 { 1 } else { answer.tokens.len() as u32 }, "{i}");
    }
}

/// `always` is no classification: the large model starts, and the small one does nothing.
#[test]
fn words_go_to_one_model_without_asking_the_head() {
    for (standing, own) in [
        (Threshold::Value(0.4), Some(Threshold::Always)),
        (Threshold::Always, None),
        (Threshold::Never, Some(Threshold::Always)),
    ] {
        for answer in judged(standing, own) {
            assert!(answer.writers.iter().all(|&w| w == B));
            let usage = &answer.usage;
            assert_eq!((usage.steps[0], usage.prefill[0], usage.handoffs), (0, 0, 0), "{standing} {own:?}");
        }
    }
    for (standing, own) in [(Threshold::Value(0.0), Some(Threshold::Never)), (Threshold::Never, None)] {
        for answer in judged(standing, own) {
            assert!(answer.writers.iter().all(|&w| w == A));
            assert_eq!((answer.usage.steps[1], answer.usage.handoffs), (0, 0), "{standing} {own:?}");
        }
    }
    let writers =
        |own| judged(Threshold::Value(0.4), Some(own)).iter().map(|a| a.writers[0]).collect::<Vec<_>>();
    assert_eq!(writers(Threshold::Value(0.85)), [A, A, A, A, A, A, A, A, A, B], "the request's own number");
}

#[test]
fn the_other_model_is_open_only_until_the_head_has_spoken() {
    let usage = Usage::default();
    let router = by_head(Threshold::Value(0.4));
    let open = |model, generated, threshold, budget| {
        router.may_visit(&ReachRow {
            model,
            generated,
            threshold,
            budget: Budget::new(budget),
            max_new_tokens: 9,
            visit: Default::default(),
            usage: &usage,
        })
    };
    let (a, b, both) = (ModelSet::of(A), ModelSet::of(B), ModelSet::first(2));
    assert_eq!([open(A, 0, None, 1.0), open(A, 1, None, 1.0), open(B, 0, None, 1.0)], [both, a, b]);
    assert_eq!(open(A, 0, Some(Threshold::Never), 1.0), a);
    assert_eq!(open(A, 0, Some(Threshold::Value(0.9)), 1.0), both);
    assert_eq!(open(A, 0, None, 0.9), a, "the budget forbids the first token");
    let by_share = Query::new([A, B], Choice::Share(0.4));
    assert_eq!((by_share.signals(), router.signals()), (SignalSet::NONE, SignalSet::score(0)));
    assert_eq!((router.signals_at(A), router.signals_at(B)), (SignalSet::score(0), SignalSet::NONE));
}
