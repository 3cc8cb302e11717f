//! The demo pair against transformers: greedy tokens of each model alone and of the routed pair, with the writer of
//! every token, all requests at once (`tests/golden/demo.json`).

mod support;

use support::engine::{demo_config, request, route, run_all, start, stop};
use support::golden;
use tokenrouter_engine::DType;
use tokenrouter_scheduler::FinishReason;
use tokenrouter_scheduler::router::{ParamValue, Registry};

#[test]
fn tokens_and_writers_are_those_of_transformers() {
    let golden = golden();
    for kv_dtype in [DType::F32, DType::F16, DType::Bf16] {
        let mut config = demo_config(vec![
            route("slm", "single", "model", ParamValue::Int(0)),
            route("llm", "single", "model", ParamValue::Int(1)),
            route("routed", "r-stitch", "threshold", ParamValue::Float(golden.threshold)),
        ]);
        config.kv_dtype = kv_dtype;
        let engine = start(&config, &Registry::builtin());
        let mut requests = Vec::new();
        for (i, case) in golden.cases.iter().enumerate() {
            for route in 0..3_u16 {
                let client = (i * 3) as u64 + u64::from(route);
                requests.push(request(client, &case.prompt, route, golden.max_new_tokens));
            }
        }
        let answers = run_all(&engine, requests);
        for (i, case) in golden.cases.iter().enumerate() {
            for (route, name) in ["slm", "llm", "routed"].iter().enumerate() {
                let answer = &answers[&((i * 3 + route) as u64)];
                let what = format!("{} {name} {kv_dtype:?}", case.id);
                assert_eq!(answer.tokens, case.answers[route], "{what}");
                assert!(matches!(answer.reason, FinishReason::Eos(_)), "{what}");
                assert_eq!(answer.usage.completion_tokens as usize, answer.tokens.len(), "{what}");
            }
            let routed = &answers[&((i * 3 + 2) as u64)];
            assert_eq!(routed.writers, case.writers, "{}", case.id);
            assert_eq!(u64::from(routed.usage.handoffs), case.handoffs);
            assert_eq!(u64::from(routed.usage.discarded[0]), case.dropped);
        }
        stop(&engine);
    }
}

/// A handle that is dropped while the loop sleeps: the loop and its model threads end before `drop` returns. A process
/// that ended while they still ran crashed in the driver (on the pretend driver one time in two).
#[test]
fn a_dropped_handle_left_the_engine_running() {
    let config = demo_config(vec![route("slm", "single", "model", ParamValue::Int(0))]);
    let engine = tokenrouter_engine::start(&config, &Registry::builtin(), Box::new(|| ()))
        .expect("the demo pair starts");
    // Longer than the loop looks around before it parks.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let status = engine.status.clone();
    drop(engine);
    assert_eq!(status.state(), tokenrouter_engine::EngineState::Stopped);
}

/// The same while a request is under way and nobody reads its tokens.
#[test]
fn a_handle_dropped_in_the_middle_of_an_answer_ends_it() {
    let config = demo_config(vec![route("slm", "single", "model", ParamValue::Int(0))]);
    let engine = start(&config, &Registry::builtin());
    let request = request(1, &support::golden_prompt(), 0, 400);
    engine.send(tokenrouter_engine::Command::Submit(Box::new(request))).expect("the engine runs");
    engine.wait_report().expect("tokens");
    let status = engine.status.clone();
    drop(engine);
    assert_eq!(status.state(), tokenrouter_engine::EngineState::Stopped);
}
