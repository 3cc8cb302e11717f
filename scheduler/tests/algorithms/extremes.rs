//! 9.7 (a) and (b): words reproduce the models alone, numbers the sequential loop, under every policy.

use crate::drive::{A, Answer, B, EOS, algorithms, config, fake, request, run, serve};
use tokenrouter_scheduler::router::Single;
use tokenrouter_scheduler::sim::{Random, random_policy, reference};
use tokenrouter_scheduler::*;

fn requests(threshold: Option<Threshold>) -> Vec<NewRequest> {
    (0..12).map(|seed| NewRequest { threshold, ..request(seed, 60) }).collect()
}

fn streams(answers: Vec<Answer>) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    answers.into_iter().map(|answer| (answer.tokens, answer.reason)).collect()
}

fn alone(model: ModelId) -> Vec<(Vec<u32>, Option<FinishReason>)> {
    streams(run(Box::new(Single::new(model)), requests(None), &fake))
}

#[test]
fn words_reproduce_each_model_alone_token_for_token() {
    assert_ne!(alone(A), alone(B));
    for (threshold, model) in [(Threshold::Never, A), (Threshold::Always, B)] {
        for (name, router) in algorithms() {
            let answers = run(router, requests(Some(threshold)), &fake);
            assert!(answers.iter().all(|a| a.writers.iter().all(|&w| w == model)), "{name} {threshold}");
            assert_eq!(streams(answers), alone(model), "{name} {threshold}");
        }
    }
}

#[test]
fn routed_answers_equal_the_sequential_loop_under_every_policy() {
    for (name, router) in algorithms() {
        let expected: Vec<_> = requests(None).iter().map(|r| reference(r, &*router, &[EOS])).collect();
        let mixed = expected.iter().any(|s| s.writers.contains(&A))
            && expected.iter().any(|s| s.writers.contains(&B));
        assert!(mixed, "{name} lets both models write");
    }
    let mut random = Random::new(11);
    let policies = [Policy::StepSync, Policy::Eager, Policy::default()];
    for policy in policies.into_iter().chain((0..12).map(|_| random_policy(&mut random, 2))) {
        for (name, router) in algorithms() {
            let expected: Vec<_> = requests(None).iter().map(|r| reference(r, &*router, &[EOS])).collect();
            let mut core = Core::new(config(2, policy.clone()), vec![router]).unwrap();
            let answers = serve(&mut core, requests(None), &fake);
            for (answer, expected) in answers.iter().zip(&expected) {
                let got = (&answer.tokens, &answer.writers, &answer.reason);
                assert_eq!(got, (&expected.tokens, &expected.writers, &expected.reason), "{name} {policy:?}");
            }
        }
    }
}
