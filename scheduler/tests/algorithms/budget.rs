//! `max_llm_fraction`: what each algorithm does when it is spent.

use crate::drive::{A, B, algorithms, by_head, config, fake, request, run, scored, serve};
use tokenrouter_scheduler::router::{
    Budget, Budgeted, Choice, HeadKind, Mixture, Payload, Query, RStitch, RouteRow, SignalSet, StepView,
    Verdict,
};
use tokenrouter_scheduler::*;

fn within(share: f32, seed: u64, max: u32) -> NewRequest {
    NewRequest { max_llm_fraction: Some(share), ignore_eos: true, ..request(seed, max) }
}

fn writers(router: Box<dyn Router>, request: NewRequest) -> String {
    let answers = run(router, vec![request], &fake);
    answers[0].writers.iter().map(|&w| if w == A { 'a' } else { 'b' }).collect()
}

#[test]
fn the_large_model_writes_as_soon_as_it_may_and_no_sooner() {
    for kind in HeadKind::OF_TOKENS {
        let always = || scored(kind, Threshold::Always);
        assert_eq!(writers(always(), within(0.25, 1, 12)), "aaabaaabaaab");
        assert_eq!(writers(always(), within(0.5, 1, 6)), "ababab");
        assert_eq!(writers(always(), within(0.6, 1, 10)), "ababbababb");
        assert_eq!(writers(always(), within(0.0, 1, 6)), "aaaaaa");
        assert_eq!(writers(always(), within(1.0, 1, 6)), "bbbbbb");
    }
}

#[test]
fn r_stitch_returns_with_its_token_kept_when_the_budget_is_spent() {
    let stitch = || Box::new(RStitch::new(A, B, Threshold::Always));
    assert_eq!(writers(stitch(), within(0.25, 1, 12)), "aaabaaabaaab");
    // It stays while it may: sure at first, then unsure for good.
    let say = |_: u64, tokens: &[u32], _: ModelId| {
        let entropy_norm = if tokens.len() < 9 { 0.0 } else { 1.0 };
        RowResult { token: 5, signals: Signals { entropy_norm, ..Signals::default() }, fault: None }
    };
    let router = RStitch::new(A, B, Threshold::Value(0.5));
    let answers = run(Box::new(router), vec![within(0.4, 1, 16)], &say);
    let got: String = answers[0].writers.iter().map(|&w| if w == A { 'a' } else { 'b' }).collect();
    assert_eq!(got, "aaaaaabbbbaababa");
}

#[test]
fn me_stays_when_the_draw_is_too_dear_and_query_does_not_start_there() {
    let mixture = || Box::new(Mixture::new(A, &[0.0, 0.5, 0.5], true).unwrap());
    let answers = run(mixture(), vec![within(0.3, 4, 200)], &fake);
    let others = answers[0].writers.iter().filter(|&&w| w != A).count();
    assert_eq!((others, answers[0].writers[0]), (60, A));
    let query = || Box::new(Query::new([A, B], Choice::Share(1.0)));
    assert_eq!(writers(query(), within(0.9, 4, 5)), "aaaaa");
    assert_eq!(writers(query(), within(1.0, 4, 5)), "bbbbb");
}

/// Whole requests: a share below 1 forbids the first token, and after it nothing moves.
#[test]
fn query_by_its_head_writes_all_by_one_model_within_a_budget() {
    for threshold in [Threshold::Value(0.0), Threshold::Always] {
        assert_eq!(writers(by_head(threshold), within(0.9, 4, 5)), "aaaaa");
        assert_eq!(writers(by_head(threshold), within(1.0, 4, 5)), "bbbbb");
    }
}

#[test]
fn no_algorithm_ever_exceeds_it_and_a_wide_one_changes_nothing() {
    for (name, router) in algorithms() {
        let mut core = Core::new(config(2, Policy::Eager), vec![router]).unwrap();
        let shares = [0.0, 0.05, 0.1, 0.3, 0.5, 0.9];
        let requests = (0..60).map(|i| within(shares[i as usize % 6], i, 80)).collect();
        for (i, answer) in serve(&mut core, requests, &fake).iter().enumerate() {
            let share = shares[i % 6];
            let mut others = 0.0;
            for (count, &writer) in answer.writers.iter().enumerate() {
                others += f32::from(u8::from(writer != A));
                assert!(others <= share * (count + 1) as f32 + 1e-4, "{name} {share}: {:?}", answer.writers);
            }
            assert_eq!(answer.usage.terms.budget, Budget::new(share), "it is reported");
        }
        let free = |max_llm_fraction| NewRequest { max_llm_fraction, ..request(8, 80) };
        let [none, whole] = [None, Some(1.0)].map(|share| {
            let answer = serve(&mut core, vec![free(share)], &fake).remove(0);
            (answer.tokens, answer.writers, answer.rows)
        });
        assert_eq!(none, whole, "{name}");
    }
}

#[test]
fn the_routes_own_limit_holds_beside_the_requests() {
    let router = |share| -> Box<dyn Router> {
        Box::new(Budgeted::new(scored(HeadKind::R2r, Threshold::Always), Budget::new(share)))
    };
    for (route, request, expected) in
        [(0.25, 0.5, "aaabaaab"), (0.5, 0.25, "aaabaaab"), (0.5, 1.0, "abababab")]
    {
        assert_eq!(writers(router(route), within(request, 1, 8)), expected, "{route} {request}");
    }
}

#[test]
fn a_budget_that_is_spent_for_good_leaves_no_batch_waiting() {
    // 0.1 of 9 tokens is none: nobody waits for the request at the large model.
    let mut core =
        Core::new(config(2, Policy::Eager), vec![scored(HeadKind::R2r, Threshold::Always)]).unwrap();
    for (max, routed) in [(9, 0), (10, 1)] {
        let id = core.submit(0, within(0.1, 1, max)).unwrap();
        core.launch(1);
        assert_eq!(core.planner_status().requests, routed, "{max} tokens");
        assert!(core.cancel(2, id));
        core.complete(3, A, &[RowResult::default()]).unwrap();
    }
}

#[test]
fn fractions_out_of_range_are_refused() {
    let mut core =
        Core::new(config(2, Policy::Eager), vec![scored(HeadKind::R2r, Threshold::Always)]).unwrap();
    for bad in [-0.1, 1.1, f32::NAN] {
        let error = core.submit(0, within(bad, 1, 9)).unwrap_err();
        assert!(error.to_string().contains("max_llm_fraction"), "{error}");
    }
}

/// Never comes back by itself, so it was written to drop whatever it is asked about.
struct OneWay;

impl Router for OneWay {
    fn name(&self) -> &str {
        "one-way"
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
    fn route(&self, _: &StepView<'_>, to: &mut [ModelId]) {
        to.fill(B);
    }
    fn send(&self, _: &RouteRow, _: ModelId, _: &mut Payload) -> Verdict {
        Verdict::Drop
    }
}

#[test]
fn a_return_that_only_the_budget_wants_keeps_the_token() {
    assert_eq!(writers(Box::new(OneWay), within(0.5, 1, 6)), "ababab");
}
