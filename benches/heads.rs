//! Router heads beside the time to read their weights once, both measured in this run.
//!
//! A one-layer model of hidden width 1024 with a head of every kind in its published (or usual) shape, random weights. `read`
//! sums the bytes of a head's weights as fast as they can be streamed; `rows/N` scores N rows; `product/N` multiplies N rows
//! with one matrix of as many weights. For `query` a row is a prompt of 512 tokens. `cargo bench --bench heads`; `TOKENROUTER_BENCH_THREADS` sets the worker group (default 1).

#[path = "support/read.rs"]
mod read;
#[path = "support/setup.rs"]
mod setup;

use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use tokenrouter_engine::DType;
use tokenrouter_engine::heads::{
    CiterShape, CoLlmShape, HeadShape, ModelPrint, NamedTensor, PromptEnd, QueryShape, R2rShape, RouterFile,
    write_router,
};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::cpu::{self, Ctx, Isa, Reduce, StepTokens, WeightRef, WorkerGroup};

const HIDDEN: usize = 1024;
const VOCAB: usize = 32_768;
const PROMPT: usize = 512;
const ROWS: usize = 16;
const PAGES: usize = PROMPT / 16;

fn threads() -> usize {
    std::env::var("TOKENROUTER_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

/// Numbers between -1 and 1 from a counter.
fn values(count: usize, scale: f32) -> Vec<f32> {
    let unit = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
    (0..count as u64).map(|i| scale * unit(i)).collect()
}

fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
    let count = shape.iter().product();
    let values = if name.ends_with("running_var") {
        vec![1.0; count]
    } else {
        values(count, 1.0 / (shape[shape.len() - 1] as f32).sqrt())
    };
    NamedTensor { name: name.to_owned(), shape: shape.to_vec(), values }
}

fn matrix(into: &mut Vec<NamedTensor>, name: &str, to: usize, from: usize) {
    into.push(tensor(&format!("{name}.weight"), &[to, from]));
    into.push(tensor(&format!("{name}.bias"), &[to]));
}

fn norm(into: &mut Vec<NamedTensor>, name: &str, width: usize) {
    into.push(tensor(&format!("{name}.weight"), &[width]));
    into.push(tensor(&format!("{name}.bias"), &[width]));
}

fn r2r() -> (HeadShape, Vec<NamedTensor>) {
    const EXPANSION: usize = 4;
    let mut all = Vec::new();
    matrix(&mut all, "logits_projection", HIDDEN, 100);
    matrix(&mut all, "combined_projection", HIDDEN, 3 * HIDDEN);
    matrix(&mut all, "backbone.input_projection", HIDDEN, HIDDEN);
    for block in 0..6 {
        norm(&mut all, &format!("backbone.blocks.{block}.layer_norm"), HIDDEN);
        matrix(&mut all, &format!("backbone.blocks.{block}.mlp.0"), EXPANSION * HIDDEN, HIDDEN);
        matrix(&mut all, &format!("backbone.blocks.{block}.mlp.3"), HIDDEN, EXPANSION * HIDDEN);
    }
    norm(&mut all, "backbone.output_layer.0", HIDDEN);
    matrix(&mut all, "backbone.output_layer.1", 1, HIDDEN);
    let shape = R2rShape {
        hidden_dims: vec![HIDDEN; 6],
        expansion_factor: EXPANSION,
        logits_size: 100,
        outputs: 1,
        normalize_input: false,
        layer_norm_eps: 1e-5,
    };
    (HeadShape::R2r(shape), all)
}

fn citer() -> (HeadShape, Vec<NamedTensor>) {
    let mut all = Vec::new();
    matrix(&mut all, "mlp.0", 2 * HIDDEN, HIDDEN);
    norm(&mut all, "mlp.1", 2 * HIDDEN);
    all.push(tensor("mlp.1.running_mean", &[2 * HIDDEN]));
    all.push(tensor("mlp.1.running_var", &[2 * HIDDEN]));
    matrix(&mut all, "mlp.4", HIDDEN, 2 * HIDDEN);
    matrix(&mut all, "linear", 1, HIDDEN);
    (HeadShape::Citer(CiterShape { hidden_dims: [2 * HIDDEN, HIDDEN], batch_norm_eps: 1e-5 }), all)
}

fn co_llm() -> (HeadShape, Vec<NamedTensor>) {
    (HeadShape::CoLlm(CoLlmShape { defer_id: None }), vec![tensor("defer_row", &[1, HIDDEN])])
}

fn query() -> (HeadShape, Vec<NamedTensor>) {
    const WIDTH: usize = 64;
    let mut all = Vec::new();
    matrix(&mut all, "mlp.0", WIDTH, HIDDEN);
    matrix(&mut all, "mlp.2", 1, WIDTH);
    (HeadShape::Query(QueryShape { hidden_dim: WIDTH }), all)
}

/// A one-layer checkpoint in `dir`.
fn write_model(dir: &Path) {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "tie_word_embeddings": true,
        "hidden_act": "silu", "rope_theta": 10000.0, "attention_bias": false, "eos_token_id": 2
    });
    std::fs::create_dir_all(dir).expect("a folder");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("a file");
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        (layer("input_layernorm"), vec![HIDDEN]),
        (layer("post_attention_layernorm"), vec![HIDDEN]),
        (layer("self_attn.q_norm"), vec![64]),
        (layer("self_attn.k_norm"), vec![64]),
        (layer("self_attn.q_proj"), vec![256, HIDDEN]),
        (layer("self_attn.k_proj"), vec![128, HIDDEN]),
        (layer("self_attn.v_proj"), vec![128, HIDDEN]),
        (layer("self_attn.o_proj"), vec![HIDDEN, 256]),
        (layer("mlp.gate_proj"), vec![512, HIDDEN]),
        (layer("mlp.up_proj"), vec![512, HIDDEN]),
        (layer("mlp.down_proj"), vec![HIDDEN, 512]),
    ];
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            let scale = if shape.len() == 1 { 1.0 } else { 0.05 };
            let bf16 = values(shape.iter().product(), scale).into_iter().map(half::bf16::from_f32);
            bf16.flat_map(half::bf16::to_le_bytes).collect()
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
        (name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), data).expect("the whole buffer"))
    });
    let bytes = safetensors::serialize(views, None).expect("a file's bytes");
    std::fs::write(dir.join("model.safetensors"), bytes).expect("a file");
}

/// The model with one head, after a step whose last [`ROWS`] tokens sample.
struct Bench {
    model: Model,
    positions: Vec<u32>,
    pages: Vec<u32>,
}

impl Bench {
    fn new(dir: &Path, head: PathBuf) -> Self {
        let options = ModelOptions {
            threads: threads(),
            max_batch_rows: ROWS,
            max_step_tokens: PROMPT,
            kv_dtype: DType::F16,
            real_vocab: VOCAB,
            context_len: PROMPT,
        };
        let open = Model::open(dir).expect("the model").with_heads(&[head]).expect("the head");
        let model = open.build(options, PAGES).expect("a model");
        Bench { model, positions: (0..PROMPT as u32).collect(), pages: (0..PAGES as u32).collect() }
    }

    fn forward(&mut self, rows: usize) {
        let ids: Vec<u32> = (0..PROMPT as u32).map(|i| i * 61 % VOCAB as u32).collect();
        let sampling: Vec<u32> = ((PROMPT - rows) as u32..PROMPT as u32).collect();
        let step = StepTokens {
            token_row: &vec![0; PROMPT],
            positions: &self.positions,
            row_pages: &self.pages,
            row_page_start: &[0, PAGES as u32],
        };
        self.model.forward(&ids, &step, &sampling);
    }

    /// All that a head does in a step.
    fn score(&mut self, rows: usize) {
        self.model.observe_logits(1);
        self.model.score(1, &[7; ROWS][..rows]);
        let ends: [PromptEnd; ROWS] =
            std::array::from_fn(|sampled| PromptEnd { row: 0, sampled, tokens: PROMPT });
        let step = StepTokens {
            token_row: &[0],
            positions: &self.positions[PROMPT - 1..],
            row_pages: &self.pages,
            row_page_start: &[0, PAGES as u32],
        };
        self.model.score_prompts(1, &step, &ends[..rows]);
    }
}

fn heads(c: &mut Criterion) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-heads");
    let model = dir.join("model");
    write_model(&model);
    let owner = ModelPrint::read(&model).expect("a model").owner();
    let workers = WorkerGroup::new("bench", threads()).expect("threads");
    let ctx = Ctx { isa: Isa::detect().expect("an instruction set"), workers: &workers };
    for (name, (shape, tensors)) in
        [("r2r", r2r()), ("citer", citer()), ("co-llm", co_llm()), ("query", query())]
    {
        let folder = dir.join(name);
        let file = RouterFile { shape, threshold: None, owner: owner.clone() };
        write_router(&folder, &file, &tensors).expect("a router file");
        drop(tensors);
        let weights = |heads: &[PathBuf]| {
            Model::open(&model).expect("the model").with_heads(heads).expect("the head").weight_bytes(1)
        };
        let bytes = (weights(std::slice::from_ref(&folder)) - weights(&[])) as usize;
        // Half a word is one single-precision number.
        let words: Vec<u64> = (0..bytes / 8).map(|i| 0x3c00_0000_3d00_0000 | i as u64 & 0xff).collect();
        let mut group = c.benchmark_group(format!("head_{name}"));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("read", |b| b.iter(|| read::read_all(ctx, &words)));
        for rows in [1, ROWS] {
            let outputs = bytes / 4 / HIDDEN;
            let weight = WeightRef::new(
                DType::F32,
                outputs,
                HIDDEN,
                &bytemuck::cast_slice(&words)[..outputs * HIDDEN * 4],
            );
            let weight = weight.expect("a matrix");
            let (x, mut out) = (values(rows * HIDDEN, 1.0), vec![0.0; rows * outputs]);
            group.bench_function(BenchmarkId::new("product", rows), |b| {
                b.iter(|| cpu::linear(ctx, &x, weight, None, Reduce::Whole, black_box(&mut out)));
            });
        }
        let mut bench = Bench::new(&model, folder);
        for rows in [1, ROWS] {
            bench.forward(rows);
            group.bench_function(BenchmarkId::new("rows", rows), |b| b.iter(|| bench.score(rows)));
        }
        group.finish();
    }
    // What is written there is only for this run.
    let _ = std::fs::remove_dir_all(&dir);
}

criterion_group! {
    name = benches;
    config = setup::samples(10);
    targets = heads
}
criterion_main!(benches);
