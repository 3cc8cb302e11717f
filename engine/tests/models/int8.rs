//! Linear layers as 8-bit integers: the logits are those of a checkpoint that holds the same numbers as f32, whole and in
//! parts; the bytes that the plan counts; and what is refused.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tokenrouter_engine::model::{Model, OpenModel};
use tokenrouter_engine::probe::prints;
use tokenrouter_engine::{
    CudaOptions, DeviceKind, EngineConfig, EngineModel, FaultOptions, Hints, RouteConfig, WeightForm, check,
};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{Ctx, Int8Ref, Isa, WeightRef, WorkerGroup, quantise};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{Handoff, Policy};

use crate::parts::{PAGES, logits, options};
use crate::support::{TempDir, Tensors, encode, qwen3_config, random_tensors, wide_config, write_checkpoint};

fn open(dir: &TempDir) -> OpenModel {
    Model::open(dir.path()).unwrap().with_form(WeightForm::Int8)
}

fn checkpoint(config: &Value, tensors: &Tensors) -> TempDir {
    let dir = TempDir::new();
    write_checkpoint(dir.path(), config, tensors);
    dir
}

/// The same checkpoint with the numbers that 8-bit integers stand for, as f32; never tied, since lookups keep theirs.
fn dequantised(config: &Value, tensors: &Tensors) -> TempDir {
    let workers = WorkerGroup::new("test", 1).unwrap();
    let ctx = Ctx { isa: Isa::Portable, workers: &workers };
    let mut config = config.clone();
    config["tie_word_embeddings"] = json!(false);
    let mut tensors = tensors.clone();
    let embed = tensors["model.embed_tokens.weight"].clone();
    tensors.entry("lm_head.weight".to_owned()).or_insert(embed);
    for (name, (dtype, shape, data)) in &mut tensors {
        if name.ends_with("_proj.weight") || name == "lm_head.weight" {
            assert_eq!(*dtype, Dtype::BF16);
            let mut bytes = vec![0; Int8Ref::bytes(shape[0], shape[1]).unwrap()];
            let stored = WeightRef::new(DType::Bf16, shape[0], shape[1], data).unwrap();
            quantise(ctx, stored, &mut bytes).unwrap();
            let w = Int8Ref::new(shape[0], shape[1], &bytes).unwrap();
            let values: Vec<f32> =
                (0..shape[0] * shape[1]).map(|i| w.get(i / shape[1], i % shape[1])).collect();
            (*dtype, *data) = (Dtype::F32, encode(&values, Dtype::F32));
        }
    }
    checkpoint(&config, &tensors)
}

fn tied(mut config: Value) -> Value {
    config["tie_word_embeddings"] = json!(true);
    config
}

#[test]
fn logits_are_those_of_the_same_numbers_as_f32() {
    for config in [qwen3_config(), tied(qwen3_config()), wide_config()] {
        let tensors = random_tensors(&config, Dtype::BF16, 5);
        let expected = {
            let dir = dequantised(&config, &tensors);
            logits(&mut [Model::open(dir.path()).unwrap().build(options(1), PAGES).unwrap()])
        };
        let dir = checkpoint(&config, &tensors);
        for threads in [1, 2] {
            let found = logits(&mut [open(&dir).build(options(threads), PAGES).unwrap()]);
            assert!(found == expected, "{config} on {threads} threads");
        }
        let stored = logits(&mut [Model::open(dir.path()).unwrap().build(options(1), PAGES).unwrap()]);
        assert!(stored != expected, "8 bits say something else than 16");
    }
}

#[test]
fn parts_have_the_logits_of_the_whole() {
    let dir = checkpoint(&wide_config(), &random_tensors(&wide_config(), Dtype::BF16, 7));
    let expected = logits(&mut [open(&dir).build(options(1), PAGES).unwrap()]);
    for parts in [1, 2, 4] {
        let open = open(&dir);
        let seats = open.seats(&options(1), parts).unwrap();
        let mut models: Vec<Model> =
            seats.into_iter().map(|seat| open.build_part(options(1), PAGES, seat).unwrap()).collect();
        assert!(logits(&mut models) == expected, "{parts} parts");
    }
}

/// 32 columns share a scale: a part that begins in the middle of them would have another one.
#[test]
fn a_part_that_cuts_a_block_of_columns_is_refused() {
    let dir = checkpoint(&qwen3_config(), &random_tensors(&qwen3_config(), Dtype::BF16, 7));
    let error = open(&dir).check_parts(2).unwrap_err().to_string();
    assert!(error.contains("num_attention_heads: times head_dim is 32"), "{error}");
    assert!(error.contains("weights = \"int8\"") && error.contains("holds 16"), "{error}");
    assert!(Model::open(dir.path()).unwrap().check_parts(2).is_ok(), "as stored it can be cut");
}

#[test]
fn bytes_are_those_in_memory() {
    let bytes = |rows, cols| Int8Ref::bytes(rows, cols).unwrap() as u64;
    for (config, head_and_embed) in
        [(qwen3_config(), bytes(50, 24) + 2 * 50 * 24), (tied(qwen3_config()), bytes(50, 24) + 2 * 50 * 24)]
    {
        let dir = checkpoint(&config, &random_tensors(&config, Dtype::BF16, 3));
        let norms = 2 * (2 * 24 + 2 * 8) + 24;
        let kv = 2 * bytes(16, 24);
        let layer = bytes(32, 24) + kv + bytes(24, 32) + 2 * bytes(40, 24) + bytes(24, 40);
        let expected = 2 * layer + head_and_embed + 2 * norms;
        assert_eq!(open(&dir).weight_bytes(1), expected);
        assert_eq!(open(&dir).demand("m", &options(1), 1).weight_bytes, expected);
        assert_eq!(open(&dir).step_bytes(), expected - 2 * 50 * 24, "of the embedding a step looks up rows");
    }
    // Cut in two, each part has its halves, of which the last rows are filled up.
    let dir = checkpoint(&wide_config(), &random_tensors(&wide_config(), Dtype::BF16, 3));
    let (whole, cut) = (open(&dir).weight_bytes(1), open(&dir).weight_bytes(2));
    assert!(cut >= whole && cut < whole + whole / 20, "{whole} {cut}");
}

#[test]
fn a_weight_that_is_no_number_is_refused_by_tensor() {
    let mut tensors = random_tensors(&qwen3_config(), Dtype::BF16, 3);
    let name = "model.layers.1.mlp.down_proj.weight";
    // Row 1, column 2 of 40 becomes an infinity.
    tensors.get_mut(name).unwrap().2[2 * 42..2 * 43].copy_from_slice(&0x7f80u16.to_le_bytes());
    let dir = checkpoint(&qwen3_config(), &tensors);
    let error = open(&dir).build(options(1), PAGES).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("inf in row 1, column 2"), "{error}");
    assert!(Model::open(dir.path()).unwrap().build(options(1), PAGES).is_ok());
}

fn engine_config(dir: &Path, weights: WeightForm, device: DeviceKind) -> EngineConfig {
    EngineConfig {
        models: vec![EngineModel {
            weights,
            name: "small".into(),
            dir: dir.to_owned(),
            devices: vec![0],
            threads: 1,
            max_batch_rows: 4,
            max_step_tokens: 32,
            heads: Vec::new(),
        }],
        routes: vec![RouteConfig {
            name: "alone".into(),
            router: "single".into(),
            params: BTreeMap::from([("model".to_owned(), ParamValue::Int(0))]),
        }],
        device,
        budget_bytes: 64 << 20,
        kv_dtype: if device == DeviceKind::Cpu { DType::F32 } else { DType::Bf16 },
        context_len: 64,
        prefix_cache: false,
        reserve_pages: 0,
        max_running: 4,
        max_waiting: 4,
        real_vocab: 50,
        eos_ids: Vec::new(),
        policy: Policy::Eager,
        planner: None,
        faults: FaultOptions::default(),
        handoff: Handoff::default(),
    }
}

#[test]
fn gpus_refuse_8_bit_weights_by_model_and_key() {
    let dir = checkpoint(&qwen3_config(), &random_tensors(&qwen3_config(), Dtype::BF16, 3));
    let cuda = DeviceKind::Cuda(CudaOptions::default());
    let refused = check(&engine_config(dir.path(), WeightForm::Int8, cuda), &Registry::builtin());
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("model \"small\": weights is \"int8\", which only the CPU has"), "{error}");
    assert!(check(&engine_config(dir.path(), WeightForm::Stored, cuda), &Registry::builtin()).is_ok());
    let planned = check(&engine_config(dir.path(), WeightForm::Int8, DeviceKind::Cpu), &Registry::builtin());
    assert!(planned.is_ok_and(|checked| checked.plan.contains("small")));
}

/// A profile of one form is refused for the other: its times are of other weights.
#[test]
fn a_measurement_tells_the_forms_apart() {
    let dir = checkpoint(&qwen3_config(), &random_tensors(&qwen3_config(), Dtype::BF16, 3));
    let print = |form| {
        let config = engine_config(dir.path(), form, DeviceKind::Cpu);
        prints(&config, &Hints::default()).unwrap().remove(0).print
    };
    let (stored, int8) = (print(WeightForm::Stored), print(WeightForm::Int8));
    assert!(stored.contains(" bf16 ") && int8.contains(" int8 "), "{stored} {int8}");
}
