//! Tiny random checkpoints in folders that vanish with the test.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// A folder of its own, removed at the end.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// A new empty folder.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("tokenrouter-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A folder left behind in the system's temporary place harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Raw tensors by name: type, shape, bytes.
pub(crate) type Tensors = HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A small Qwen3 configuration; tests change fields of it.
pub(crate) fn qwen3_config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 50, "hidden_size": 24,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "tie_word_embeddings": false,
        "hidden_act": "silu", "rope_theta": 10000.0, "attention_bias": false, "eos_token_id": 2
    })
}

/// A Qwen3 configuration wide enough that even one token's products are shared out to the worker
/// threads (the kernels keep smaller work on the caller).
pub(crate) fn wide_config() -> Value {
    let mut config = qwen3_config();
    for (name, value) in
        [("hidden_size", 512), ("intermediate_size", 640), ("head_dim", 32), ("num_hidden_layers", 1)]
    {
        config[name] = json!(value);
    }
    config
}

/// The tensors that a configuration asks for, random; written from the published layout, not from
/// the engine's own tables.
pub(crate) fn random_tensors(config: &Value, dtype: Dtype, seed: u64) -> Tensors {
    let size = |name: &str| config[name].as_u64().unwrap() as usize;
    let flag = |name: &str| config[name].as_bool().unwrap_or(false);
    let (hidden, inner, vocab) = (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
    let heads = size("num_attention_heads");
    let dim = config["head_dim"].as_u64().map_or(hidden / heads, |d| d as usize);
    let (q, kv) = (heads * dim, size("num_key_value_heads") * dim);
    let class = config["architectures"][0].as_str().unwrap();
    let qkv_bias = class.starts_with("Qwen2") || flag("attention_bias");
    let o_bias = !class.starts_with("Qwen2") && flag("attention_bias");
    let mlp_bias = class.starts_with("Llama") && flag("mlp_bias");
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !flag("tie_word_embeddings") {
        shapes.push(("lm_head.weight".to_owned(), vec![vocab, hidden]));
    }
    for i in 0..size("num_hidden_layers") {
        let mut add =
            |part: &str, shape: &[usize]| shapes.push((format!("model.layers.{i}.{part}"), shape.to_vec()));
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
        if class.starts_with("Qwen3") {
            add("self_attn.q_norm.weight", &[dim]);
            add("self_attn.k_norm.weight", &[dim]);
        }
        let linears = [
            ("self_attn.q_proj", q, hidden, qkv_bias),
            ("self_attn.k_proj", kv, hidden, qkv_bias),
            ("self_attn.v_proj", kv, hidden, qkv_bias),
            ("self_attn.o_proj", hidden, q, o_bias),
            ("mlp.gate_proj", inner, hidden, mlp_bias),
            ("mlp.up_proj", inner, hidden, mlp_bias),
            ("mlp.down_proj", hidden, inner, mlp_bias),
        ];
        for (name, rows, cols, bias) in linears {
            add(&format!("{name}.weight"), &[rows, cols]);
            if bias {
                add(&format!("{name}.bias"), &[rows]);
            }
        }
    }
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    shapes
        .into_iter()
        .map(|(name, shape)| {
            let (centre, spread) = if name.ends_with("norm.weight") { (1.0, 0.2) } else { (0.0, 0.5) };
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|_| centre + spread * uniform(&mut state)).collect();
            (name, (dtype, shape, encode(&values, dtype)))
        })
        .collect()
}

/// A number in [-1, 1) from a xorshift generator.
fn uniform(state: &mut u64) -> f32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Values as little-endian bytes of a type.
pub(crate) fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        other => panic!("{other:?} is not a type of our tests"),
    }
}

/// Writes `config.json` and, when there are tensors, `model.safetensors`.
pub(crate) fn write_checkpoint(dir: &Path, config: &Value, tensors: &Tensors) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    write_safetensors(&dir.join("model.safetensors"), tensors);
}

/// Writes one safetensors file.
pub(crate) fn write_safetensors(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A folder with a checkpoint of random weights.
pub(crate) fn random_checkpoint(config: &Value, dtype: Dtype, seed: u64) -> TempDir {
    let dir = TempDir::new();
    write_checkpoint(dir.path(), config, &random_tensors(config, dtype, seed));
    dir
}
