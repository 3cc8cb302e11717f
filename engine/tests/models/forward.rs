//! Whole forward passes: a token's logits are the same bits however it was fed (DESIGN rule 5).

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{PAGE_TOKENS, StepTokens};

use crate::support::{
    TempDir, encode, qwen3_config, random_checkpoint, random_tensors, wide_config, write_checkpoint,
};

const PAGES: usize = 40;
const STEP: usize = 160;

/// Tiny configurations of every architecture, with sizes that are no multiple of a vector.
fn configs() -> Vec<Value> {
    let mut qwen2 = qwen3_config();
    qwen2["architectures"] = json!(["Qwen2ForCausalLM"]);
    qwen2["model_type"] = json!("qwen2");
    qwen2["tie_word_embeddings"] = json!(true);
    let mut llama = qwen3_config();
    llama["architectures"] = json!(["LlamaForCausalLM"]);
    llama["model_type"] = json!("llama");
    for (name, value) in [
        ("hidden_size", 45),
        ("head_dim", 20),
        ("num_attention_heads", 3),
        ("num_key_value_heads", 1),
        ("intermediate_size", 67),
    ] {
        llama[name] = json!(value);
    }
    llama["attention_bias"] = json!(true);
    llama["mlp_bias"] = json!(true);
    vec![qwen3_config(), qwen2, llama]
}

fn options(threads: usize, kv_dtype: DType) -> ModelOptions {
    ModelOptions {
        threads,
        max_batch_rows: STEP,
        max_step_tokens: STEP,
        kv_dtype,
        real_vocab: 50,
        context_len: 256,
    }
}

fn build(dir: &TempDir, options: ModelOptions) -> Model {
    let mut model = Model::open(dir.path()).unwrap().build(options, PAGES).unwrap();
    // A cache page that was never written holds NaN: whoever reads one cannot pass.
    for page in 0..PAGES as u32 {
        model.poison_page(page);
    }
    model
}

/// A part of a sequence to feed: its pages, the first position, the tokens.
#[derive(Clone, Copy)]
struct Feed<'a> {
    pages: &'a [u32],
    start: usize,
    ids: &'a [u32],
}

/// Runs one step over several rows and returns the logits of every fed token as bits.
fn run(model: &mut Model, rows: &[Feed<'_>]) -> Vec<Vec<u32>> {
    let (mut ids, mut token_row, mut positions) = (vec![], vec![], vec![]);
    let (mut row_pages, mut row_page_start) = (vec![], vec![0]);
    for (row, feed) in rows.iter().enumerate() {
        ids.extend(feed.ids);
        token_row.extend(feed.ids.iter().map(|_| row as u32));
        positions.extend((0..feed.ids.len()).map(|i| (feed.start + i) as u32));
        row_pages.extend(feed.pages);
        row_page_start.push(row_pages.len() as u32);
    }
    let step = StepTokens {
        token_row: &token_row,
        positions: &positions,
        row_pages: &row_pages,
        row_page_start: &row_page_start,
    };
    let wanted: Vec<u32> = (0..ids.len() as u32).collect();
    let vocab = model.config().vocab_size;
    let logits = model.forward(&ids, &step, &wanted);
    assert!(logits.iter().all(|x| !x.is_nan()), "a page was read that nobody wrote");
    logits.chunks(vocab).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 7 + i * 13 + seed * 31) % 50).collect()
}

/// Pages for `len` tokens, scattered over the cache; different `lane`s share none.
fn scattered(lane: u32, len: usize) -> Vec<u32> {
    let count = len.div_ceil(PAGE_TOKENS) as u32;
    // 7 has no common factor with 40, so the walk visits every page once.
    (0..count).map(|i| ((lane * 8 + i) * 7 + 3) % PAGES as u32).collect()
}

/// The sequence alone, whole, on consecutive pages.
fn alone(model: &mut Model, ids: &[u32]) -> Vec<Vec<u32>> {
    let pages: Vec<u32> = (0..ids.len().div_ceil(PAGE_TOKENS) as u32).collect();
    run(model, &[Feed { pages: &pages, start: 0, ids }])
}

#[test]
fn a_token_is_the_same_bits_in_any_company() {
    for config in configs() {
        let dir = random_checkpoint(&config, Dtype::BF16, 3);
        for kv_dtype in [DType::F32, DType::F16, DType::Bf16] {
            let lens = [70, 33, 1, 16];
            let sequences: Vec<Vec<u32>> =
                lens.iter().zip(1..).map(|(len, seed)| tokens(seed, *len)).collect();
            let mut reference = build(&dir, options(1, kv_dtype));
            let want: Vec<_> = sequences.iter().map(|ids| alone(&mut reference, ids)).collect();
            let mut model = build(&dir, options(2, kv_dtype));
            let pages: Vec<_> = lens.iter().zip(0..).map(|(len, lane)| scattered(lane, *len)).collect();
            let mut found = vec![Vec::new(); lens.len()];
            // Chunks of every length, rows in turn, decode (1) beside extend (up to 23).
            for turn in 0.. {
                let mut rows = Vec::new();
                for (i, ids) in sequences.iter().enumerate() {
                    let start = found[i].len();
                    let take = [1, 5, 16, 1, 23, 2][(turn + i) % 6].min(ids.len() - start);
                    if take > 0 {
                        rows.push((i, Feed { pages: &pages[i], start, ids: &ids[start..start + take] }));
                    }
                }
                if rows.is_empty() {
                    break;
                }
                let feeds: Vec<Feed<'_>> = rows.iter().map(|(_, f)| *f).collect();
                let mut logits = run(&mut model, &feeds).into_iter();
                for (i, feed) in &rows {
                    found[*i].extend(logits.by_ref().take(feed.ids.len()));
                }
            }
            assert!(found == want, "{} with a {kv_dtype:?} cache", config["model_type"]);
        }
    }
}

#[test]
fn decode_is_an_extend_of_one() {
    for config in configs() {
        let dir = random_checkpoint(&config, Dtype::F16, 4);
        let mut model = build(&dir, options(1, DType::Bf16));
        let ids = tokens(9, 50);
        let want = alone(&mut model, &ids);
        let pages = scattered(2, ids.len());
        for (i, id) in ids.iter().enumerate() {
            let found = run(&mut model, &[Feed { pages: &pages, start: i, ids: &[*id] }]);
            assert!(found[0] == want[i], "{} at position {i}", config["model_type"]);
        }
    }
}

#[test]
fn threads_change_nothing() {
    for config in configs().into_iter().chain([wide_config()]) {
        let dir = random_checkpoint(&config, Dtype::F32, 5);
        let ids = tokens(2, 90);
        let want = alone(&mut build(&dir, options(1, DType::F32)), &ids);
        for threads in [2, 3] {
            let mut model = build(&dir, options(threads, DType::F32));
            assert!(alone(&mut model, &ids) == want, "{threads} threads");
            let pages = scattered(1, ids.len());
            for (i, id) in ids.iter().enumerate().take(20) {
                let found = run(&mut model, &[Feed { pages: &pages, start: i, ids: &[*id] }]);
                assert!(found[0] == want[i], "{threads} threads, decode at {i}");
            }
        }
    }
}

/// A context that was cut and written again (a dropped candidate) leaves no trace.
#[test]
fn rewriting_positions_leaves_no_trace() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 6);
    let mut model = build(&dir, options(1, DType::F32));
    let ids = tokens(4, 40);
    let want = alone(&mut model, &ids);
    let pages = scattered(1, ids.len());
    let wrong = tokens(5, 20);
    run(&mut model, &[Feed { pages: &pages, start: 0, ids: &ids[..20] }]);
    run(&mut model, &[Feed { pages: &pages, start: 20, ids: &wrong }]);
    let found = run(&mut model, &[Feed { pages: &pages, start: 20, ids: &ids[20..] }]);
    assert!(found == want[20..]);
}

#[test]
fn only_the_wanted_logits_and_their_hidden_states() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 7);
    let mut model = build(&dir, options(2, DType::F32));
    let ids = tokens(1, 20);
    let want = alone(&mut model, &ids);
    let all_hidden = model.hidden().to_vec();
    let positions: Vec<u32> = (0..20).collect();
    let step = StepTokens {
        token_row: &[0; 20],
        positions: &positions,
        row_pages: &[5, 6],
        row_page_start: &[0, 2],
    };
    let logits = model.forward(&ids, &step, &[19, 3]).to_vec();
    for (row, position) in [19, 3].into_iter().enumerate() {
        let bits: Vec<u32> = logits[row * 50..][..50].iter().map(|x| x.to_bits()).collect();
        assert!(bits == want[position]);
        assert_eq!(model.hidden()[row * 24..][..24], all_hidden[position * 24..][..24]);
    }
    assert_eq!((logits.len(), model.hidden().len()), (100, 48));
    assert!(model.forward(&ids, &step, &[]).is_empty());
    assert!(model.hidden().is_empty());
}

#[test]
fn padding_ids_are_masked_and_the_rest_is_untouched() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 8);
    let ids = tokens(3, 10);
    let whole = alone(&mut build(&dir, options(1, DType::F32)), &ids);
    let masked = alone(&mut build(&dir, ModelOptions { real_vocab: 43, ..options(1, DType::F32) }), &ids);
    for (a, b) in whole.iter().zip(&masked) {
        assert_eq!(a[..43], b[..43]);
        assert!(b[43..].iter().all(|x| *x == f32::NEG_INFINITY.to_bits()));
    }
}

#[test]
fn a_tied_flag_beats_a_tensor_and_a_tensor_beats_the_embedding() {
    let mut config = qwen3_config();
    let untied = random_checkpoint(&config, Dtype::BF16, 9);
    let ids = tokens(3, 10);
    let of = |dir: &TempDir| alone(&mut build(dir, options(1, DType::F32)), &ids);
    let head = of(&untied);
    config["tie_word_embeddings"] = json!(true);
    std::fs::write(untied.path().join("config.json"), config.to_string()).unwrap();
    let ignored = of(&untied);
    assert!(head != ignored, "lm_head and embedding must differ for this test");
    // The embedding named as lm_head gives what tying gives.
    let mut tensors = random_tensors(&qwen3_config(), Dtype::BF16, 9);
    tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
    let copied = TempDir::new();
    write_checkpoint(copied.path(), &qwen3_config(), &tensors);
    assert!(of(&copied) == ignored);
}

/// Numbers that every type holds exactly give the same bits in every type, in a mixture of types,
/// and from an odd address in the file (bug-log L12).
#[test]
fn the_stored_type_changes_nothing() {
    let exact: Vec<(String, Vec<usize>, Vec<f32>)> = random_tensors(&qwen3_config(), Dtype::F32, 12)
        .into_iter()
        .map(|(name, (_, shape, data))| {
            let values = data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            (name, shape, values.map(|v| (v * 64.0).round() / 64.0).collect())
        })
        .collect();
    let ids = tokens(6, 40);
    let stored = |dtype: &dyn Fn(usize) -> Dtype, odd: bool| {
        let tensors = exact.iter().enumerate().map(|(i, (name, shape, values))| {
            (name.clone(), (dtype(i), shape.clone(), encode(values, dtype(i))))
        });
        let dir = TempDir::new();
        write_checkpoint(dir.path(), &qwen3_config(), &tensors.collect());
        if odd {
            shift_data_by_one_byte(&dir.path().join("model.safetensors"));
        }
        alone(&mut build(&dir, options(1, DType::F32)), &ids)
    };
    let want = stored(&|_| Dtype::F32, false);
    for odd in [false, true] {
        assert!(stored(&|_| Dtype::F32, odd) == want, "f32, odd address {odd}");
        assert!(stored(&|_| Dtype::BF16, odd) == want, "bf16, odd address {odd}");
        assert!(stored(&|_| Dtype::F16, odd) == want, "f16, odd address {odd}");
        let mixed = |i| [Dtype::BF16, Dtype::F32, Dtype::F16][i % 3];
        assert!(stored(&mixed, odd) == want, "mixed, odd address {odd}");
    }
}

/// Pads the header so that the data begin at an odd offset.
fn shift_data_by_one_byte(path: &std::path::Path) {
    let old = std::fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let mut new = (end as u64 - 8 + 1).to_le_bytes().to_vec();
    new.extend(&old[8..end]);
    new.push(b' ');
    new.extend(&old[end..]);
    std::fs::write(path, new).unwrap();
}

/// Activations whose squares are far beyond f16 stay finite: norms and sums are f32.
#[test]
fn large_activations_stay_finite() {
    let mut tensors = random_tensors(&qwen3_config(), Dtype::F16, 13);
    let (dtype, shape, data) = tensors.get_mut("model.embed_tokens.weight").unwrap();
    let huge: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| (i % 17) as f32 * 3000.0).collect();
    *data = encode(&huge, *dtype);
    let dir = TempDir::new();
    write_checkpoint(dir.path(), &qwen3_config(), &tensors);
    let logits = alone(&mut build(&dir, options(1, DType::F32)), &tokens(1, 20));
    assert!(logits.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
}

/// A model may be handed to the thread that drives it.
#[test]
fn models_can_move_to_a_thread() {
    fn movable<T: Send>() {}
    movable::<Model>();
}

#[test]
fn options_are_checked() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 10);
    let refused = |options: ModelOptions, pages: usize, word: &str| {
        let result = Model::open(dir.path()).unwrap().build(options, pages);
        let text = result.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains(word), "{word:?} not in {text:?}");
    };
    let good = options(1, DType::F32);
    refused(ModelOptions { threads: 0, ..good.clone() }, 1, "threads: is 0");
    refused(ModelOptions { max_batch_rows: 0, ..good.clone() }, 1, "max_batch_rows");
    refused(ModelOptions { max_step_tokens: 0, ..good.clone() }, 1, "max_step_tokens");
    refused(ModelOptions { context_len: 0, ..good.clone() }, 1, "context_len");
    refused(ModelOptions { real_vocab: 51, ..good.clone() }, 1, "vocab_size: is 50, smaller than the 51");
    refused(good.clone(), 0, "pages: is 0");
    let model =
        Model::open(dir.path()).unwrap().build(ModelOptions { context_len: 1 << 20, ..good }, 1).unwrap();
    assert_eq!((model.context_len(), model.pages()), (256, 1));
}

#[test]
fn an_open_model_states_its_demand() {
    let dir = random_checkpoint(&qwen3_config(), Dtype::BF16, 11);
    let open = Model::open(dir.path()).unwrap();
    let demand = open.demand("tiny", &options(1, DType::F16), 1);
    // Per token: 3 x 24 + 2 x 32 + 2 x 16 + 2 x 40; per logit row: 3 x 24 + 50; tables: 256 x 8.
    assert_eq!(demand.activation_bytes, 4 * (160 * 248 + 160 * 122 + 256 * 8));
    assert_eq!(demand.kv_bytes_per_page, 2 * 2 * 2 * 8 * 16 * 2);
    assert_eq!((demand.name.as_str(), demand.context_len), ("tiny", 256));
    assert_eq!(demand.weight_bytes, open.weight_bytes(1));
}
