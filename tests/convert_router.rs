//! `tokenrouter convert-router` as a user runs it: torch's own files, converted by the binary, loaded beside the model, give
//! the scores that torch computed with them.

use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::SafeTensors;
use tokenrouter_engine::model::{Model, ModelOptions};
use tokenrouter_kernels::DType;
use tokenrouter_kernels::cpu::StepTokens;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/heads")
}

fn array(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(golden().join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Runs the binary; returns whether it succeeded and what it said.
fn run(input: &Path, model: &Path, out: &Path) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tokenrouter"))
        .arg("convert-router")
        .arg(input)
        .arg("--model")
        .arg(model)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn temporary(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tokenrouter-convert-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

#[test]
fn converted_routers_score_as_torch_did() {
    let out = temporary("scores");
    let cases = [
        ("torch/r2r-plain.pt", "r2r-plain", ">= 0.4059596"),
        ("torch/r2r-widths_all.pt", "r2r-widths", ">= 0.62"),
        ("torch/mlp_iter_0123.pth", "citer", "no threshold"),
        ("extended", "co-llm", "no threshold"),
    ];
    let mut heads = Vec::new();
    for (input, name, said) in cases {
        let (success, text) = run(&golden().join(input), &golden().join("model"), &out.join(name));
        assert!(success && text.contains(said), "{input}: {text}");
        heads.push(out.join(name));
    }
    let options = ModelOptions {
        threads: 1,
        max_batch_rows: 40,
        max_step_tokens: 40,
        kv_dtype: DType::F32,
        real_vocab: 160,
        context_len: 48,
    };
    let open = Model::open(&golden().join("model")).unwrap().with_heads(&heads).unwrap();
    let mut model = open.build(options, 3).unwrap();
    let ids: Vec<u32> = array("ids").iter().map(|x| x.to_bits()).collect();
    let candidates: Vec<u32> = array("candidate").iter().map(|x| x.to_bits()).collect();
    let every: Vec<u32> = (0..40).collect();
    let step =
        StepTokens { token_row: &[0; 40], positions: &every, row_pages: &[0, 1, 2], row_page_start: &[0, 3] };
    model.forward(&ids, &step, &every);
    model.observe_logits(0b1111);
    model.score(0b1111, &candidates);
    for (head, (_, name, _)) in cases.iter().enumerate() {
        let truth = array(&format!("score.{name}"));
        let worst = model.scores(head).iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(model.scores(head).len(), truth.len());
        assert!(worst < 1e-5, "{name}: {worst}");
    }
    let _ = std::fs::remove_dir_all(&out);
}

#[test]
fn refusals_are_one_line_and_leave_nothing() {
    let out = temporary("refused");
    let (success, text) =
        run(&golden().join("torch/r2r-epoch.pt"), &golden().join("model"), &out.join("router"));
    assert!(!success && text.contains("input_type") && text.trim_end().lines().count() == 1, "{text}");
    assert!(!out.join("router").exists());
    let _ = std::fs::remove_dir_all(&out);
}
