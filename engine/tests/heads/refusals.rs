//! Router files that must not load: each is refused with the file, the field or tensor, and what would be right.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tokenrouter_engine::heads::{ModelPrint, RouterFile, tokenizer_print};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;

use crate::golden;
use crate::support::{TempDir, Tensors, encode, write_safetensors};

/// A copy of a golden router, changed.
pub(crate) fn changed(
    name: &str,
    description: impl Fn(&mut Value),
    weights: impl Fn(&mut Tensors),
) -> TempDir {
    let dir = TempDir::new();
    let from = golden().join(name);
    let mut json: Value = serde_json::from_slice(&std::fs::read(from.join("router.json")).unwrap()).unwrap();
    description(&mut json);
    std::fs::write(dir.path().join("router.json"), json.to_string()).unwrap();
    let bytes = std::fs::read(from.join("router.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Tensors = file
        .tensors()
        .into_iter()
        .map(|(n, v)| (n, (v.dtype(), v.shape().to_vec(), v.data().to_vec())))
        .collect();
    weights(&mut tensors);
    write_safetensors(&dir.path().join("router.safetensors"), &tensors);
    dir
}

fn open(path: &Path) -> Result<(), String> {
    let open = Model::open(&golden().join("model")).unwrap().with_heads(&[path.to_path_buf()]);
    open.map(|_| ()).map_err(|e| e.to_string())
}

fn refusal(dir: &TempDir) -> String {
    open(dir.path()).expect_err("a refusal")
}

#[test]
fn an_unchanged_copy_loads() {
    for name in ["r2r-plain", "r2r-widths", "r2r-three", "citer", "co-llm", "query"] {
        let dir = changed(name, |_| {}, |_| {});
        assert_eq!(open(dir.path()), Ok(()), "{name}");
    }
}

#[test]
fn a_file_from_before_layers_were_counted_loads() {
    let without = |json: &mut Value| {
        json["model"].as_object_mut().unwrap().remove("layers").expect("it counts them");
    };
    assert_eq!(open(changed("citer", without, |_| {}).path()), Ok(()));
    let more = |json: &mut Value| json["model"]["layers"] = json!(3);
    let error = refusal(&changed("citer", more, |_| {}));
    assert!(error.contains("layers 3") && error.contains("layers 2"), "{error}");
}

#[test]
fn fields_of_the_description_are_checked() {
    let cases: Vec<(&str, &str, Value, &str)> = vec![
        ("r2r-plain", "format", json!(2), "format 1"),
        ("r2r-plain", "format", Value::Null, "format 1"),
        ("r2r-plain", "kind", json!("r3r"), "r2r, citer, co-llm, query"),
        ("r2r-plain", "threshold", json!(1.5), "from 0 to 1"),
        ("r2r-plain", "threshold", json!(-0.1), "from 0 to 1"),
        ("r2r-plain", "threshold", json!("half"), "finite number"),
        ("r2r-plain", "direction", json!("<"), ">="),
        ("citer", "direction", json!(">="), "<"),
        ("co-llm", "direction", Value::Null, ">"),
        ("query", "direction", json!("<"), ">="),
        ("query", "threshold", json!(2), "from 0 to 1"),
        ("query", "hidden_dims", json!([12, 1]), "one width"),
        ("query", "hidden_dims", json!([]), "1 to 64"),
        ("query", "hidden_dims", Value::Null, "1 to 64"),
        ("query", "layer_norm_eps", json!(1e-5), "unknown"),
        ("query", "model", Value::Null, "absent"),
        ("r2r-plain", "hidden_dims", json!([]), "1 to 64"),
        ("r2r-plain", "hidden_dims", json!([12, 0]), "1 to 64"),
        ("r2r-plain", "hidden_dims", json!([12, 99_999_999]), "131072"),
        ("citer", "hidden_dims", json!([64]), "two widths"),
        ("r2r-plain", "expansion_factor", json!(0), "1 to 64"),
        ("r2r-plain", "logits_size", json!(161), "160 logits"),
        ("r2r-plain", "logits_size", json!(1.5), "whole number"),
        ("r2r-three", "outputs", json!(2), "three classes"),
        ("r2r-plain", "normalize_input", json!("no"), "true or false"),
        ("r2r-plain", "layer_norm_eps", json!(0), "above 0"),
        ("citer", "batch_norm_eps", json!(2), "at most 1"),
        ("co-llm", "defer_id", json!(-1), "whole number"),
        ("r2r-plain", "dropout", json!(0.1), "unknown"),
        ("citer", "logits_size", json!(100), "unknown"),
        ("r2r-plain", "model", Value::Null, "absent"),
    ];
    for (name, field, value, expected) in cases {
        let dir = changed(name, |json| json[field] = value.clone(), |_| {});
        let error = refusal(&dir);
        assert!(error.contains("router.json") && error.contains(field), "{field} {value}: {error}");
        assert!(error.contains(expected), "{field} {value}: {error}");
    }
    let dir = TempDir::new();
    assert!(refusal(&dir).contains("router.json"));
    std::fs::write(dir.path().join("router.json"), "[1]").unwrap();
    assert!(refusal(&dir).contains("JSON object"));
}

#[test]
fn a_router_of_another_model_is_refused_with_both_fingerprints() {
    let ours = ModelPrint::read(&golden().join("model")).unwrap();
    let cases = [
        ("hidden_size", json!(64), "hidden_size 64", "hidden_size 32"),
        ("vocab_size", json!(151_936), "vocab_size 151936", "vocab_size 160"),
        ("tokenizer", json!("fp0011223344556677"), "fp0011223344556677", ours.tokenizer.as_str()),
        ("weights", json!("fp8899aabbccddeeff"), "fp8899aabbccddeeff", ours.weights.as_str()),
    ];
    for (field, value, theirs, of_model) in cases {
        for name in ["citer", "query"] {
            let dir = changed(name, |json| json["model"][field] = value.clone(), |_| {});
            let error = refusal(&dir);
            assert!(
                error.contains(theirs) && error.contains(of_model) && error.contains("another model"),
                "{error}"
            );
        }
    }
    let dir = changed("citer", |json| json["model"]["weights"] = Value::Null, |_| {});
    assert_eq!(open(dir.path()), Ok(()), "weights left open");
    let dir = changed("citer", |json| json["model"]["tokenizer"] = Value::Null, |_| {});
    assert!(refusal(&dir).contains("model.tokenizer"));
}

#[test]
fn tensors_are_checked() {
    let set = |name: &'static str, value: f32, at: usize| {
        move |t: &mut Tensors| {
            t.get_mut(name).unwrap().2[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes())
        }
    };
    let nan = changed("r2r-plain", |_| {}, set("backbone.blocks.3.mlp.0.bias", f32::NAN, 2));
    let error = refusal(&nan);
    assert!(error.contains("backbone.blocks.3.mlp.0.bias") && error.contains("NaN"), "{error}");
    let infinite = changed("co-llm", |_| {}, set("defer_row", f32::NEG_INFINITY, 31));
    assert!(refusal(&infinite).contains("value 31"));
    let variance = changed("citer", |_| {}, set("mlp.1.running_var", -0.5, 1));
    assert!(refusal(&variance).contains("variance"));
    let folded = changed(
        "citer",
        |json| json["batch_norm_eps"] = json!(1e-20),
        |t| {
            set("mlp.1.running_var", 0.0, 1)(t);
            set("mlp.1.weight", 1e38, 1)(t);
        },
    );
    let error = refusal(&folded);
    assert!(error.contains("mlp.1") && error.contains("folds"), "{error}");

    let missing = changed("citer", |_| {}, |t| drop(t.remove("mlp.1.running_mean")));
    let error = refusal(&missing);
    assert!(
        error.contains("mlp.1.running_mean") && error.contains("missing") && error.contains("[64]"),
        "{error}"
    );
    let shape = changed("r2r-plain", |json| json["expansion_factor"] = json!(3), |_| {});
    let error = refusal(&shape);
    assert!(
        error.contains("mlp.0.weight") && error.contains("[48, 12]") && error.contains("[36, 12]"),
        "{error}"
    );
    let surplus = changed(
        "co-llm",
        |_| {},
        |t| {
            t.insert("token_embeddings.weight".into(), (Dtype::F32, vec![1], encode(&[1.0], Dtype::F32)));
        },
    );
    let error = refusal(&surplus);
    assert!(error.contains("token_embeddings.weight") && error.contains("surplus"), "{error}");
    let nan = changed("query", |_| {}, set("mlp.0.weight", f32::NAN, 7));
    let error = refusal(&nan);
    assert!(error.contains("mlp.0.weight") && error.contains("NaN") && error.contains("value 7"), "{error}");
    let missing = changed("query", |_| {}, |t| drop(t.remove("mlp.2.bias")));
    assert!(refusal(&missing).contains("mlp.2.bias") && refusal(&missing).contains("missing"));
    let shape = changed("query", |json| json["hidden_dims"] = json!([13]), |_| {});
    let error = refusal(&shape);
    assert!(
        error.contains("mlp.0.weight") && error.contains("[12, 32]") && error.contains("[13, 32]"),
        "{error}"
    );
    let surplus = changed(
        "query",
        |_| {},
        |t| {
            t.insert("mlp.1.weight".into(), (Dtype::F32, vec![1], encode(&[1.0], Dtype::F32)));
        },
    );
    assert!(refusal(&surplus).contains("mlp.1.weight") && refusal(&surplus).contains("surplus"));

    let fewer_blocks = changed("r2r-plain", |json| json["hidden_dims"] = json!([12, 12]), |_| {});
    assert!(refusal(&fewer_blocks).contains("surplus"));
    let integers = changed("co-llm", |_| {}, |t| t.get_mut("defer_row").unwrap().0 = Dtype::I32);
    assert!(refusal(&integers).contains("I32"));

    let cut = changed("citer", |_| {}, |_| {});
    let file = cut.path().join("router.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 8]).unwrap();
    assert!(refusal(&cut).contains("router.safetensors"));
    std::fs::remove_file(&file).unwrap();
    assert!(refusal(&cut).contains("cannot be opened"));
}

#[test]
fn narrow_weights_are_read_and_computed_in_single_precision() {
    let dir = changed(
        "co-llm",
        |_| {},
        |t| {
            let row = t.get_mut("defer_row").unwrap();
            let values: Vec<f32> =
                row.2.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            (row.0, row.2) = (Dtype::BF16, encode(&values, Dtype::BF16));
        },
    );
    assert_eq!(open(dir.path()), Ok(()));
}

#[test]
fn too_many_heads_and_too_few_unmasked_ids_are_refused() {
    let head = golden().join("r2r-plain");
    let five = vec![head.clone(); 5];
    let error = Model::open(&golden().join("model")).unwrap().with_heads(&five).unwrap_err().to_string();
    assert!(error.contains("heads") && error.contains("at most 4"), "{error}");
    let options = ModelOptions {
        threads: 1,
        max_batch_rows: 2,
        max_step_tokens: 8,
        kv_dtype: DType::F32,
        real_vocab: 99,
        context_len: 16,
    };
    let open = Model::open(&golden().join("model")).unwrap().with_heads(&[head]).unwrap();
    let error = open.build(options, 2).err().expect("a refusal").to_string();
    assert!(error.contains("logits_size") && error.contains("99"), "{error}");
}

#[test]
fn descriptions_survive_reading_and_writing() {
    for name in ["r2r-plain", "r2r-widths", "r2r-three", "citer", "co-llm", "query"] {
        let file = RouterFile::load(&golden().join(name)).unwrap();
        let text = std::fs::read(golden().join(name).join("router.json")).unwrap();
        assert_eq!(file.to_json(), serde_json::from_slice::<Value>(&text).unwrap(), "{name}");
    }
}

#[test]
fn a_folder_without_a_tokenizer_has_a_print_of_its_own() {
    assert_eq!(tokenizer_print(TempDir::new().path()).as_deref(), Ok("none"));
}
