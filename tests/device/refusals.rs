//! `--device`: what is said where no GPU can be used.

use std::process::{Command, Output};

fn tokenrouter(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokenrouter")).args(args).output().unwrap()
}

/// One sentence, an exit code, and no models opened.
#[test]
fn cuda_without_a_gpu_is_refused_in_a_sentence() {
    let out = tokenrouter(&["demo", "--once", "--device", "cuda"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(out.stdout.is_empty(), "nothing is served: {}", String::from_utf8_lossy(&out.stdout));
    assert!(text.starts_with("tokenrouter: ") && text.lines().count() == 1, "{text}");
    assert!(text.contains("--device cpu"), "the way out is named: {text}");
    if !cfg!(feature = "cuda") {
        assert!(text.contains("build it with --features cuda"), "{text}");
    }
}

#[test]
fn unknown_devices_are_refused_by_name() {
    let out = tokenrouter(&["--device", "tpu", "demo"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("tpu") && text.contains("cuda"), "{text}");
}
