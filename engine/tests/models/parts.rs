//! A model in parts: the logits of 1, 2 and 4 parts are equal to the bit, with biases, with heads that stand on several
//! parts, and over chunks and decodes (DESIGN rule 5).

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{PAGE_TOKENS, StepTokens};

use crate::support::{TempDir, qwen3_config, random_checkpoint, wide_config};

pub(crate) const PAGES: usize = 12;
const VOCAB: usize = 50;

fn configs() -> Vec<Value> {
    let changed = |config: Value, changes: &[(&str, Value)]| {
        let mut config = config;
        changes.iter().for_each(|(name, value)| config[*name] = value.clone());
        config
    };
    let qwen2 = [
        ("architectures", json!(["Qwen2ForCausalLM"])),
        ("model_type", json!("qwen2")),
        ("tie_word_embeddings", json!(true)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
    ];
    // Biases everywhere, also where partial products are joined, and one KV head for all parts.
    let llama = [
        ("architectures", json!(["LlamaForCausalLM"])),
        ("model_type", json!("llama")),
        ("num_attention_heads", json!(4)),
        ("num_key_value_heads", json!(1)),
        ("intermediate_size", json!(52)),
        ("hidden_size", json!(45)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
    ];
    vec![qwen3_config(), changed(qwen3_config(), &qwen2), changed(qwen3_config(), &llama), wide_config()]
}

pub(crate) fn options(threads: usize) -> ModelOptions {
    ModelOptions {
        threads,
        max_batch_rows: 64,
        max_step_tokens: 64,
        kv_dtype: DType::F16,
        real_vocab: VOCAB - 3,
        context_len: 256,
    }
}

/// All parts of a model; one is the whole.
fn build(dir: &TempDir, parts: usize, threads: usize) -> Vec<Model> {
    let open = Model::open(dir.path()).unwrap();
    let seats = open.seats(&options(threads), parts).unwrap();
    seats.into_iter().map(|seat| open.build_part(options(threads), PAGES, seat).unwrap()).collect()
}

/// Runs a step on all parts, each on a thread; the logits of the part that samples, as bits.
fn run(models: &mut [Model], number: u64, ids: &[u32], step: &StepTokens<'_>, wanted: &[u32]) -> Vec<u32> {
    std::thread::scope(|scope| {
        for model in &mut *models {
            scope.spawn(move || model.forward_part(number, ids, step, wanted).unwrap());
        }
    });
    for (i, model) in models.iter_mut().enumerate() {
        assert_eq!(model.logits_mut().len(), if i == 0 { wanted.len() * VOCAB } else { 0 });
        assert_eq!(model.samples(), i == 0);
    }
    models[0].logits_mut().iter().map(|x| x.to_bits()).collect()
}

/// Two rows in chunks, then token by token: the logits of every step.
pub(crate) fn logits(models: &mut [Model]) -> Vec<Vec<u32>> {
    let tokens = |row: u32| (0..40u32).map(move |i| (i * i * 7 + i * 13 + row * 31) % VOCAB as u32);
    let rows: Vec<Vec<u32>> = (0..2).map(|row| tokens(row).collect()).collect();
    let mut at = 0;
    let mut all = Vec::new();
    for (number, len) in [16, 3, 1, 17, 1, 1, 1].into_iter().enumerate() {
        let (mut ids, mut token_row, mut positions) = (vec![], vec![], vec![]);
        for (row, tokens) in rows.iter().enumerate() {
            ids.extend(&tokens[at..at + len]);
            token_row.extend(vec![row as u32; len]);
            positions.extend((at..at + len).map(|p| p as u32));
        }
        at += len;
        let pages = at.div_ceil(PAGE_TOKENS);
        let row_pages: Vec<u32> = [[7, 0, 4], [2, 9, 1]].iter().flat_map(|p| p[..pages].to_vec()).collect();
        let row_page_start = [0, pages as u32, 2 * pages as u32];
        let step = StepTokens {
            token_row: &token_row,
            positions: &positions,
            row_pages: &row_pages,
            row_page_start: &row_page_start,
        };
        // Every token's logits, those of the last ones, none.
        let wanted: Vec<u32> = match number {
            0 => (0..2 * len as u32).collect(),
            1 => vec![],
            _ => vec![len as u32 - 1, 2 * len as u32 - 1],
        };
        all.push(run(models, number as u64 + 1, &ids, &step, &wanted));
    }
    all
}

#[test]
fn parts_have_the_logits_of_the_whole() {
    for config in configs() {
        let dir = random_checkpoint(&config, Dtype::BF16, 17);
        let mut whole = vec![Model::open(dir.path()).unwrap().build(options(1), PAGES).unwrap()];
        let expected = logits(&mut whole);
        assert!(expected.iter().flatten().all(|bits| !f32::from_bits(*bits).is_nan()));
        for (parts, threads) in [(1, 1), (2, 1), (2, 2), (4, 1)] {
            let found = logits(&mut build(&dir, parts, threads));
            assert!(found == expected, "{} in {parts} parts", config["model_type"]);
        }
    }
}

/// The four segments of K are cut by a border between parts.
#[test]
fn what_cannot_be_cut_is_refused_by_file_and_field() {
    let refused = |changes: &[(&str, u64)], parts: usize| {
        let mut config = qwen3_config();
        changes.iter().for_each(|(name, value)| config[*name] = json!(value));
        let dir = random_checkpoint(&config, Dtype::BF16, 1);
        let error = Model::open(dir.path()).unwrap().check_parts(parts).unwrap_err();
        assert!(error.file.ends_with("config.json"), "{error}");
        error.to_string()
    };
    for (changes, parts, text) in [
        (&[][..], 3, "num_attention_heads: is 4, which 3 devices cannot share equally"),
        (&[("intermediate_size", 42)], 2, "intermediate_size: is 42: on 2 devices a multiple of 4 is needed"),
        (&[("intermediate_size", 42)], 4, "intermediate_size: is 42, which 4 devices cannot share"),
        (&[("num_attention_heads", 6), ("num_key_value_heads", 3)], 2, "num_key_value_heads: is 3, which 2"),
        (
            &[("num_attention_heads", 8), ("num_key_value_heads", 8)],
            8,
            "devices: names 8 devices; on the CPU",
        ),
    ] {
        let error = refused(changes, parts);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn parts_ask_for_what_they_take() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 11);
    let open = Model::open(dir.path()).unwrap();
    let (whole, cut) = (open.demand("m", &options(1), 1), open.demand("m", &options(1), 4));
    assert_eq!(cut.weight_bytes, whole.weight_bytes);
    // Two KV heads, each on two parts.
    assert_eq!(cut.kv_bytes_per_page, 2 * whole.kv_bytes_per_page);
    // A part per token: 3 x 24 + 2 x 8 + 2 x 8 + 2 x 10; per logit row 3 x 24, and the logits on one; tables 256 x 8; two
    // deposits of 64 x 24 on each.
    let part = 64 * (72 + 16 + 16 + 20) + 64 * 72 + 256 * 8;
    assert_eq!(cut.activation_bytes, 4 * (4 * part + 64 * 50 + 4 * 2 * 64 * 24));
}
