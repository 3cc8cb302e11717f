//! 9.7 (c), (d), (e): what is fed, which tokens count, and progress on broken numbers.

use crate::drive::{A, B, EOS, fake, request, run, scored};
use tokenrouter_scheduler::router::{HeadKind, RStitch};
use tokenrouter_scheduler::*;

/// A result whose score, entropy and every other measure is `measure`.
fn says(token: u32, measure: f32) -> RowResult {
    let signals = Signals { scores: [measure; MAX_HEADS], entropy_norm: measure, ..Signals::default() };
    RowResult { token, signals, fault: None }
}

/// `measure` of the entry model that asks for the large model, and one that does not.
fn measures(kind: HeadKind) -> (f32, f32) {
    if kind == HeadKind::Citer { (0.1, 0.9) } else { (0.9, 0.1) }
}

#[test]
fn delegations_in_a_row_feed_only_what_is_new() {
    for kind in HeadKind::OF_TOKENS {
        let (asks, _) = measures(kind);
        let say = |_: u64, _: &[u32], model: ModelId| says(10 + u32::from(model.0), asks);
        let answers = run(scored(kind, Threshold::Value(0.5)), vec![request(1, 3)], &say);
        // The suffix of the second delegation is empty: the large model feeds its own last token.
        assert_eq!(answers[0].rows, [(A, 0, 3), (B, 0, 3), (A, 3, 1), (B, 3, 1), (A, 4, 1), (B, 4, 1)]);
        assert_eq!((&answers[0].tokens[..], answers[0].usage.discarded[0]), (&[11, 11, 11][..], 3));
        assert_eq!(answers[0].reason, Some(FinishReason::Length), "the length is hit while delegated");
    }
}

#[test]
fn a_dropped_end_does_not_end_and_a_kept_one_does_whoever_wrote_it() {
    for kind in HeadKind::OF_TOKENS {
        let (asks, rests) = measures(kind);
        // The small model proposes the end at every position and is unsure but at the third.
        let say = |_: u64, tokens: &[u32], model: ModelId| match (model, tokens.len()) {
            (A, 5) => says(EOS, rests),
            (A, _) => says(EOS, asks),
            _ => says(20, rests),
        };
        let answers = run(scored(kind, Threshold::Value(0.5)), vec![request(1, 9)], &say);
        assert_eq!(answers[0].tokens, [20, 20, EOS]);
        assert_eq!(answers[0].writers, [B, B, A]);
        assert_eq!((answers[0].usage.completion_tokens, answers[0].usage.discarded[0]), (3, 2));

        // The large model ends it, and nobody is asked again.
        let say = |_: u64, _: &[u32], model: ModelId| match model {
            A => says(30, asks),
            _ => says(EOS, rests),
        };
        let answers = run(scored(kind, Threshold::Value(0.5)), vec![request(1, 9)], &say);
        assert_eq!((&answers[0].tokens[..], &answers[0].writers[..]), (&[EOS][..], &[B][..]));
        assert_eq!((answers[0].usage.handoffs, answers[0].usage.steps[0]), (1, 1));
    }
}

/// For each measure: does R2R, CITER, Co-LLM ask at 0.5? The comparisons are `>=`, `<`, `>`, and NaN asks.
#[test]
fn the_comparison_at_the_threshold_is_that_of_the_algorithm() {
    for (measure, expected) in [
        (0.5, [B, A, A]),
        (0.5f32.next_down(), [A, B, A]),
        (0.5f32.next_up(), [B, A, B]),
        (f32::NAN, [B, B, B]),
    ] {
        let say = |_: u64, _: &[u32], model: ModelId| says(10 + u32::from(model.0), measure);
        let writers = HeadKind::OF_TOKENS
            .map(|kind| run(scored(kind, Threshold::Value(0.5)), vec![request(1, 1)], &say)[0].writers[0]);
        assert_eq!(writers, expected, "{measure}");
    }
}

#[test]
fn r_stitch_makes_progress_whatever_the_entropies() {
    let cases: [(f32, f32, ModelId); 5] =
        [(0.0, 0.0, A), (1.0, 1.0, B), (f32::NAN, f32::NAN, B), (1.0, 0.0, B), (f32::NAN, 0.0, B)];
    for (small, large, writer) in cases {
        let router = RStitch::new(A, B, Threshold::Value(0.03));
        let say = |_: u64, _: &[u32], model: ModelId| says(10, if model == A { small } else { large });
        let answers = run(Box::new(router), vec![request(1, 40)], &say);
        assert_eq!(answers[0].writers, [writer; 40], "{small} {large}");
        assert_eq!(answers[0].reason, Some(FinishReason::Length));
        // A run of the large model is one visit: it returns with a confident token, and only then.
        let returns = if large == 0.0 && writer == B { 40 } else { u32::from(writer == B) };
        assert_eq!(answers[0].usage.discarded[0], returns, "{small} {large}");
    }
    // Thresholds of 0 and 1 are its ends: at 0 it never returns from an entropy above, at 1 it never asks.
    let one = |threshold| run(Box::new(RStitch::new(A, B, threshold)), vec![request(1, 40)], &fake);
    assert!(one(Threshold::Value(0.0))[0].writers.iter().all(|&w| w == B));
    assert!(one(Threshold::Value(1.0))[0].writers.iter().all(|&w| w == A));
}

#[test]
fn an_uncertain_end_by_the_large_model_ends_and_is_not_handed_back() {
    let router = RStitch::new(A, B, Threshold::Value(0.5));
    let say = |_: u64, _: &[u32], model: ModelId| says(EOS, if model == A { 0.9 } else { 0.1 });
    let answers = run(Box::new(router), vec![request(1, 40)], &say);
    assert_eq!((&answers[0].writers[..], answers[0].usage.handoffs), (&[B][..], 1));
}

#[test]
fn the_large_model_computes_no_score_for_the_small_ones_router() {
    let core =
        Core::new(crate::drive::config(2, Policy::Eager), vec![scored(HeadKind::R2r, Threshold::Never)]);
    let core = core.unwrap();
    assert_eq!(core.signals(A), router::SignalSet::score(0));
    assert_eq!(core.signals(B), router::SignalSet::NONE);
}
