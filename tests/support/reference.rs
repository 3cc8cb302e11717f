//! The slow sequential two-model loop that the server is compared with, token for token.
//!
//! It reads the checkpoint by itself and calls the kernels directly: one row, one token at a time, a contiguous
//! cache per layer, no `Core`, no pages, no batching, no engine. It knows the Qwen3 architecture with tied
//! embeddings, which is what the demo pair is.

use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::scalar::{self, RowCache};
use tokenrouter_kernels::cpu::{
    Ctx, Isa, Reduce, RopeTable, WeightRef, WorkerGroup, embed, linear, mask_padding,
};
use tokenrouter_kernels::cpu::{add_rms_norm, rms_norm, silu_mul};
use tokenrouter_kernels::rng::{DrawKey, Purpose};
use tokenrouter_kernels::sampling::{SampleInput, SampleScratch, SamplingParams, sample};
use tokenrouter_kernels::signals::{SignalFlags, signals};
use tokenrouter_scheduler::ModelId;
use tokenrouter_scheduler::router::{PURPOSE_QUERY, PURPOSE_ROUTE, draw};

struct Tensor {
    dtype: DType,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
}

/// One model of the reference.
pub struct RefModel {
    tensors: HashMap<String, Tensor>,
    layers: usize,
    hidden: usize,
    inter: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f32,
    rope: RopeTable,
    /// Rows of the embedding.
    pub vocab: usize,
    real_vocab: usize,
    kv_dtype: DType,
    workers: WorkerGroup,
}

/// What one sequence has left in one model: one contiguous cache per layer.
pub struct RefCache {
    layers: Vec<RowCache>,
}

impl RefModel {
    /// Reads a checkpoint; ids from `real_vocab` on are masked.
    pub fn load(dir: &Path, real_vocab: usize, kv_dtype: DType) -> Self {
        let text = std::fs::read_to_string(dir.join("config.json")).expect("config.json");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(config["architectures"][0], "Qwen3ForCausalLM");
        assert_eq!(config["tie_word_embeddings"], true);
        let n = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize;
        let theta = config["rope_theta"].as_f64().expect("rope_theta");
        let head_dim = n("head_dim");
        let inv_freq: Vec<f32> =
            (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64) as f32).collect();
        let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
        RefModel {
            tensors: read_tensors(&bytes),
            layers: n("num_hidden_layers"),
            hidden: n("hidden_size"),
            inter: n("intermediate_size"),
            heads: n("num_attention_heads"),
            kv_heads: n("num_key_value_heads"),
            head_dim,
            eps: config["rms_norm_eps"].as_f64().expect("eps") as f32,
            rope: RopeTable::new(&inv_freq, 1.0, n("max_position_embeddings")),
            vocab: n("vocab_size"),
            real_vocab,
            kv_dtype,
            workers: WorkerGroup::new("reference", 1).expect("one thread"),
        }
    }

    /// An empty cache.
    pub fn cache(&self) -> RefCache {
        let layer = RowCache::new(self.kv_heads, self.head_dim, self.kv_dtype);
        RefCache { layers: vec![layer; self.layers] }
    }

    /// Feeds every token that the cache has not seen, one at a time, and returns the last one's logits.
    pub fn logits(&self, cache: &mut RefCache, tokens: &[u32]) -> Vec<f32> {
        let seen = cache.layers[0].len();
        assert!(seen < tokens.len(), "at least one token is new");
        let mut hidden = Vec::new();
        for (position, token) in tokens.iter().enumerate().skip(seen) {
            hidden = self.feed(cache, *token, position);
        }
        let mut logits = vec![0.0; self.vocab];
        linear(
            self.ctx(),
            &hidden,
            self.weight("model.embed_tokens.weight"),
            None,
            Reduce::Whole,
            &mut logits,
        );
        mask_padding(&mut logits, self.vocab, self.real_vocab);
        logits
    }

    fn ctx(&self) -> Ctx<'_> {
        Ctx { isa: Isa::detect().expect("a known instruction set"), workers: &self.workers }
    }

    fn weight(&self, name: &str) -> WeightRef<'_> {
        let t = self.tensors.get(name).unwrap_or_else(|| panic!("{name}"));
        WeightRef::new(t.dtype, t.rows, t.cols, &t.data).expect("a whole tensor")
    }

    fn product(&self, x: &[f32], name: &str, reduce: Reduce) -> Vec<f32> {
        let w = self.weight(name);
        let mut out = vec![0.0; w.rows()];
        linear(self.ctx(), x, w, None, reduce, &mut out);
        out
    }

    /// One token through all layers; returns the normed hidden state.
    fn feed(&self, cache: &mut RefCache, token: u32, position: usize) -> Vec<f32> {
        let ctx = self.ctx();
        let mut residual = vec![0.0; self.hidden];
        let mut normed = vec![0.0; self.hidden];
        embed(ctx, self.weight("model.embed_tokens.weight"), &[token], &mut residual);
        let first = self.weight("model.layers.0.input_layernorm.weight");
        rms_norm(ctx, &residual, first, self.eps, &mut normed);
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let attended = self.attend(&mut cache.layers[layer], &normed, layer, position);
            let delta = self.product(&attended, &name("self_attn.o_proj"), Reduce::Segments4);
            let post = self.weight(&name("post_attention_layernorm"));
            add_rms_norm(ctx, &mut residual, &delta, post, self.eps, &mut normed);
            let mut gate = self.product(&normed, &name("mlp.gate_proj"), Reduce::Whole);
            let up = self.product(&normed, &name("mlp.up_proj"), Reduce::Whole);
            assert_eq!(gate.len(), self.inter);
            silu_mul(ctx, &mut gate, &up);
            let delta = self.product(&gate, &name("mlp.down_proj"), Reduce::Segments4);
            let next = match layer + 1 {
                n if n == self.layers => self.weight("model.norm.weight"),
                n => self.weight(&format!("model.layers.{n}.input_layernorm.weight")),
            };
            add_rms_norm(ctx, &mut residual, &delta, next, self.eps, &mut normed);
        }
        normed
    }

    fn attend(&self, cache: &mut RowCache, x: &[f32], layer: usize, position: usize) -> Vec<f32> {
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}.weight");
        let mut q = self.product(x, &name("q_proj"), Reduce::Whole);
        let mut k = self.product(x, &name("k_proj"), Reduce::Whole);
        let v = self.product(x, &name("v_proj"), Reduce::Whole);
        scalar::qk_norm_rope(&mut q, Some(self.weight(&name("q_norm"))), self.eps, &self.rope, position);
        scalar::qk_norm_rope(&mut k, Some(self.weight(&name("k_norm"))), self.eps, &self.rope, position);
        cache.push(&k, &v);
        let mut out = vec![0.0; self.heads * self.head_dim];
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        scalar::attention(&q, self.heads, position, scale, cache, &mut out);
        out
    }
}

fn read_tensors(bytes: &[u8]) -> HashMap<String, Tensor> {
    let file = SafeTensors::deserialize(bytes).expect("safetensors");
    file.iter()
        .map(|(name, view)| {
            let (rows, cols) = match *view.shape() {
                [n] => (1, n),
                [rows, cols] => (rows, cols),
                ref other => panic!("{name} has shape {other:?}"),
            };
            let dtype = match view.dtype() {
                Dtype::BF16 => DType::Bf16,
                Dtype::F16 => DType::F16,
                Dtype::F32 => DType::F32,
                other => panic!("{name} is {other:?}"),
            };
            (name.to_owned(), Tensor { dtype, rows, cols, data: view.data().to_vec() })
        })
        .collect()
}

/// The routing rule, written out once more.
#[derive(Clone, Copy, Debug)]
pub enum RefRouter {
    /// One model writes everything.
    Single(usize),
    /// Model 1 writes this share of the positions.
    Fixed(f64),
    /// Normalised entropy against this threshold, both directions.
    RStitch(f32),
    /// Every token, the first too, by a model drawn at these weights, which sum to 1.
    Mixture([f64; 2]),
    /// The whole answer by model 1 for this share of the requests.
    Query(f64),
}

/// One request of the reference.
pub struct RefRequest<'a> {
    /// Token ids.
    pub prompt: &'a [u32],
    /// Most tokens to write.
    pub max_tokens: usize,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Seed of every draw.
    pub seed: u64,
    /// Index of the choice.
    pub choice: u32,
}

/// Two models and the ids that end an answer.
pub struct Reference {
    /// Small, then large.
    pub models: [RefModel; 2],
    /// End-of-sequence ids.
    pub eos: Vec<u32>,
    /// Throw the caches away before every token, so that the whole prefix is computed again.
    pub recompute: bool,
}

impl Reference {
    /// The demo pair with the cache type that the server uses by default.
    pub fn demo() -> Self {
        let dir = super::root().join("models/demo");
        let load = |name| RefModel::load(&dir.join(name), 455, DType::F16);
        Reference { models: [load("slm"), load("llm")], eos: vec![450, 452], recompute: false }
    }

    /// The generated tokens, and the model that wrote each.
    pub fn run(&self, router: RefRouter, request: &RefRequest<'_>) -> (Vec<u32>, Vec<u8>) {
        let mut tokens = request.prompt.to_vec();
        let mut writers = Vec::new();
        let mut caches = self.models.each_ref().map(RefModel::cache);
        let mut owner = match router {
            RefRouter::Single(model) => model,
            RefRouter::Mixture(weights) => drawn(weights, request, tokens.len() as u32),
            RefRouter::Query(share) => {
                usize::from(draw(request.seed, request.choice, 0, PURPOSE_QUERY, ModelId(0)) < share)
            }
            _ => 0,
        };
        let mut scratch = SampleScratch::new(self.models.iter().map(|m| m.vocab).max().unwrap_or(0));
        while writers.len() < request.max_tokens {
            if self.recompute {
                caches = self.models.each_ref().map(RefModel::cache);
            }
            let mut logits = self.models[owner].logits(&mut caches[owner], &tokens);
            let entropy = signals(&logits, SignalFlags::ENTROPY).entropy;
            let normalised = entropy / (self.models[owner].vocab as f32).ln();
            let position = tokens.len() as u32;
            let candidate = draw_token(&mut logits, request, &tokens, owner, &mut scratch);
            let (next, keep) = decide(router, request, owner, position, normalised);
            let writer = owner;
            owner = next;
            if !keep {
                continue;
            }
            tokens.push(candidate);
            writers.push(writer as u8);
            if self.eos.contains(&candidate) {
                break;
            }
        }
        (tokens.split_off(request.prompt.len()), writers)
    }
}

/// One draw from the logits, by the request's parameters.
pub fn draw_token(
    logits: &mut [f32],
    request: &RefRequest<'_>,
    tokens: &[u32],
    owner: usize,
    scratch: &mut SampleScratch,
) -> u32 {
    let key = DrawKey {
        seed: request.seed,
        choice: request.choice,
        position: tokens.len() as u32,
        purpose: Purpose::Sample,
        model: owner as u32,
    };
    let input = SampleInput {
        params: &request.sampling,
        key,
        history: tokens,
        prompt_len: request.prompt.len(),
        forbidden: &[],
    };
    sample(logits, &input, scratch).expect("finite logits")
}

/// Who goes on, and whether the candidate is kept.
fn decide(
    router: RefRouter,
    request: &RefRequest<'_>,
    owner: usize,
    position: u32,
    entropy: f32,
) -> (usize, bool) {
    match (router, owner) {
        (RefRouter::Single(model), _) => (model, true),
        (RefRouter::Query(_), owner) => (owner, true),
        (RefRouter::Mixture(weights), _) => (drawn(weights, request, position + 1), true),
        (RefRouter::Fixed(share), 0) => {
            let asks = draw(request.seed, request.choice, position, PURPOSE_ROUTE, ModelId(0)) < share;
            (usize::from(asks), !asks)
        }
        (RefRouter::RStitch(threshold), 0) => {
            let uncertain = entropy > threshold;
            (usize::from(uncertain), !uncertain)
        }
        // One token, then back.
        (RefRouter::Fixed(_), _) => (0, true),
        // Control stays as long as the large model is uncertain; its token is kept either way.
        (RefRouter::RStitch(threshold), _) => (usize::from(entropy > threshold), true),
    }
}

/// Who writes a position of a mixture.
fn drawn([first, _]: [f64; 2], request: &RefRequest<'_>, position: u32) -> usize {
    usize::from(draw(request.seed, request.choice, position, PURPOSE_ROUTE, ModelId(0)) >= first)
}
