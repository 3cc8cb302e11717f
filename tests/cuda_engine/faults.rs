//! Devices that are too small, that fail in the middle of a step, that are lost: named errors, answered requests, and a
//! process that goes on.

use tokenrouter_engine::{ClientEvent, Command, EngineHandle, ModelState, RefuseError};
use tokenrouter_scheduler::router::Registry;
use tokenrouter_scheduler::{FailKind, FinishReason, SubmitError};

use crate::pretend::{Setup, machine, requests, run, settings};
use crate::support::engine::{request, start, stop};

/// CUDA_ERROR_ILLEGAL_ADDRESS, as a kernel with a wrong address leaves it.
const ILLEGAL_ADDRESS: u32 = 700;

/// Waits for the end of one request.
fn end_of(engine: &EngineHandle, client: u64) -> FinishReason {
    loop {
        for event in engine.wait_report().expect("the engine runs").events {
            if let ClientEvent::Finished { client: ended, reason, .. } = event
                && ended == client
            {
                return reason;
            }
        }
    }
}

/// Request `client`, asked of the model alone on `route`, fails or is refused because its model is lost: why it is.
fn lost(engine: &EngineHandle, client: u64, route: u16) -> String {
    engine
        .send(Command::Submit(Box::new(request(client, &requests(1)[0].prompt, route, 8))))
        .expect("the engine runs");
    let model = loop {
        let found =
            engine.wait_report().expect("the engine runs").events.into_iter().find_map(|event| match event {
                ClientEvent::Finished {
                    reason: FinishReason::Failed(FailKind::ModelLost { model }), ..
                } => Some(model),
                ClientEvent::Refused {
                    error: RefuseError::Submit(SubmitError::ModelLost { model }), ..
                } => Some(model),
                ClientEvent::Token { .. } => None,
                other => panic!("request {client} ended with {other:?}"),
            });
        if let Some(model) = found {
            break model;
        }
    };
    assert_eq!(engine.status.models[model.index()].state(), ModelState::Lost);
    engine.status.models[model.index()].trouble().expect("it says why").to_string()
}

/// Weights fit, the cache does not: every term is named, and nothing was started.
#[test]
fn a_device_that_is_too_small_is_refused_with_numbers() {
    let Some(_machine) = machine(0) else { return };
    for memory in [64 << 10, 3 << 20] {
        let setup = Setup { memory: Some(memory), ..Setup::default() };
        let refused = tokenrouter_engine::start(&setup.config(), &Registry::builtin(), Box::new(|| ()));
        let text = refused.err().expect("it does not fit").to_string();
        for part in ["CUDA device 0", "budget", "weights take", "buffers", "small and large", "KV cache"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// The smallest memory that is not refused gives the answers of a large one, by preemption.
#[test]
fn little_memory_preempts_and_changes_nothing() {
    let Some(_machine) = machine(3) else { return };
    let asked = requests(8);
    let wide = Setup::default().answers(&asked, 8);
    let needed = {
        let setup = Setup { memory: Some(3 << 20), ..Setup::default() };
        let refused = tokenrouter_engine::start(&setup.config(), &Registry::builtin(), Box::new(|| ()));
        let text = refused.err().expect("it does not fit").to_string();
        let bytes = text.split_once(" bytes)").expect("bytes").0;
        bytes.rsplit('(').next().expect("a number").parse::<u64>().expect("a number")
    };
    let tight = Setup { memory: Some(needed), ..Setup::default() };
    assert_eq!(tight.answers(&asked, 8), wide);
}

/// A device that is lost fails the requests that need it, by name; a model on another device goes on.
#[test]
fn a_lost_device_fails_its_model_and_no_other() {
    let Some(machine) = machine(5) else { return };
    let Some(emulation) = machine.emulation() else { return };
    let setup = Setup { large: &[1], ..Setup::default() };
    let engine = start(&setup.config(), &Registry::builtin());
    assert_eq!(run(&engine, &requests(2), 2).len(), 2);
    emulation.inject(1, 40, ILLEGAL_ADDRESS);
    let text = lost(&engine, 100, 1);
    assert!(text.contains("CUDA device 1"), "{text}");
    assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
    let again = lost(&engine, 101, 1);
    assert!(again.contains("CUDA device 1"), "later requests learn the reason too: {again}");
    engine
        .send(Command::Submit(Box::new(request(102, &requests(1)[0].prompt, 0, 8))))
        .expect("the engine runs");
    assert!(!matches!(end_of(&engine, 102), FinishReason::Failed(_)), "the small model goes on");
    stop(&engine);
}

/// One of two ranks fails in the middle of a step: the other one does not wait for it for ever.
#[test]
fn a_rank_that_fails_takes_the_step_with_it() {
    let Some(machine) = machine(6) else { return };
    let Some(emulation) = machine.emulation() else { return };
    for broken in [1usize, 2] {
        emulation.reset(settings(6));
        let setup = Setup { large: &[1, 2], ..Setup::default() };
        let engine = start(&setup.config(), &Registry::builtin());
        assert_eq!(run(&engine, &requests(2), 2).len(), 2);
        emulation.inject(broken, 60, ILLEGAL_ADDRESS);
        let text = lost(&engine, 100, 1);
        assert!(text.contains(&format!("CUDA device {broken}")), "{text}");
        engine
            .send(Command::Submit(Box::new(request(102, &requests(1)[0].prompt, 0, 8))))
            .expect("the engine runs");
        assert!(!matches!(end_of(&engine, 102), FinishReason::Failed(_)), "the small model goes on");
        stop(&engine);
    }
}
