//! Safetensors files: which ones, which tensors, and every kind of bad file (bug-log L06, L11, L12).

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tokenrouter_engine::error::LoadError;
use tokenrouter_engine::model::{Model, OpenModel};

use crate::support::{
    TempDir, Tensors, qwen3_config, random_checkpoint, random_tensors, write_checkpoint, write_safetensors,
};

const Q0: &str = "model.layers.0.self_attn.q_proj.weight";
const INDEX: &str = "model.safetensors.index.json";

fn open(config: &Value, tensors: &Tensors) -> Result<OpenModel, LoadError> {
    let dir = TempDir::new();
    write_checkpoint(dir.path(), config, tensors);
    Model::open(dir.path())
}

fn refused(result: Result<OpenModel, LoadError>, words: &[&str]) {
    let text = result.expect_err(&format!("{words:?} should have been refused")).to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} not in {text:?}");
    }
}

fn tensors() -> Tensors {
    random_tensors(&qwen3_config(), Dtype::BF16, 1)
}

#[test]
fn sizes_in_bytes() {
    let open = open(&qwen3_config(), &tensors()).unwrap();
    let values: usize = tensors().values().map(|(_, shape, _)| shape.iter().product::<usize>()).sum();
    assert_eq!(open.weight_bytes(1), 2 * values as u64);
    // 2 layers, keys and values, 2 heads of 8, 16 tokens.
    assert_eq!(open.kv_bytes_per_page(tokenrouter_kernels::DType::F32, 1), 2 * 2 * 2 * 8 * 16 * 4);
    assert_eq!(open.kv_bytes_per_page(tokenrouter_kernels::DType::Bf16, 1), 2 * 2 * 2 * 8 * 16 * 2);
}

#[test]
fn tie_table() {
    let both = tensors();
    let mut without = tensors();
    without.remove("lm_head.weight");
    let flag = |value: Value| {
        let mut config = qwen3_config();
        config["tie_word_embeddings"] = value;
        config
    };
    let shared = 50 * 24 * 2;
    let bytes = |flag_value: Value, t: &Tensors| open(&flag(flag_value), t).unwrap().weight_bytes(1);
    let untied = bytes(json!(false), &both);
    assert_eq!(bytes(json!(null), &both), untied);
    for (value, t) in [(json!(true), &without), (json!(true), &both), (json!(null), &without)] {
        assert_eq!(bytes(value, t), untied - shared);
    }
    refused(open(&flag(json!(false)), &without), &["lm_head.weight", "missing", "tie_word_embeddings"]);
}

#[test]
fn missing_misshapen_and_mistyped_tensors() {
    let mut t = tensors();
    t.remove(Q0);
    refused(open(&qwen3_config(), &t), &["model.safetensors", Q0, "missing", "[32, 24]"]);
    let mut t = tensors();
    let data = t[Q0].2.clone();
    t.insert(Q0.into(), (Dtype::BF16, vec![24, 32], data.clone()));
    refused(open(&qwen3_config(), &t), &[Q0, "[24, 32]", "[32, 24]"]);
    t.insert(Q0.into(), (Dtype::I16, vec![32, 24], data));
    refused(open(&qwen3_config(), &t), &[Q0, "I16", "BF16"]);
}

#[test]
fn types_may_be_mixed() {
    let mut t = tensors();
    for (i, (_, (dtype, shape, data))) in t.iter_mut().enumerate() {
        if i % 2 == 0 {
            let values = vec![0.5f32; shape.iter().product()];
            (*dtype, *data) = (Dtype::F32, crate::support::encode(&values, Dtype::F32));
        }
    }
    open(&qwen3_config(), &t).unwrap();
}

#[test]
fn strays_are_judged() {
    let extra = |name: &str| {
        let mut t = tensors();
        t.insert(name.into(), (Dtype::F32, vec![8], vec![0; 32]));
        open(&qwen3_config(), &t)
    };
    extra("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    extra("mtp.some.weight").unwrap();
    for name in [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.mlp.experts.0.weight",
        "model.layers.2.input_layernorm.weight",
        "model.vision.patch",
        "lm_head.bias",
    ] {
        refused(extra(name), &[name, "Qwen3ForCausalLM", "2 layers", "mathematics"]);
    }
    let mut config = qwen3_config();
    config["architectures"] = json!(["LlamaForCausalLM"]);
    config["model_type"] = json!("llama");
    refused(open(&config, &tensors()), &["k_norm", "LlamaForCausalLM"]);
}

#[test]
fn damaged_files() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 1);
    let path = dir.path().join("model.safetensors");
    let good = std::fs::read(&path).unwrap();
    Model::open(dir.path()).unwrap();
    let header_len = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let with_header = |header: &[u8]| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&good[8 + header_len..]);
        bytes
    };
    let header = std::str::from_utf8(&good[8..8 + header_len]).unwrap();
    let mut lengths = good.clone();
    lengths[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut longer = good.clone();
    longer.extend([0; 7]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("seven bytes", good[..7].to_vec()),
        ("cut in the header", good[..8 + header_len / 2].to_vec()),
        ("cut in the data", good[..good.len() - 1].to_vec()),
        ("bytes after the end", longer),
        ("absurd header length", lengths),
        ("header is no JSON", with_header(&vec![b'{'; header_len])),
        ("header is no UTF-8", with_header(&vec![0xff; header_len])),
        (
            "shape larger than its data",
            with_header(header.replacen("\"shape\":[", "\"shape\":[3,", 1).as_bytes()),
        ),
        (
            "overflowing shape",
            with_header(header.replacen("\"shape\":[", "\"shape\":[18446744073709551615,", 1).as_bytes()),
        ),
        ("overlapping offsets", with_header(overlap(header).as_bytes())),
        ("unknown type", with_header(header.replacen("\"BF16\"", "\"Q4_K\"", 1).as_bytes())),
    ];
    for (what, bytes) in cases {
        std::fs::write(&path, bytes).unwrap();
        let error = Model::open(dir.path()).expect_err(what).to_string();
        assert!(error.contains("model.safetensors"), "{what}: {error}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(Model::open(dir.path()).is_err());
}

/// The header with the second tensor's range laid over the first one's.
fn overlap(header: &str) -> String {
    let mut map: serde_json::Map<String, Value> = serde_json::from_str(header).unwrap();
    let mut ranges: Vec<(u64, String)> =
        map.iter().map(|(n, v)| (v["data_offsets"][0].as_u64().unwrap(), n.clone())).collect();
    ranges.sort();
    let second = &mut map[&ranges[1].1]["data_offsets"];
    let length = second[1].as_u64().unwrap() - second[0].as_u64().unwrap();
    *second = json!([0, length]);
    Value::Object(map).to_string()
}

/// Three shards of a checkpoint and the index that describes them.
fn shards(dir: &Path) -> serde_json::Map<String, Value> {
    let all = tensors();
    let mut names: Vec<&String> = all.keys().collect();
    names.sort();
    let mut weight_map = serde_json::Map::new();
    for (i, part) in names.chunks(names.len().div_ceil(3)).enumerate() {
        let file = format!("model-0000{}-of-00003.safetensors", i + 1);
        let held: Tensors = part.iter().map(|n| ((*n).clone(), all[*n].clone())).collect();
        write_safetensors(&dir.join(&file), &held);
        weight_map.extend(part.iter().map(|n| ((*n).clone(), json!(file))));
    }
    std::fs::write(dir.join("config.json"), qwen3_config().to_string()).unwrap();
    weight_map
}

fn write_index(dir: &Path, weight_map: &serde_json::Map<String, Value>) {
    let index = json!({"metadata": {"total_size": 1}, "weight_map": weight_map});
    std::fs::write(dir.join(INDEX), index.to_string()).unwrap();
}

#[test]
fn an_index_means_exactly_its_files() {
    let dir = TempDir::new();
    let weight_map = shards(dir.path());
    write_index(dir.path(), &weight_map);
    // A stray file beside them is not merged in, however broken.
    std::fs::write(dir.path().join("old.safetensors"), "rubbish").unwrap();
    Model::open(dir.path()).unwrap();

    let mut less = weight_map.clone();
    less.remove(Q0);
    write_index(dir.path(), &less);
    refused(Model::open(dir.path()), &[INDEX, Q0, "not in weight_map"]);
    let mut more = weight_map.clone();
    more.insert("model.extra".into(), weight_map[Q0].clone());
    write_index(dir.path(), &more);
    refused(Model::open(dir.path()), &[INDEX, "model.extra", "not there"]);
    let mut moved = weight_map.clone();
    moved[Q0] = weight_map["lm_head.weight"].clone();
    assert_ne!(moved[Q0], weight_map[Q0]);
    write_index(dir.path(), &moved);
    refused(Model::open(dir.path()), &[INDEX, Q0, "not there"]);
    for bad in
        [json!("../model.safetensors"), json!("/etc/passwd"), json!(""), json!(".."), json!(3), json!(null)]
    {
        let mut outside = weight_map.clone();
        outside[Q0] = bad;
        write_index(dir.path(), &outside);
        refused(Model::open(dir.path()), &[INDEX, Q0, "same folder"]);
    }
    for bad in ["{}", r#"{"weight_map": {}}"#, r#"{"weight_map": []}"#, "not json"] {
        std::fs::write(dir.path().join(INDEX), bad).unwrap();
        refused(Model::open(dir.path()), &[INDEX]);
    }

    write_index(dir.path(), &weight_map);
    let last = dir.path().join("model-00003-of-00003.safetensors");
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() - 10]).unwrap();
    refused(Model::open(dir.path()), &["model-00003-of-00003.safetensors", "truncated"]);
    std::fs::remove_file(&last).unwrap();
    refused(Model::open(dir.path()), &[INDEX, "model-00003-of-00003.safetensors", "not there"]);
}

#[test]
fn a_tensor_in_two_shards() {
    let dir = TempDir::new();
    let weight_map = shards(dir.path());
    write_index(dir.path(), &weight_map);
    let first = dir.path().join("model-00001-of-00003.safetensors");
    let names: Vec<&String> =
        weight_map.iter().filter(|(_, f)| *f == "model-00001-of-00003.safetensors").map(|(n, _)| n).collect();
    let all = tensors();
    let mut held: Tensors = names.iter().map(|n| ((*n).clone(), all[*n].clone())).collect();
    let doubled = weight_map.iter().find(|(_, f)| *f == "model-00002-of-00003.safetensors").unwrap().0;
    held.insert(doubled.clone(), all[doubled].clone());
    write_safetensors(&first, &held);
    refused(Model::open(dir.path()), &[doubled, "also in", "once"]);
}

#[test]
fn numbered_shards_without_an_index() {
    let dir = TempDir::new();
    shards(dir.path());
    Model::open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    refused(Model::open(dir.path()), &["2 of 3 shards", "missing: 2"]);
    std::fs::write(dir.path().join("model-00001-of-00002.safetensors"), "").unwrap();
    refused(Model::open(dir.path()), &["two checkpoints"]);
    let empty = TempDir::new();
    std::fs::write(empty.path().join("config.json"), qwen3_config().to_string()).unwrap();
    refused(Model::open(empty.path()), &["no model.safetensors"]);
    std::fs::write(empty.path().join("pytorch_model.bin"), "").unwrap();
    refused(Model::open(empty.path()), &["convert them to safetensors"]);
}
