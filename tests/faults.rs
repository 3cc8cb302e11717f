//! Devices that die or hang, requests that are cancelled at any time, and memory that is short, with real models: who is
//! hurt is told, nobody else notices, and nothing is left. The bug log's L14, L25, L26 and L29.

mod support;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use support::engine::{Outcome, answers, demo_config, request, route, run_all, smallest};
use support::faulty::{self, Faults};
use support::golden_prompt;
use tokenrouter_engine::{
    ClientEvent, Command, EngineConfig, EngineHandle, EngineRequest, FaultOptions, ModelState, RefuseError,
    SamplingParams, TokenLogprobs,
};
use tokenrouter_scheduler::router::ParamValue;
use tokenrouter_scheduler::{FailKind, FinishReason, ModelId, PeerLoss, SubmitError};

const LARGE: ModelId = ModelId(1);

/// Route 0 hands half of the tokens over, routes 1 and 2 are the small and the large model alone.
fn config(on_peer_loss: PeerLoss, step_timeout: Option<Duration>) -> EngineConfig {
    let routes = vec![
        route("half", "fixed", "fraction", ParamValue::Float(0.5)),
        route("small", "single", "model", ParamValue::Int(0)),
        route("large", "single", "model", ParamValue::Int(1)),
    ];
    let faults = FaultOptions { on_peer_loss, step_timeout };
    EngineConfig { faults, max_running: 6, ..demo_config(routes) }
}

fn ask(client: u64, route: u16, tokens: u32) -> EngineRequest {
    let mut prompt = golden_prompt();
    prompt.truncate(8 + client as usize % 9);
    let mut asked = request(client, &prompt, route, tokens);
    asked.ignore_eos = true;
    asked.seed = client;
    if client % 2 == 1 {
        asked.sampling = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    }
    asked
}

/// Waits as long as it takes, up to a minute.
#[track_caller]
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine has nothing left.
#[track_caller]
fn is_empty(engine: &EngineHandle) {
    let status = &engine.status;
    wait("nothing is left", || {
        let models = status.models.iter().flat_map(|m| [&m.ready, &m.running, &m.pending]);
        let left = [&status.waiting, &status.running].into_iter().chain(models);
        left.map(|count| count.load(Relaxed)).sum::<u64>() == 0
            && status.pages_free.load(Relaxed) == status.pages_total.load(Relaxed)
    });
}

/// Eight requests: of the six that are admitted some are in a step of the large model that does not come back, some in its
/// queue, one is the small model's alone; two wait.
fn eight(engine: &EngineHandle, faults: &Faults) {
    faults.hang(LARGE);
    for client in 0..8 {
        let asked = ask(client, u16::from(client == 7), 24);
        engine.send(Command::Submit(Box::new(asked))).expect("the engine runs");
    }
    let status = &engine.status;
    wait("all that run are at the large model", || {
        let at_large = status.models[1].running.load(Relaxed) + status.models[1].ready.load(Relaxed);
        faults.holds(LARGE) && at_large == 6 && status.waiting.load(Relaxed) == 2
    });
}

/// What the eight give when nothing goes wrong.
fn clean() -> HashMap<u64, Outcome> {
    let (engine, _) = faulty::start(&config(PeerLoss::Fail, None));
    run_all(&engine, (0..8).map(|client| ask(client, u16::from(client == 7), 24)).collect())
}

fn lost(model: ModelId) -> FinishReason {
    FinishReason::Failed(FailKind::ModelLost { model })
}

/// The large model dies with requests in its step and in its queue, and its answer comes when they are over.
#[test]
fn a_dead_model_left_its_requests_waiting_for_ever() {
    let expected = clean();
    for on_peer_loss in [PeerLoss::Fail, PeerLoss::Continue] {
        let (engine, faults) = faulty::start(&config(on_peer_loss, None));
        eight(&engine, &faults);
        faults.kill(&engine, LARGE);
        let got = answers(&engine, 8);
        for (client, outcome) in &got {
            let expected = &expected[client];
            let same = outcome.tokens.iter().zip(&expected.tokens).take_while(|(a, b)| a == b).count();
            if *client == 7 {
                assert_eq!((&outcome.reason, same), (&FinishReason::Length, 24), "it never needed the other");
                assert!(!outcome.usage.degraded);
            } else if on_peer_loss == PeerLoss::Fail {
                assert_eq!((&outcome.reason, same), (&lost(LARGE), outcome.tokens.len()), "{client}");
                assert!(!outcome.usage.degraded);
            } else {
                assert_eq!((&outcome.reason, outcome.tokens.len()), (&FinishReason::Length, 24), "{client}");
                assert!(outcome.usage.degraded && outcome.writers.iter().all(|writer| *writer == 0));
            }
        }
        assert_eq!(engine.status.models[1].state(), ModelState::Lost);
        assert_eq!(engine.status.models[1].trouble().as_deref(), Some("killed by a test"));
        is_empty(&engine);
        faults.release(&engine, LARGE);
        wait("the late step is taken", || !faults.holds(LARGE));
        engine.send(Command::Submit(Box::new(ask(20, 2, 4)))).expect("the engine runs");
        let report = engine.wait_report().expect("the engine runs");
        let [ClientEvent::Refused { client: 20, error }] = &report.events[..] else {
            panic!("late answers for the dead: {:?}", report.events)
        };
        assert!(matches!(error, RefuseError::Submit(SubmitError::ModelLost { model: LARGE })), "{error:?}");
        is_empty(&engine);
    }
}

/// A step that never ends: everybody is answered, health sees it, and the model serves again when it comes back.
#[test]
fn a_hung_step_kept_its_requests_and_health_said_all_was_well() {
    let expected = clean();
    let (engine, faults) = faulty::start(&config(PeerLoss::Fail, Some(Duration::from_secs(3))));
    // The first step of a model may take longer.
    run_all(&engine, vec![ask(30, 2, 2)]);
    // Idle is no stall.
    std::thread::sleep(Duration::from_millis(50));
    eight(&engine, &faults);
    wait("a late step shows", || engine.status.models[1].state() != ModelState::Ready);
    let got = answers(&engine, 8);
    for (client, outcome) in &got {
        let reason = if *client == 7 { FinishReason::Length } else { lost(LARGE) };
        assert_eq!(outcome.reason, reason, "{client}");
    }
    assert_eq!(engine.status.models[1].state(), ModelState::Lost);
    assert_eq!(engine.status.models[0].state(), ModelState::Ready);
    is_empty(&engine);
    faults.release(&engine, LARGE);
    wait("it is back", || engine.status.models[1].state() == ModelState::Ready);
    let again = run_all(&engine, (0..8).map(|client| ask(client, u16::from(client == 7), 24)).collect());
    for (client, outcome) in &again {
        assert_eq!(outcome.tokens, expected[client].tokens, "as if nothing had been");
        assert_eq!(outcome.writers, expected[client].writers);
    }
    is_empty(&engine);
}

/// Five hundred requests, three choices each of some prompts, are cancelled at a random time: before admission, between
/// chunks, in a step, away at a peer, at the end. Each ends once, and nothing is kept.
#[test]
fn five_hundred_cancels_leave_nothing() {
    let mut config = config(PeerLoss::Fail, None);
    // Small chunks, so that prompts are cut.
    config.models.iter_mut().for_each(|model| (model.max_batch_rows, model.max_step_tokens) = (4, 6));
    let (engine, _) = faulty::start(&config);
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut ended, mut cancelled, mut submitted) = (HashMap::new(), 0, 0);
    let mut due: Vec<(u64, u64)> = Vec::new();
    let mut turn = 0;
    while ended.len() < 500 {
        turn += 1;
        while submitted < 500 && submitted - ended.len() as u64 <= 40 {
            let choices = if random(3) == 0 { 3.min(500 - submitted) } else { 1 };
            let at = turn + random(60);
            for choice in 0..choices {
                let mut asked = ask(submitted, random(3) as u16, 1 + random(60) as u32);
                (asked.choice, asked.seed) = (choice as u32, submitted - choice);
                engine.send(Command::Submit(Box::new(asked))).expect("the engine runs");
                due.push((at, submitted));
                submitted += 1;
            }
        }
        due.retain(|(at, client)| {
            if *at <= turn {
                engine.send(Command::Cancel(*client)).expect("the engine runs");
            }
            *at > turn
        });
        // A report or two go by between two cancels.
        for event in engine.try_report().into_iter().flat_map(|report| report.events) {
            match event {
                ClientEvent::Finished { client, reason, .. } => {
                    cancelled += u64::from(reason == FinishReason::Cancelled);
                    assert!(ended.insert(client, reason).is_none(), "{client} ends twice");
                }
                ClientEvent::Token { client, .. } => {
                    assert!(!ended.contains_key(&client), "a token after the end");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(cancelled >= 100, "{cancelled} of 500 were cancelled while they lived");
    let others = ended.values().filter(|reason| !matches!(reason, FinishReason::Cancelled)).count();
    assert_eq!(cancelled as usize + others, 500);
    is_empty(&engine);
}

/// A thousand requests through the pair: slots and pages are used again.
#[test]
fn a_thousand_requests_go_through_the_same_slots() {
    let (engine, _) = faulty::start(&config(PeerLoss::Fail, None));
    for round in 0..10 {
        let asked = (0..100).map(|i| ask(100 * round + i, (i % 3) as u16, 1 + (i % 5) as u32)).collect();
        assert_eq!(run_all(&engine, asked).len(), 100);
        is_empty(&engine);
    }
}

/// Ten pages of 16 tokens.
fn ten_pages() -> EngineConfig {
    let mut config = EngineConfig { context_len: 160, reserve_pages: 0, ..config(PeerLoss::Fail, None) };
    config.prefix_cache = false;
    smallest(config)
}

/// Tokens and scores of every request, once all have ended.
fn scored(engine: &EngineHandle, asked: &[EngineRequest]) -> HashMap<u64, (Vec<(u32, TokenLogprobs)>, u32)> {
    let of = |(client, outcome): (u64, Outcome)| {
        assert_eq!(outcome.reason, FinishReason::Length);
        assert_eq!(outcome.logprobs.len(), outcome.tokens.len(), "every token has its score");
        let scores = outcome.tokens.into_iter().zip(outcome.logprobs).collect();
        (client, (scores, outcome.usage.preemptions))
    };
    run_all(engine, asked.to_vec()).into_iter().map(of).collect()
}

/// Two requests that need twelve pages of ten: the newer one is preempted and gives what it gives alone, penalty, seed and
/// log-probabilities included; then again, by ever newer ones of a higher priority.
#[test]
fn a_preempted_request_forgot_what_it_had_written() {
    let config = ten_pages();
    let (engine, _) = faulty::start(&config);
    assert_eq!(engine.info.capacity_tokens, 160);
    let ask = |client: u64, priority: i32, route: u16| {
        let mut asked = request(client, &golden_prompt()[..16], route, 80);
        (asked.ignore_eos, asked.priority, asked.logprobs) = (true, priority, Some(2));
        if client == 1 {
            asked.seed = 9;
            asked.sampling =
                SamplingParams { temperature: 0.9, repetition_penalty: 1.3, ..SamplingParams::default() };
        }
        asked
    };
    for route in [0, 1] {
        let rounds: [&[(u64, i32)]; 2] = [&[(0, 0), (1, 0)], &[(1, 0), (2, 1), (3, 1), (4, 2)]];
        for round in rounds {
            let asked: Vec<_> =
                round.iter().map(|&(client, priority)| ask(client, priority, route)).collect();
            let alone: HashMap<_, _> =
                asked.iter().flat_map(|one| scored(&engine, std::slice::from_ref(one))).collect();
            let crowded = scored(&engine, &asked);
            let preempted: u32 = crowded.values().map(|(_, preemptions)| preemptions).sum();
            assert!(preempted > 0 && alone.values().all(|(_, preemptions)| *preemptions == 0));
            for (client, (tokens, _)) in &crowded {
                assert_eq!(tokens.len(), 80);
                assert!(tokens == &alone[client].0, "request {client} on route {route}");
            }
            is_empty(&engine);
        }
    }
}
