//! The files that torch has left, converted.

use tokenrouter_engine::heads::{HeadShape, RouterFile};

use super::super::convert;
use super::{TempDir, args, golden};

fn torch(name: &str) -> std::path::PathBuf {
    golden().join("torch").join(name)
}

fn refusal(args: &super::ConvertArgs) -> String {
    convert(args).expect_err("a refusal")
}

#[test]
fn slim_and_full_files_say_what_the_trainer_said() {
    for (file, router) in [
        ("r2r-plain.pt", "r2r-plain"),
        ("r2r-widths.pt", "r2r-widths"),
        ("r2r-widths_all.pt", "r2r-widths"),
        ("mlp_iter_0123.pth", "citer"),
        ("gperp_init.bin", "co-llm"),
    ] {
        let out = TempDir::new();
        let converted = convert(&args(torch(file), &out)).unwrap();
        assert_eq!(converted, RouterFile::load(&golden().join(router)).unwrap(), "{file}");
        assert_eq!(converted, RouterFile::load(&out.0.join("router")).unwrap(), "{file}");
        let left: Vec<_> = std::fs::read_dir(&out.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["router"], "{file}: nothing but the router is left");
    }
}

#[test]
fn an_extended_checkpoint_gives_its_row_and_masks_the_token() {
    let out = TempDir::new();
    let mut extended = args(golden().join("extended"), &out);
    extended.model = None;
    let file = convert(&extended).unwrap();
    let HeadShape::CoLlm(shape) = &file.shape else { panic!("{file:?}") };
    assert_eq!((shape.defer_id, file.owner.vocab_size), (Some(161), 162));

    // For the plain model the row is the same, and there is nothing to mask.
    let plain = TempDir::new();
    let file = convert(&args(golden().join("extended"), &plain)).unwrap();
    assert_eq!(file, RouterFile::load(&golden().join("co-llm")).unwrap());
    let row = |dir: &TempDir| std::fs::read(dir.0.join("router/router.safetensors")).unwrap();
    assert_eq!(row(&plain), row(&out));

    let other = TempDir::new();
    let mut named = args(golden().join("extended"), &other);
    (named.model, named.defer_id) = (None, Some(160));
    let HeadShape::CoLlm(shape) = convert(&named).unwrap().shape else { panic!() };
    assert_eq!(shape.defer_id, Some(160));
    assert_ne!(row(&other), row(&out), "another id is another row");
    named.defer_id = Some(162);
    named.force = true;
    assert!(refusal(&named).contains("162 rows"));
}

#[test]
fn a_defer_token_is_never_guessed() {
    let out = TempDir::new();
    let mut plain = args(golden().join("model"), &out);
    plain.model = None;
    let error = refusal(&plain);
    assert!(error.contains("<|defer|>") && error.contains("--defer-id"), "{error}");
}

#[test]
fn a_threshold_on_the_command_line_replaces_the_stored_one() {
    let out = TempDir::new();
    let mut with = args(torch("r2r-plain.pt"), &out);
    with.threshold = Some(0.25);
    assert_eq!(convert(&with).unwrap().threshold, Some(0.25));
    with.threshold = Some(1.5);
    assert!(refusal(&with).contains("--threshold"));
    with.threshold = Some(f32::NAN);
    assert!(refusal(&with).contains("--threshold"));
}

#[test]
fn a_router_is_replaced_only_by_force() {
    let out = TempDir::new();
    let mut again = args(torch("r2r-plain.pt"), &out);
    convert(&again).unwrap();
    let error = convert(&again).unwrap_err();
    assert!(error.contains("--force"), "{error}");
    again.force = true;
    again.input = torch("mlp_iter_0123.pth");
    assert!(matches!(convert(&again).unwrap().shape, HeadShape::Citer(_)));
}

#[test]
fn states_saved_while_training_and_other_classes_are_refused() {
    let out = TempDir::new();
    let mut epoch = args(torch("r2r-epoch.pt"), &out);
    let error = refusal(&epoch);
    assert!(std::fs::read_dir(&out.0).unwrap().next().is_none(), "a refusal leaves nothing");
    assert!(error.contains("input_type") && error.contains("not tuned"), "{error}");
    epoch.threshold = Some(0.3);
    assert_eq!(convert(&epoch).unwrap().threshold, Some(0.3));
    let out = TempDir::new();
    let error = refusal(&args(torch("r2r-other-class.pt"), &out));
    assert!(error.contains("LogitsClassifier") && error.contains("model_type"), "{error}");
}

#[test]
fn the_model_must_be_named_and_fit() {
    let out = TempDir::new();
    let mut nameless = args(torch("r2r-plain.pt"), &out);
    nameless.model = None;
    assert!(refusal(&nameless).contains("--model"));
    let mut other = args(torch("r2r-plain.pt"), &out);
    other.model = Some(golden().join("../qwen3-tied"));
    let error = refusal(&other);
    assert!(error.contains("32") && error.contains("48"), "{error}");
    other.model = Some(golden().join("nowhere"));
    assert!(refusal(&other).contains("nowhere"));
}

#[test]
fn old_and_foreign_files_are_named_for_what_they_are() {
    let out = TempDir::new();
    assert!(refusal(&args(torch("legacy.pth"), &out)).contains("old kind"));
    assert!(refusal(&args(golden().join("golden.json"), &out)).contains("not a torch file"));
    assert!(refusal(&args(golden().join("nothing.pt"), &out)).contains("cannot be opened"));
    let empty = out.file("empty.pt", b"");
    assert!(refusal(&args(empty, &out)).contains("empty"));
}
