//! Heads in a deployment: named in `EngineInfo`, counted in the budget, and there when a router asks for them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokenrouter_engine::heads::{Direction, HeadKind};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_engine::{
    DType, DeviceKind, EngineConfig, EngineModel, FaultOptions, RouteConfig, WeightForm, start,
};
use tokenrouter_scheduler::router::{Registry, RouteRow, Router, SignalSet, StepView};
use tokenrouter_scheduler::{Handoff, ModelId, ModelSet, Policy};

use crate::golden;

/// Stays at its model and reads the score of a head.
struct Reads(usize);

impl Router for Reads {
    fn name(&self) -> &str {
        "reads"
    }
    fn signals(&self) -> SignalSet {
        SignalSet::score(self.0)
    }
    fn entry(&self) -> ModelId {
        ModelId(0)
    }
    fn reach(&self) -> ModelSet {
        ModelSet::of(ModelId(0))
    }
    fn route(&self, step: &StepView<'_>, to: &mut [ModelId]) {
        let _: &[RouteRow] = step.rows;
        to.fill(ModelId(0));
    }
}

fn config(heads: &[&str]) -> EngineConfig {
    EngineConfig {
        models: vec![EngineModel {
            weights: WeightForm::Stored,
            name: "small".into(),
            dir: golden().join("model"),
            devices: vec![0],
            threads: 1,
            max_batch_rows: 4,
            max_step_tokens: 32,
            heads: heads.iter().map(|h| golden().join(h)).collect(),
        }],
        routes: vec![RouteConfig { name: "routed".into(), router: "reads".into(), params: BTreeMap::new() }],
        device: DeviceKind::Cpu,
        budget_bytes: 64 << 20,
        kv_dtype: DType::F32,
        context_len: 64,
        prefix_cache: false,
        reserve_pages: 0,
        max_running: 4,
        max_waiting: 4,
        real_vocab: 160,
        eos_ids: Vec::new(),
        policy: Policy::Eager,
        planner: None,
        faults: FaultOptions::default(),
        handoff: Handoff::default(),
    }
}

fn registry(head: usize) -> Registry {
    let mut registry = Registry::empty();
    registry.register("reads", move |_| Ok(Box::new(Reads(head)))).unwrap();
    registry
}

#[test]
fn a_router_that_asks_for_a_head_that_is_not_there_is_refused() {
    for (heads, head) in [(&[][..], 0), (&["citer"][..], 1), (&["citer", "co-llm"][..], 3)] {
        let error =
            start(&config(heads), &registry(head), Box::new(|| {})).err().expect("a refusal").to_string();
        for part in
            ["routed", "reads", "small", &format!("head {head}"), &format!("has {} router", heads.len())]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn the_info_names_the_heads() {
    let engine = start(&config(&["r2r-plain", "citer"]), &registry(1), Box::new(|| {})).unwrap();
    let heads = &engine.info.models[0].heads;
    assert_eq!((heads[0].kind, heads[0].direction), (HeadKind::R2r, Direction::AtLeast));
    assert_eq!(heads[0].threshold, Some(0.405_959_6));
    assert_eq!(
        (heads[1].kind, heads[1].direction, heads[1].threshold),
        (HeadKind::Citer, Direction::Below, None)
    );
}

#[test]
fn a_broken_head_is_refused_with_the_model_it_was_meant_for() {
    let error =
        start(&config(&["torch"]), &registry(0), Box::new(|| {})).err().expect("a refusal").to_string();
    assert!(error.contains("\"small\"") && error.contains("router.json"), "{error}");
}

#[test]
fn weights_and_buffers_of_heads_are_in_the_budget() {
    let options = ModelOptions {
        threads: 1,
        max_batch_rows: 4,
        max_step_tokens: 32,
        kv_dtype: DType::F32,
        real_vocab: 160,
        context_len: 64,
    };
    let demand = |heads: &[PathBuf]| {
        Model::open(&golden().join("model")).unwrap().with_heads(heads).unwrap().demand("m", &options, 1)
    };
    let (without, with) = (demand(&[]), demand(&[golden().join("r2r-plain"), golden().join("co-llm")]));
    let file = |name: &str| {
        let bytes = std::fs::read(golden().join(name).join("router.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.tensors().iter().map(|(_, t)| t.data().len() as u64).sum::<u64>()
    };
    assert_eq!(with.weight_bytes - without.weight_bytes, file("r2r-plain") + file("co-llm"));
    // Per row: 100 logits, five buffers of the hidden width (three of them one), three of the widest block, its inner
    // layer, two places for three outputs, a score for each head.
    let row = 100 + 5 * 32 + 3 * 12 + 48 + 6 + 2;
    assert_eq!(with.activation_bytes - without.activation_bytes, 4 * 4 * row);
}

/// A head that reads prompts makes the model keep the hidden state of every position of the cache.
#[test]
fn kept_states_are_in_the_budget() {
    let options = ModelOptions {
        threads: 1,
        max_batch_rows: 4,
        max_step_tokens: 32,
        kv_dtype: DType::F16,
        real_vocab: 160,
        context_len: 64,
    };
    let demand = |heads: &[PathBuf]| {
        Model::open(&golden().join("model")).unwrap().with_heads(heads).unwrap().demand("m", &options, 1)
    };
    let (without, with) =
        (demand(&[golden().join("citer")]), demand(&["citer", "query"].map(|h| golden().join(h))));
    assert_eq!(with.kv_bytes_per_page - without.kv_bytes_per_page, 16 * 32 * 4);
    // Per row: the mean, the inner layer, a score.
    assert_eq!(with.activation_bytes - without.activation_bytes, 4 * 4 * (32 + 12 + 1));
    assert_eq!(demand(&[]).kv_bytes_per_page, without.kv_bytes_per_page, "other heads keep nothing");
}
