//! The demo pair against transformers: greedy tokens of each model alone and of the routed pair, with the writer of
//! every token, all requests at once (`tests/golden/demo.json`).

mod support;

use serde_json::Value;
use support::engine::{demo_config, request, route, run_all, start, stop};
use support::root;
use tokenrouter_engine::DType;
use tokenrouter_scheduler::FinishReason;
use tokenrouter_scheduler::router::{ParamValue, Registry};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
}

#[test]
fn tokens_and_writers_are_those_of_transformers() {
    let text = std::fs::read_to_string(root().join("tests/golden/demo.json")).expect("the golden file");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let limit = golden["max_new_tokens"].as_u64().expect("a number") as u32;
    let threshold = golden["threshold"].as_f64().expect("a number");
    let cases = golden["cases"].as_array().expect("cases");
    for kv_dtype in [DType::F32, DType::F16, DType::Bf16] {
        let mut config = demo_config(vec![
            route("slm", "single", "model", ParamValue::Int(0)),
            route("llm", "single", "model", ParamValue::Int(1)),
            route("routed", "r-stitch", "threshold", ParamValue::Float(threshold)),
        ]);
        config.kv_dtype = kv_dtype;
        let engine = start(&config, &Registry::builtin());
        let mut requests = Vec::new();
        for (i, case) in cases.iter().enumerate() {
            for route in 0..3_u16 {
                let client = (i * 3) as u64 + u64::from(route);
                requests.push(request(client, &ids(&case["prompt_ids"]), route, limit));
            }
        }
        let answers = run_all(&engine, requests);
        for (i, case) in cases.iter().enumerate() {
            for (route, name) in ["slm", "llm", "routed"].iter().enumerate() {
                let answer = &answers[&((i * 3 + route) as u64)];
                let what = format!("{} {name} {kv_dtype:?}", case["id"]);
                assert_eq!(answer.tokens, ids(&case[name]["ids"]), "{what}");
                assert!(matches!(answer.reason, FinishReason::Eos(_)), "{what}");
                assert_eq!(answer.usage.completion_tokens as usize, answer.tokens.len(), "{what}");
            }
            let routed = &answers[&((i * 3 + 2) as u64)];
            let writers: String = routed.writers.iter().map(|w| if *w == 0 { '0' } else { '1' }).collect();
            assert_eq!(Some(writers.as_str()), case["routed"]["writers"].as_str(), "{}", case["id"]);
            assert_eq!(
                u64::from(routed.usage.handoffs),
                case["routed"]["handoffs"].as_u64().expect("a number")
            );
            assert_eq!(
                u64::from(routed.usage.discarded[0]),
                case["routed"]["dropped"].as_u64().expect("a number")
            );
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
