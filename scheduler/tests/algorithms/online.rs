//! What a route learns acts only at submit, is reported, and replays.

use crate::drive::{A, EOS, config, fake, request, scored, serve};
use tokenrouter_scheduler::router::{Budget, Budgeted, HeadKind, Online, RStitch, Source};
use tokenrouter_scheduler::sim::reference;
use tokenrouter_scheduler::*;

fn core(inner: Box<dyn Router>, online: Online) -> Core {
    let router = Budgeted::new(inner, None).learning(online);
    Core::new(config(2, Policy::Eager), vec![Box::new(router)]).unwrap()
}

fn block(from: u64) -> Vec<NewRequest> {
    (from..from + 24).map(|seed| NewRequest { ignore_eos: true, ..request(seed, 90) }).collect()
}

/// The reported terms as a request's own: what replays an answer.
fn replayed(request: &NewRequest, usage: &Usage) -> NewRequest {
    NewRequest {
        threshold: usage.terms.threshold.map(|(threshold, _)| threshold),
        max_llm_fraction: usage.terms.budget.map(Budget::share),
        ..request.clone()
    }
}

#[test]
fn thresholds_come_to_their_target_share_and_every_answer_replays() {
    let start = Threshold::Value(0.5);
    let routers: [fn(Threshold) -> Box<dyn Router>; 4] = [
        |t| scored(HeadKind::R2r, t),
        |t| scored(HeadKind::Citer, t),
        |t| scored(HeadKind::CoLlm, t),
        |t| Box::new(RStitch::new(A, ModelId(1), t)),
    ];
    for router in routers {
        for target in [0.1, 0.6] {
            let online = Online { target_share: Some(target), ..Online::default() };
            let mut core = core(router(start), online);
            let (mut others, mut all, mut calibrated) = (0, 0, 0);
            for round in 0..12 {
                let requests = block(1_000 * round);
                for (request, answer) in requests.iter().zip(serve(&mut core, requests.clone(), &fake)) {
                    let (_, source) = answer.usage.terms.threshold.unwrap();
                    let plain = Budgeted::new(router(start), None);
                    let again = reference(&replayed(request, &answer.usage), &plain, &[EOS]);
                    assert_eq!((again.tokens, again.writers), (answer.tokens, answer.writers.clone()));
                    assert!(round > 0 || source == Source::Config, "nothing is known at first");
                    if source == Source::Calibrated {
                        calibrated += 1;
                        all += answer.writers.len();
                        others += answer.writers.iter().filter(|&&w| w != A).count();
                    }
                }
            }
            assert!(calibrated > 200, "{calibrated}");
            let share = others as f32 / all as f32;
            assert!((share - target).abs() < 0.03, "{share} instead of {target}");
        }
    }
}

#[test]
fn a_requests_own_threshold_goes_before_what_was_learned() {
    let mut core =
        core(scored(HeadKind::R2r, Threshold::Never), Online { target_share: Some(0.5), deployment: None });
    serve(&mut core, block(1), &fake);
    let own = NewRequest { threshold: Some(Threshold::Never), ..request(5, 20) };
    let answers = serve(&mut core, vec![own, request(5, 20)], &fake);
    let sources: Vec<_> = answers.iter().map(|a| a.usage.terms.threshold.unwrap().1).collect();
    assert_eq!(sources, [Source::Request, Source::Calibrated]);
    assert!(answers[0].writers.iter().all(|&w| w == A));
}

#[test]
fn a_deployment_stays_within_its_share_and_hands_on_what_is_left() {
    let online = Online { deployment: Budget::new(0.3), ..Online::default() };
    let mut core = core(scored(HeadKind::R2r, Threshold::Always), online);
    let (mut others, mut all, mut widest) = (0u32, 0u32, Budget::new(0.0).unwrap());
    for round in 0..20 {
        // Every other request writes with the small model only, and leaves its share to the rest.
        let mut requests = block(100 * round);
        requests.iter_mut().step_by(2).for_each(|r| r.threshold = Some(Threshold::Never));
        for answer in serve(&mut core, requests, &fake) {
            all += answer.usage.completion_tokens;
            others += answer.usage.committed[1];
            widest = widest.max(answer.usage.terms.budget.unwrap());
        }
        assert!(f64::from(others) <= 0.3 * f64::from(all), "{others} of {all}");
    }
    let share = f64::from(others) / f64::from(all);
    assert!(share > 0.25 && widest > Budget::new(0.5).unwrap(), "{share}, at most {widest:?}");
}

#[test]
fn a_refused_request_spends_nothing() {
    let online = Online { deployment: Budget::new(0.3), ..Online::default() };
    let mut core = core(scored(HeadKind::R2r, Threshold::Never), online);
    serve(&mut core, block(1), &fake);
    let offered = |core: &mut Core| {
        let answer = serve(core, vec![NewRequest { ignore_eos: true, ..request(1, 50) }], &fake).remove(0);
        answer.usage.terms.budget.unwrap()
    };
    let before = offered(&mut core);
    for _ in 0..50 {
        assert!(core.submit(0, request(1, 100_000)).is_err(), "beyond the context");
    }
    assert!(offered(&mut core) >= before);
}
