//! Query-level routing: the whole answer by one model, and the other one does nothing.

use crate::drive::{A, B, fake, request, run};
use tokenrouter_scheduler::router::{Choice, Query};
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
