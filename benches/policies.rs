//! Launch policies on the demo pair, end to end in one process: tokens per second of N requests at a time.
//!
//! The small model writes, and at 35 % of the positions the large one writes one token (`fixed`), which is the
//! paper's measured share. Answers are the same under every policy; only the speed differs. The peer of every other
//! line is `eager` in the same run. `cargo bench --bench policies`.

#[path = "support/setup.rs"]
mod setup;

use std::collections::BTreeMap;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokenrouter_engine::{
    ClientEvent, Command, DType, DeviceKind, EngineConfig, EngineHandle, EngineModel, EngineRequest,
    FaultOptions, RouteConfig, SamplingParams, WeightForm,
};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{CountTable, Handoff, Policy, Thresholds};

const TOKENS: u32 = 64;

fn start(policy: Policy) -> EngineHandle {
    let model = |name: &str, dir: &str| EngineModel {
        weights: WeightForm::Stored,
        name: name.into(),
        dir: Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo").join(dir),
        devices: vec![0],
        threads: 1,
        max_batch_rows: 32,
        max_step_tokens: 256,
        heads: Vec::new(),
    };
    let route = RouteConfig {
        name: "pair".into(),
        router: "fixed".into(),
        params: BTreeMap::from([("fraction".into(), ParamValue::Float(0.35))]),
    };
    let config = EngineConfig {
        models: vec![model("small", "slm"), model("large", "llm")],
        routes: vec![route],
        policy,
        handoff: Handoff::default(),
        planner: None,
        faults: FaultOptions::default(),
        device: DeviceKind::Cpu,
        budget_bytes: 64 << 20,
        kv_dtype: DType::F16,
        context_len: 0,
        max_running: 64,
        max_waiting: 256,
        real_vocab: 455,
        eos_ids: Vec::new(),
        prefix_cache: true,
        reserve_pages: 8,
    };
    tokenrouter_engine::start(&config, &Registry::builtin(), Box::new(|| ())).expect("the demo pair starts")
}

/// Token ids of a question of the demo language: the first case of the golden file.
fn question() -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/demo.json");
    let text = std::fs::read_to_string(path).expect("the golden file");
    let golden: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ids = golden["cases"][0]["prompt_ids"].as_array().expect("a list");
    ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Answers `requests` prompts at once, each to its limit; they begin alike and end in a token of their own.
fn answer(engine: &EngineHandle, question: &[u32], requests: u64) {
    for client in 0..requests {
        let prompt = question[..10].iter().copied().chain([client as u32]).collect();
        let request = EngineRequest {
            client,
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: client,
            ignore_eos: true,
            ..EngineRequest::new(prompt, TOKENS)
        };
        engine.send(Command::Submit(Box::new(request))).expect("the engine runs");
    }
    let mut done = 0;
    while done < requests {
        let report = engine.wait_report().expect("the engine runs");
        done += report.events.iter().filter(|e| matches!(e, ClientEvent::Finished { .. })).count() as u64;
    }
}

fn policies(c: &mut Criterion) {
    let question = question();
    let threshold = |b: u32| Policy::Threshold(Thresholds::peers(CountTable::constant(b)));
    for requests in [1_u64, 4, 16] {
        let mut group = c.benchmark_group(format!("policies_{requests}_requests"));
        group.throughput(Throughput::Elements(requests * u64::from(TOKENS)));
        let cases = [
            ("eager", Policy::Eager),
            ("lookahead", Policy::default()),
            ("threshold_3", threshold(3)),
            ("step_sync", Policy::StepSync),
        ];
        for (name, policy) in cases {
            let engine = start(policy);
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter(|| answer(&engine, &question, requests))
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = setup::samples(10);
    targets = policies
}
criterion_main!(benches);
