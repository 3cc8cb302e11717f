//! Models whose logits after every token are written down in the test, exactly.
//!
//! Embedding rows are one-hot, attention and MLP add nothing, norms are one, so the hidden state after token `i` is
//! `sqrt(hidden)` times the one-hot of `i`, and column `i` of the output matrix is what the model says next. The
//! width is a power of four: the factor is a power of two, and every logit has the bits that the test asked for.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::process::scratch_dir;
use super::tokenizers::{END, START, TestTokenizer};

const HIDDEN: usize = 1024;
const INNER: usize = 16;
const HEADS: usize = 2;
const HEAD_DIM: usize = 8;

/// A logit that leaves no doubt: beside zeros the entropy is nearly nothing.
pub const SURE: f32 = 60.0;
/// A logit that wins, by a hair: the entropy is nearly that of equal probabilities.
pub const UNSURE: f32 = 0.25;

/// One scripted model.
#[derive(Clone)]
pub struct Script {
    vocab: usize,
    /// Per token: logits of all tokens after it.
    after: Vec<Vec<f32>>,
    /// Rows of the vocabulary in the checkpoint, at least as many as there are tokens.
    pub rows: usize,
    /// `max_position_embeddings`.
    pub context: usize,
    /// `eos_token_id` of `config.json`.
    pub eos: Value,
    /// `generation_config.json`, if any.
    pub generation: Option<Value>,
    /// The chat template; by default the texts of all messages and [`START`].
    pub template: Option<String>,
    /// Tokens whose embedding is not a number: whatever follows them fails.
    pub poisoned: Vec<u32>,
}

impl Script {
    /// All logits zero after every token.
    pub fn new(tokenizer: &TestTokenizer) -> Self {
        let vocab = tokenizer.vocab();
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}<|start|>{% endif %}";
        assert!(template.contains(START));
        Script {
            vocab,
            after: vec![vec![0.0; vocab]; vocab],
            rows: vocab,
            context: 4096,
            eos: json!(tokenizer.control(END)),
            generation: None,
            template: Some(template.into()),
            poisoned: Vec::new(),
        }
    }

    /// After `token` the model says `next` with this logit, all others having zero or what they were given.
    pub fn say(&mut self, token: u32, next: u32, logit: f32) {
        self.after[token as usize][next as usize] = logit;
    }

    /// After `token` the logits are these.
    pub fn logits(&mut self, token: u32, logits: &[f32]) {
        self.after[token as usize][..logits.len()].copy_from_slice(logits);
    }

    /// Each id follows the one before it, without doubt.
    pub fn chain(&mut self, ids: &[u32]) {
        for pair in ids.windows(2) {
            self.say(pair[0], pair[1], SURE);
        }
    }

    /// Writes the checkpoint into a folder of its own.
    pub fn write(&self, name: &str, tokenizer: &TestTokenizer) -> PathBuf {
        let dir = scratch_dir(name);
        self.write_to(&dir, tokenizer);
        dir
    }

    /// Writes the checkpoint.
    pub fn write_to(&self, dir: &Path, tokenizer: &TestTokenizer) {
        assert!(self.vocab <= self.rows && self.rows <= HIDDEN, "one-hot rows");
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": self.rows,
            "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-12,
            "max_position_embeddings": self.context, "tie_word_embeddings": false, "hidden_act": "silu",
            "rope_theta": 10000.0, "attention_bias": false, "eos_token_id": self.eos
        });
        let put = |file: &str, value: &Value| {
            std::fs::write(dir.join(file), value.to_string()).expect("a file of the checkpoint");
        };
        put("config.json", &config);
        if let Some(generation) = &self.generation {
            put("generation_config.json", generation);
        }
        put("tokenizer.json", &tokenizer.json);
        let mut texts = json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END});
        if let Some(template) = &self.template {
            texts["chat_template"] = json!(template);
        }
        put("tokenizer_config.json", &texts);
        self.write_weights(&dir.join("model.safetensors"));
    }

    fn write_weights(&self, path: &Path) {
        let scale = (HIDDEN as f32).sqrt();
        let mut embed = vec![0.0f32; self.rows * HIDDEN];
        let mut head = vec![0.0f32; self.rows * HIDDEN];
        for token in 0..self.rows {
            embed[token * HIDDEN + token] = 1.0;
        }
        for token in &self.poisoned {
            embed[*token as usize * HIDDEN] = f32::NAN;
        }
        for (token, logits) in self.after.iter().enumerate() {
            for (next, logit) in logits.iter().enumerate() {
                head[next * HIDDEN + token] = logit / scale;
            }
        }
        // Rows that pad the vocabulary are louder than everything: whoever reads them says so.
        for row in self.vocab..self.rows {
            head[row * HIDDEN..(row + 1) * HIDDEN].fill(1000.0);
        }
        let (q, kv) = (HEADS * HEAD_DIM, HEAD_DIM);
        let layer = |part: &str| format!("model.layers.0.{part}.weight");
        let zeros = |rows: usize, cols: usize| vec![0.0f32; rows * cols];
        let ones = |n: usize| vec![1.0f32; n];
        let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = vec![
            ("model.embed_tokens.weight".into(), vec![self.rows, HIDDEN], embed),
            ("lm_head.weight".into(), vec![self.rows, HIDDEN], head),
            ("model.norm.weight".into(), vec![HIDDEN], ones(HIDDEN)),
            (layer("input_layernorm"), vec![HIDDEN], ones(HIDDEN)),
            (layer("post_attention_layernorm"), vec![HIDDEN], ones(HIDDEN)),
            (layer("self_attn.q_norm"), vec![HEAD_DIM], ones(HEAD_DIM)),
            (layer("self_attn.k_norm"), vec![HEAD_DIM], ones(HEAD_DIM)),
            (layer("self_attn.q_proj"), vec![q, HIDDEN], zeros(q, HIDDEN)),
            (layer("self_attn.k_proj"), vec![kv, HIDDEN], zeros(kv, HIDDEN)),
            (layer("self_attn.v_proj"), vec![kv, HIDDEN], zeros(kv, HIDDEN)),
            (layer("self_attn.o_proj"), vec![HIDDEN, q], zeros(HIDDEN, q)),
            (layer("mlp.gate_proj"), vec![INNER, HIDDEN], zeros(INNER, HIDDEN)),
            (layer("mlp.up_proj"), vec![INNER, HIDDEN], zeros(INNER, HIDDEN)),
            (layer("mlp.down_proj"), vec![HIDDEN, INNER], zeros(HIDDEN, INNER)),
        ];
        let views = tensors.iter().map(|(name, shape, values)| {
            let bytes = bytemuck::cast_slice(values);
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor"))
        });
        let file = safetensors::serialize(views, None).expect("safetensors");
        std::fs::write(path, file).expect("weights");
    }
}

/// A configuration that serves these two models with this router section and these lines of the server section.
pub fn pair_config(small: &Path, large: &Path, router: &str, server: &str) -> String {
    format!(
        "[[model]]\nname = \"small\"\npath = {small:?}\nthreads = 1\n[[model]]\nname = \"large\"\npath = {large:?}\n\
         threads = 1\n[router]\n{router}\n[budget]\nmemory = \"64MiB\"\n[server]\nhttp = \"127.0.0.1:0\"\n\
         tcp = \"127.0.0.1:0\"\nserved_model_name = \"demo\"\n{server}\n"
    )
}
