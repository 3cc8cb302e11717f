//! Pairs of checkpoints that fit together, nearly fit, and do not: tokenizers, padded vocabularies, broken files.

mod support;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use serde_json::{Value, json};
use support::http::post;
use support::process::{ServerProcess, demo_config, run, scratch_dir};
use support::root;

/// A copy of one demo checkpoint that a test may damage.
fn copy(model: &str) -> PathBuf {
    let to = scratch_dir(model);
    for entry in std::fs::read_dir(root().join("models/demo").join(model)).expect("the demo pair") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    to
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let text = std::fs::read_to_string(path).expect("a file");
    let mut value = serde_json::from_str(&text).expect("JSON");
    edit(&mut value);
    std::fs::write(path, value.to_string()).expect("written");
}

/// Answers a prompt with this pair: the text, or what was said instead.
fn generate(slm: &Path, llm: &Path, budget: &str) -> Result<String, String> {
    let file = scratch_dir("pair").join("pair.toml");
    let text = format!(
        "[[model]]\nname = \"small\"\npath = {slm:?}\nthreads = 1\n[[model]]\nname = \"large\"\npath = {llm:?}\n\
         threads = 1\n[router]\nname = \"fixed\"\nfraction = 0.5\n[budget]\nmemory = \"{budget}\"\n"
    );
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let prompt =
        "In January Max has 12 apples. In February Max picks 80 apples. How many apples does Max have?";
    let (ok, out, err) = run(&["generate", "--config", &file, "--chat", "--max-tokens", "40", prompt]);
    assert!(!err.contains("panicked"), "{err}");
    if ok { Ok(out) } else { Err(err) }
}

#[test]
fn tokenizers_that_differ_are_refused_by_the_first_difference() {
    let (slm, llm) = (copy("slm"), copy("llm"));
    assert!(generate(&slm, &llm, "64MiB").is_ok(), "the untouched copies work");
    edit_json(&llm.join("tokenizer.json"), |t| {
        let vocab = t["model"]["vocab"].as_object_mut().expect("a vocabulary");
        let names: Vec<String> =
            vocab.iter().filter(|(_, id)| **id == 300 || **id == 301).map(|(n, _)| n.clone()).collect();
        let [a, b] = [vocab[&names[0]].clone(), vocab[&names[1]].clone()];
        vocab[&names[0]] = b;
        vocab[&names[1]] = a;
    });
    let error = generate(&slm, &llm, "64MiB").expect_err("ids 300 and 301 are swapped");
    assert!(error.contains("300") && error.contains("small") && error.contains("large"), "{error}");

    let llm = copy("llm");
    edit_json(&llm.join("tokenizer.json"), |t| {
        let added = t["added_tokens"].as_array_mut().expect("added tokens");
        let think = added.iter_mut().find(|a| a["content"] == "<think>").expect("<think>");
        think["special"] = json!(true);
    });
    let error = generate(&slm, &llm, "64MiB").expect_err("a special flag differs");
    assert!(error.contains("special") && error.contains("453"), "{error}");
}

/// A tensor with its own bytes.
struct Owned {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for &Owned {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Pads the vocabulary to `rows`; the new rows are ten times row 13, which would win every arg-max they may enter.
fn pad_vocabulary(dir: &Path, rows: usize) {
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut tensors: Vec<(String, Owned)> = Vec::new();
    for (name, view) in file.iter() {
        let mut owned =
            Owned { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() };
        if name == "model.embed_tokens.weight" {
            let width = owned.shape[1] * 2;
            let loud: Vec<u8> = owned.data[13 * width..14 * width]
                .chunks_exact(2)
                .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32() * 10.0)
                .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
                .collect();
            while owned.shape[0] < rows {
                owned.data.extend_from_slice(&loud);
                owned.shape[0] += 1;
            }
        }
        tensors.push((name.to_owned(), owned));
    }
    let out = serialize(tensors.iter().map(|(n, t)| (n.as_str(), t)), None).expect("serialized");
    std::fs::write(dir.join("model.safetensors"), out).expect("written");
    edit_json(&dir.join("config.json"), |c| c["vocab_size"] = json!(rows));
}

#[test]
fn a_vocabulary_padded_differently_is_allowed_and_its_padding_never_written() {
    let (slm, llm) = (copy("slm"), copy("llm"));
    let plain = generate(&slm, &llm, "64MiB").expect("the plain pair");
    pad_vocabulary(&llm, 512);
    assert_eq!(generate(&slm, &llm, "64MiB").as_ref(), Ok(&plain), "a padded large model");
    pad_vocabulary(&slm, 480);
    assert_eq!(generate(&slm, &llm, "64MiB").as_ref(), Ok(&plain), "both padded, to different sizes");
}

#[test]
fn broken_checkpoints_are_refused_by_file_and_field() {
    let slm = copy("slm");
    let damaged = |edit: &dyn Fn(&Path)| {
        let llm = copy("llm");
        edit(&llm);
        generate(&slm, &llm, "64MiB").expect_err("a damaged checkpoint")
    };
    let config = |key: &'static str, value: Value| {
        move |dir: &Path| edit_json(&dir.join("config.json"), |c| c[key] = value.clone())
    };
    type Edit = Box<dyn Fn(&Path)>;
    let cases: Vec<(Edit, &str)> = vec![
        (Box::new(|d| std::fs::remove_file(d.join("config.json")).expect("removed")), "config.json"),
        (Box::new(|d| std::fs::remove_file(d.join("model.safetensors")).expect("removed")), "safetensors"),
        (Box::new(|d| std::fs::remove_file(d.join("tokenizer.json")).expect("removed")), "tokenizer.json"),
        (
            Box::new(|d| std::fs::write(d.join("model.safetensors"), b"").expect("written")),
            "model.safetensors",
        ),
        (
            Box::new(|d| {
                let bytes = std::fs::read(d.join("model.safetensors")).expect("weights");
                std::fs::write(d.join("model.safetensors"), &bytes[..bytes.len() - 1000]).expect("written");
            }),
            "model.safetensors",
        ),
        (
            Box::new(|d| {
                let mut bytes = std::fs::read(d.join("model.safetensors")).expect("weights");
                bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
                std::fs::write(d.join("model.safetensors"), bytes).expect("written");
            }),
            "model.safetensors",
        ),
        (Box::new(config("architectures", json!(["MixtralForCausalLM"]))), "MixtralForCausalLM"),
        (Box::new(config("hidden_size", json!(130))), "model."),
        (Box::new(config("num_hidden_layers", json!(6))), "model.layers.5"),
        (Box::new(config("quantization_config", json!({"quant_method": "awq"}))), "quantization_config"),
        (Box::new(config("rope_scaling", json!({"rope_type": "longrope"}))), "longrope"),
        (Box::new(config("vocab_size", json!("many"))), "vocab_size"),
        (Box::new(config("num_attention_heads", json!(0))), "num_attention_heads"),
    ];
    for (edit, expected) in cases {
        let error = damaged(&*edit);
        assert!(error.contains(expected) && error.contains("large"), "{expected}: {error}");
    }
    let error = generate(&slm, &copy("llm"), "1MiB").expect_err("too little memory");
    assert!(error.contains("budget") && error.contains("MiB"), "{error}");
}

/// A tokenizer with a token that the models have no embedding for: the step panicked, and its neighbours failed too.
#[test]
fn a_token_without_an_embedding_is_refused_and_harms_nobody() {
    let (slm, llm) = (copy("slm"), copy("llm"));
    for dir in [&slm, &llm] {
        edit_json(&dir.join("tokenizer.json"), |t| {
            let mut extra = t["added_tokens"][0].clone();
            (extra["id"], extra["content"]) = (json!(455), json!("<|extra|>"));
            t["added_tokens"].as_array_mut().expect("added tokens").push(extra);
        });
    }
    let models = root().join("models/demo");
    let config = demo_config("name = \"fixed\"\nfraction = 0.5", "")
        .replace(&format!("{:?}", models.join("slm")), &format!("{slm:?}"))
        .replace(&format!("{:?}", models.join("llm")), &format!("{llm:?}"));
    let server = ServerProcess::start(&config);
    let ask = |prompt: Value, tokens: u32| {
        let body = json!({"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "seed": 1});
        post(server.http, "/v1/completions", &body)
    };
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| ask(json!("Ann"), 1500));
        while !neighbour.is_finished() {
            for prompt in [json!("Ann <|extra|>"), json!([455])] {
                let answer = ask(prompt, 2);
                let text = answer.body.as_str();
                assert!(answer.status == 400 && text.contains("455"), "{}: {text}", answer.status);
            }
        }
        let answer = neighbour.join().expect("the neighbour");
        assert_eq!(answer.status, 200, "{}", answer.body);
    });
    server.stop();
}

/// The cache is asked for first, so that what no machine has is refused before anything else is built for it.
#[test]
fn a_budget_of_petabytes_is_refused() {
    let (slm, llm) = (copy("slm"), copy("llm"));
    let error = generate(&slm, &llm, "900000TB").expect_err("no machine has that");
    assert!(error.contains("KV cache"), "{error}");
}
