//! Small checkpoints with a bias on every product.

use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView};
use tokenrouter_kernels::DType;

use super::support::random_ids;

/// A Llama of two layers, two kv heads of 16 elements and 97 ids.
pub(super) struct Sizes {
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) q_heads: usize,
    /// Feed-forward layers that add and subtract large numbers, so that the order of a sum shows in its bf16 bits.
    pub(super) steady: bool,
}

/// Writes it, with values that all types hold exactly, to a folder that the caller removes.
pub(super) fn write(name: &str, dtype: DType, sizes: &Sizes) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tokenrouter-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let &Sizes { hidden, inner, q_heads, .. } = sizes;
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 2, "num_attention_heads": q_heads, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 97, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "attention_bias": true,
        "mlp_bias": true, "tie_word_embeddings": false,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes(sizes)
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| {
            let values = random_ids(seed as u64, shape.iter().product(), 65);
            let mut bytes = vec![0; values.len() * dtype.size()];
            for (i, value) in values.iter().enumerate() {
                dtype.write(&mut bytes, i, value_of(&name, i, *value as f32 - 32.0, sizes));
            }
            (name, shape, bytes)
        })
        .collect();
    let kind = match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
    };
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(kind, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    dir
}

/// Weight `index` of a tensor, from a whole number between -32 and 32.
fn value_of(name: &str, index: usize, random: f32, sizes: &Sizes) -> f32 {
    let x = random / 128.0;
    if name.contains("norm") {
        return 1.0 + x;
    }
    if sizes.steady {
        // Gate and up are 4 or so, their product 16: each output of down sums that up, and its bias takes it away. Every
        // other weight is small, so that the sums do not fit 24 bits.
        if name.ends_with("gate_proj.bias") || name.ends_with("up_proj.bias") {
            return 4.0 + x;
        }
        if name.ends_with("down_proj.weight") {
            return (0.25 + x / 8.0) / if index.is_multiple_of(2) { 1.0 } else { 16.0 };
        }
        if name.ends_with("down_proj.bias") {
            return -2.0 * sizes.inner as f32;
        }
    }
    x
}

fn shapes(sizes: &Sizes) -> Vec<(String, Vec<usize>)> {
    let &Sizes { hidden, inner, q_heads, .. } = sizes;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![97, hidden]),
        ("lm_head.weight".to_owned(), vec![97, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            shapes.push((name(norm), vec![hidden]));
        }
        for (part, n, k) in [
            ("self_attn.q_proj", 16 * q_heads, hidden),
            ("self_attn.k_proj", 32, hidden),
            ("self_attn.v_proj", 32, hidden),
            ("self_attn.o_proj", hidden, 16 * q_heads),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ] {
            shapes.push((name(&format!("{part}.weight")), vec![n, k]));
            shapes.push((name(&format!("{part}.bias")), vec![n]));
        }
    }
    shapes
}
