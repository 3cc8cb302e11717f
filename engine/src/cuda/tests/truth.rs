//! Log-probabilities against the CPU's model, whose activations are f32 while the card's are bf16.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tokenrouter_kernels::DType;

use super::support::*;
use crate::cuda::model::CudaModel;
use crate::model::{Model, OpenModel};

fn log_probs(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    logits.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
}

/// What a teacher-forced run found.
#[derive(Debug, Default)]
struct Errors {
    positions: usize,
    /// Largest and sum of the differences of log-probabilities above one in a thousand.
    largest: f64,
    sum: f64,
    count: usize,
    /// Positions whose best token differs, with the CPU's difference between the two.
    swaps: Vec<f64>,
}

impl Errors {
    fn add(&mut self, cpu: &[f32], cuda: &[f32]) {
        let (a, b) = (log_probs(cpu), log_probs(cuda));
        self.positions += 1;
        for (x, y) in a.iter().zip(&b).filter(|(x, _)| **x > -6.9) {
            self.largest = self.largest.max((x - y).abs());
            self.sum += (x - y).abs();
            self.count += 1;
        }
        let best = |v: &[f64]| (0..v.len()).max_by(|i, j| v[*i].total_cmp(&v[*j])).unwrap();
        let (i, j) = (best(&a), best(&b));
        if i != j {
            self.swaps.push(a[i] - a[j]);
        }
    }
}

/// Feeds `ids` in chunks of `chunk` tokens to both and compares the logits of every chunk's last token.
fn teacher_forced(cpu: &mut Model, cuda: &mut CudaModel, ids: &[u32], chunk: usize, errors: &mut Errors) {
    let pages = pages(0, ids.len());
    let vocab = cpu.config().vocab_size;
    for from in (0..ids.len()).step_by(chunk) {
        let fed = from..(from + chunk).min(ids.len());
        let row = || TestRow { tokens: ids, fed: fed.clone(), pages: &pages, sample: greedy() };
        let step = step(&[row()]);
        let expected = cpu.forward(&step.ids, &step.tokens(), &step.logit_tokens).to_vec();
        run(cuda, step);
        let found = logits(cuda, 1);
        assert_eq!((expected.len(), found[0].len()), (vocab, vocab));
        let (real, padding) = found[0].split_at(vocab - 2);
        assert!(padding.iter().all(|x| *x == f32::NEG_INFINITY) && real.iter().all(|x| x.is_finite()));
        errors.add(&expected, &found[0]);
    }
}

fn compare(open: &OpenModel, ids: &[u32], chunk: usize) -> Errors {
    let mut cuda = ready(open, 64, &BUCKETS, None);
    let mut cpu = reference(open, 64);
    let mut errors = Errors::default();
    teacher_forced(&mut cpu, &mut cuda, ids, chunk, &mut errors);
    errors
}

/// Greedy tokens may differ only where the CPU itself saw a near tie.
#[track_caller]
fn check(name: &str, errors: &Errors, mean: f64, largest: f64) {
    let found = errors.sum / errors.count as f64;
    println!("{name}: mean {found:.4}, largest {:.4}, swaps {:?}", errors.largest, errors.swaps);
    assert!(found <= mean && errors.largest <= largest, "{name}: mean {found}, {errors:?}");
    assert!(errors.swaps.iter().all(|gap| *gap < 2.0 * mean), "{name}: {errors:?}");
}

#[test]
fn the_demo_pair_is_the_cpu_s_within_rounding() {
    let Some(emu) = emulation(1) else { return };
    for name in ["slm", "llm"] {
        let open = Model::open(&demo(name)).unwrap();
        let errors = compare(&open, &problem(0), 3);
        assert!(errors.positions >= 25, "{errors:?}");
        check(name, &errors, 0.04, 0.25);
    }
    drop(emu);
}

/// Checkpoints of `tests/golden` whose heads have kernels: q, k and v biases, no norm of q and k, eight query heads to
/// one, all kinds of rotation, f16, tied and not, widths that are no multiples of 32.
#[test]
fn every_architecture_is_the_cpu_s_within_rounding() {
    let Some(emu) = emulation(1) else { return };
    let names = [
        "qwen3-tied",
        "qwen3-yarn",
        "qwen3-yarn-factors",
        "qwen2-mha-tied",
        "llama-gqa8-llama3",
        "llama-linear",
    ];
    for name in names {
        let open = Model::open(&root().join("tests/golden").join(name)).unwrap();
        let ids = random_ids(5, 40, open.config().vocab_size);
        check(name, &compare(&open, &ids, 3), 0.05, 0.45);
    }
    drop(emu);
}

#[test]
fn all_biases_and_all_types_of_weights_are_the_cpu_s_within_rounding() {
    let Some(emu) = emulation(1) else { return };
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let dir = std::env::temp_dir().join(format!("tokenrouter-{}-{}", std::process::id(), dtype.name()));
        write_biased(&dir, dtype);
        let open = Model::open(&dir).unwrap();
        let ids = random_ids(6, 40, 97);
        check(dtype.name(), &compare(&open, &ids, 3), 0.008, 0.04);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    drop(emu);
}

/// A Llama of odd widths with a bias on every product, its values such as all three types hold exactly.
fn write_biased(dir: &Path, dtype: DType) {
    std::fs::create_dir_all(dir).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 45, "intermediate_size": 70, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": false,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![97, 45]),
        ("lm_head.weight".to_owned(), vec![97, 45]),
        ("model.norm.weight".to_owned(), vec![45]),
    ];
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        shapes.extend([
            (name("input_layernorm.weight"), vec![45]),
            (name("post_attention_layernorm.weight"), vec![45]),
        ]);
        for (part, n, k) in [
            ("self_attn.q_proj", 96, 45),
            ("self_attn.k_proj", 32, 45),
            ("self_attn.v_proj", 32, 45),
            ("self_attn.o_proj", 45, 96),
            ("mlp.gate_proj", 70, 45),
            ("mlp.up_proj", 70, 45),
            ("mlp.down_proj", 45, 70),
        ] {
            shapes.push((name(&format!("{part}.weight")), vec![n, k]));
            shapes.push((name(&format!("{part}.bias")), vec![n]));
        }
    }
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| {
            let values = random_ids(seed as u64, shape.iter().product(), 65);
            let mut bytes = vec![0; values.len() * dtype.size()];
            for (i, value) in values.iter().enumerate() {
                let x = (*value as f32 - 32.0) / 128.0;
                dtype.write(&mut bytes, i, if name.contains("norm") { 1.0 + x } else { x });
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
}
