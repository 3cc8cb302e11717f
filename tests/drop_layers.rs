//! `models/drop_layers.py` on small models: the layers that stay keep their bytes under new numbers, the engine opens the
//! copy, and what cannot be dropped is refused. Needs python3 and nothing else.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use serde_json::Value;
use support::heads::write_random;
use support::process::scratch_dir;
use support::{root, skip};
use tokenrouter_engine::model::Model;

/// Name to shape and bytes, of every weight file of a folder.
fn tensors(dir: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let bytes = std::fs::read(&path).expect("weights");
            for (name, view) in SafeTensors::deserialize(&bytes).expect("safetensors").tensors() {
                out.insert(name, (view.shape().to_vec(), view.data().to_vec()));
            }
        }
    }
    out
}

fn config(dir: &Path) -> Value {
    let text = std::fs::read_to_string(dir.join("config.json")).expect("a configuration");
    serde_json::from_str(&text).expect("JSON")
}

/// Whether it went well, and what it said.
fn drop_layers(source: &Path, out: &Path, layers: &str) -> (bool, String) {
    let output = Command::new("python3")
        .arg(root().join("models/drop_layers.py"))
        .args([source, out])
        .args(["--drop", layers])
        .output()
        .expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        skip("python3 is not installed, so models/drop_layers.py cannot run");
    }
    found
}

fn golden(name: &str) -> PathBuf {
    root().join("tests/golden").join(name)
}

#[test]
fn the_layers_that_stay_keep_their_bytes_under_new_numbers() {
    if !has_python() {
        return;
    }
    // Which old layer each new one is.
    let cases: [(PathBuf, &str, &[usize]); 5] = [
        (golden("llama-linear"), "0", &[1]),
        (golden("qwen2-f16"), "1", &[0]),
        (golden("qwen3-untied-sharded"), "0", &[1]),
        (root().join("models/demo/slm"), "1", &[0, 2]),
        (root().join("models/demo/slm"), "0,2,0", &[1]),
    ];
    for (index, (source, dropped, old)) in cases.into_iter().enumerate() {
        let out = scratch_dir("dropped").join(index.to_string());
        let (ok, said) = drop_layers(&source, &out, dropped);
        assert!(ok, "{}: {said}", source.display());
        let (before, after) = (tensors(&source), tensors(&out));
        let mut expected: BTreeMap<&String, _> =
            before.iter().filter(|(name, _)| !name.starts_with("model.layers.")).collect();
        let outside = expected.len();
        let renamed: Vec<(String, _)> = before
            .iter()
            .flat_map(|(name, tensor)| {
                old.iter().enumerate().filter_map(move |(new, old)| {
                    let rest = name.strip_prefix(&format!("model.layers.{old}."))?;
                    Some((format!("model.layers.{new}.{rest}"), tensor))
                })
            })
            .collect();
        expected.extend(renamed.iter().map(|(name, tensor)| (name, *tensor)));
        assert!(outside >= 2 && expected.len() > outside, "{}", source.display());
        assert!(expected.keys().copied().eq(after.keys()), "{:?}", after.keys());
        assert!(expected.into_iter().all(|(name, tensor)| after[name] == *tensor), "{}", source.display());
        let mut shorter = config(&source);
        shorter["num_hidden_layers"] = old.len().into();
        if let Some(kinds) = shorter.get("layer_types").and_then(Value::as_array).cloned() {
            shorter["layer_types"] = old.iter().map(|l| kinds[*l].clone()).collect();
        }
        let mut written = config(&out);
        for config in [&mut shorter, &mut written] {
            config.as_object_mut().expect("an object").remove("max_window_layers");
        }
        assert_eq!(written, shorter, "{}", source.display());
        assert_eq!(Model::open(&out).expect("the engine opens it").config().layers, old.len());
        let tokenizer = "tokenizer.json";
        assert_eq!(std::fs::read(source.join(tokenizer)).ok(), std::fs::read(out.join(tokenizer)).ok());
    }
}

#[test]
fn what_cannot_be_dropped_is_refused() {
    if !has_python() {
        return;
    }
    let (source, dir) = (golden("llama-linear"), scratch_dir("not-dropped"));
    let short = dir.join("short");
    std::fs::create_dir_all(&short).expect("a folder");
    std::fs::copy(source.join("config.json"), short.join("config.json")).expect("a configuration");
    let weights = std::fs::read(source.join("model.safetensors")).expect("weights");
    std::fs::write(short.join("model.safetensors"), &weights[..weights.len() - 1]).expect("weights");
    let deeper = dir.join("deeper");
    std::fs::create_dir_all(&deeper).expect("a folder");
    std::fs::write(deeper.join("model.safetensors"), &weights).expect("weights");
    let mut claims = config(&source);
    claims["num_hidden_layers"] = 3.into();
    std::fs::write(deeper.join("config.json"), claims.to_string()).expect("a configuration");
    let out = dir.join("out");
    let cases = [
        (&source, "2", "--drop has 2"),
        (&source, "0,-1", "--drop has -1"),
        (&source, "0,1", "at least one must stay"),
        (&source, "one", "layer numbers"),
        (&short, "0", "outside the file"),
        (&deeper, "2", "config.json says 3 layers"),
        (&dir, "0", "config.json"),
    ];
    for (source, layers, expected) in cases {
        let (ok, said) = drop_layers(source, &out, layers);
        assert!(!ok && said.contains(expected) && !said.contains("Traceback"), "{layers}: {said}");
        assert!(!out.exists(), "{layers}: nothing is written");
    }
    let (ok, said) = drop_layers(&source, &short, "0");
    assert!(!ok && said.contains("has a config.json already"), "{said}");
}

/// The copy has the whole model's embedding, last layer and norm, which are all that the digest of the weights reads.
#[test]
fn a_router_of_the_whole_model_is_refused_by_its_copy_without_a_layer() {
    if !has_python() {
        return;
    }
    let (source, dir) = (root().join("models/demo/slm"), scratch_dir("dropped-owner"));
    let (copy, head) = (dir.join("copy"), dir.join("head"));
    let (ok, said) = drop_layers(&source, &copy, "1");
    assert!(ok, "{said}");
    write_random("co-llm", &head, None);
    let open = |model: &Path| Model::open(model).expect("a model").with_heads(std::slice::from_ref(&head));
    assert!(open(&source).is_ok());
    let error = open(&copy).expect_err("another model").to_string();
    assert!(error.contains("layers 3") && error.contains("layers 2"), "{error}");
}
