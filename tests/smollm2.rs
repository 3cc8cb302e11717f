//! A real checkpoint: SmolLM2-135M-Instruct, greedy, against the ids that transformers gave.
//! `models/fetch_smollm2.sh` makes the folder; `TOKENROUTER_SMOLLM2` names it.

mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::engine::{request, route, run_all, start, stop};
use support::{root, skip};
use tokenrouter_engine::{DType, DeviceKind, EngineConfig, EngineModel, FaultOptions, WeightForm};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{Handoff, Policy};
use tokenrouter_server::text::{ChatOptions, TextModel};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
}

fn prompt_ids(text: &TextModel, case: &Value) -> Vec<u32> {
    if let Some(prompt) = case["prompt"].as_str() {
        return text.encode(prompt, false).expect("a prompt");
    }
    let rendered = text.chat_prompt(&case["messages"], &ChatOptions::default()).expect("the template");
    text.encode_rendered(&rendered).expect("a prompt")
}

#[test]
fn greedy_ids_are_those_of_transformers() {
    let Some(dir) = std::env::var_os("TOKENROUTER_SMOLLM2").map(PathBuf::from) else {
        return skip("TOKENROUTER_SMOLLM2 does not name the folder made by models/fetch_smollm2.sh");
    };
    let golden = std::fs::read_to_string(root().join("tests/golden/smollm2.json")).expect("the golden file");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let text = TextModel::load(&dir).expect("the tokenizer");
    let config = EngineConfig {
        models: vec![EngineModel {
            weights: WeightForm::Stored,
            name: "smollm2".into(),
            dir,
            devices: vec![0],
            threads: 2,
            max_batch_rows: 16,
            max_step_tokens: 128,
            heads: Vec::new(),
        }],
        routes: vec![route("smollm2", "single", "model", ParamValue::Int(0))],
        device: DeviceKind::Cpu,
        budget_bytes: 1 << 30,
        kv_dtype: DType::F32,
        context_len: 2048,
        prefix_cache: true,
        reserve_pages: 8,
        max_running: 16,
        max_waiting: 16,
        real_vocab: text.real_vocab(),
        eos_ids: text.eos_ids().to_vec(),
        policy: Policy::default(),
        handoff: Handoff::default(),
        planner: None,
        faults: FaultOptions::default(),
    };
    let engine = start(&config, &Registry::builtin());
    let cases = golden["cases"].as_array().expect("cases");
    let mut requests = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let prompt = prompt_ids(&text, case);
        assert_eq!(prompt, ids(&case["prompt_ids"]), "tokenizer and template, case {i}");
        requests.push(request(i as u64, &prompt, 0, ids(&case["output_ids"]).len() as u32));
    }
    let answers = run_all(&engine, requests);
    for (i, case) in cases.iter().enumerate() {
        assert_eq!(answers[&(i as u64)].tokens, ids(&case["output_ids"]), "case {i}: {}", case["text"]);
    }
    stop(&engine);
}
