//! Real checkpoints, greedy: the tokens are those of transformers (`tests/golden/README.md`).
//!
//! The demo pair lies in the repository. SmolLM2-135M is made by `models/fetch_smollm2.sh`; the
//! variable `TOKENROUTER_SMOLLM2` names its folder, and without it that test skips in one line.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::{PAGE_TOKENS, StepTokens};

const VARIABLE: &str = "TOKENROUTER_SMOLLM2";
const CONTEXT: usize = 512;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden(file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(root().join("tests/golden").join(file)).unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn build(dir: &Path, kv_dtype: DType) -> Model {
    let open = Model::open(dir).unwrap();
    let real_vocab = open.config().vocab_size;
    let options = ModelOptions {
        threads: 2,
        max_batch_rows: 1,
        max_step_tokens: 256,
        kv_dtype,
        real_vocab,
        context_len: CONTEXT,
    };
    open.build(options, CONTEXT / PAGE_TOKENS).unwrap()
}

/// The prompt by one extend, then token by token, until an end token or `limit` tokens; with the
/// log-probability of each.
fn generate(model: &mut Model, prompt: &[u32], eos: &[u32], limit: usize) -> (Vec<u32>, Vec<f64>) {
    let pages: Vec<u32> = (0..model.pages() as u32).rev().collect();
    let (mut output, mut logprobs): (Vec<u32>, Vec<f64>) = (Vec::new(), Vec::new());
    let mut fed = prompt.to_vec();
    let mut start = 0;
    while output.len() < limit {
        let positions: Vec<u32> = (start as u32..).take(fed.len()).collect();
        let token_row = vec![0; fed.len()];
        let step = StepTokens {
            token_row: &token_row,
            positions: &positions,
            row_pages: &pages,
            row_page_start: &[0, pages.len() as u32],
        };
        let logits = model.forward(&fed, &step, &[fed.len() as u32 - 1]);
        let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        let top = f64::from(logits[best]);
        let sum: f64 = logits.iter().map(|x| (f64::from(*x) - top).exp()).sum();
        output.push(best as u32);
        logprobs.push(-sum.ln());
        if eos.contains(&(best as u32)) {
            break;
        }
        start += fed.len();
        fed = vec![best as u32];
    }
    (output, logprobs)
}

#[test]
fn demo_pair_alone() {
    let golden = golden("demo.json");
    let limit = golden["max_new_tokens"].as_u64().unwrap() as usize;
    for name in ["slm", "llm"] {
        let mut model = build(&root().join("models/demo").join(name), DType::F32);
        assert_eq!(model.config().eos_ids, [450, 452], "both files of {name} count");
        for case in golden["cases"].as_array().unwrap() {
            let (found, _) = generate(&mut model, &ids(&case["prompt_ids"]), &ids(&golden["eos_ids"]), limit);
            assert_eq!(found, ids(&case[name]["ids"]), "{name}, {}", case["id"]);
        }
    }
}

#[test]
fn smollm2() {
    let Some(dir) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        eprintln!("skipped: {VARIABLE} does not name the folder that models/fetch_smollm2.sh makes");
        return;
    };
    let golden = golden("smollm2.json");
    let limit = golden["new_tokens"].as_u64().unwrap() as usize;
    let eos = [golden["eos_id"].as_u64().unwrap() as u32];
    // Bounds on the log-probability of each token: ten times the distance to a float64 pass, which
    // is float32 noise of either side, and three times the recorded effect of a narrow cache.
    for (kv, line, factor) in [(DType::F32, "float64", 10.0), (DType::Bf16, "kv_bf16", 3.0)] {
        let mut model = build(&dir, kv);
        // The narrow cache is tried on the short ones: the test shall not take minutes.
        let cases = golden["cases"].as_array().unwrap().iter();
        for case in cases.filter(|case| kv == DType::F32 || case["kind"] == "chat") {
            let (found, logprobs) = generate(&mut model, &ids(&case["prompt_ids"]), &eos, limit);
            assert_eq!(found, ids(&case["output_ids"]), "{kv:?} cache: {}", case["text"]);
            let bound = factor * case["noise"][line].as_f64().unwrap();
            let wanted = case["output_logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
            let worst = logprobs.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            println!("{kv:?} cache: log-probability within {worst:.1e}, bound {bound:.1e}: {}", case["text"]);
            assert!(worst <= bound, "{kv:?} cache: {worst:.1e} above {bound:.1e}: {}", case["text"]);
        }
    }
}
