use crate::text::fixtures::{self, TempDir};
use crate::text::{TextError, TextModel};
use serde_json::json;

#[test]
fn the_demo_tokenizer_loads() {
    let demo = fixtures::demo();
    assert_eq!((demo.real_vocab(), demo.eos_ids(), demo.bos_id()), (455, &[452][..], None));
    let special: Vec<u32> = (0..455).filter(|&id| demo.is_special(id)).collect();
    assert_eq!(special, [450, 451, 452]);
    assert!(demo.has_template() && !demo.adds_bos() && demo.empty_prompt_tokens() == 0);
    let text = "Max has 12 apples.<|im_end|>\n";
    let ids = demo.encode(text, true).unwrap();
    assert_eq!(ids[ids.len() - 2], 452);
    assert_eq!(demo.decode(&ids, false), text);
    assert_eq!(demo.decode(&ids, true), "Max has 12 apples.\n");
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| demo.token_bytes(id).unwrap().to_vec()).collect();
    assert_eq!(bytes, text.as_bytes());
}

#[test]
fn ids_without_a_token_are_harmless() {
    for model in [fixtures::demo(), fixtures::byte_level(), fixtures::metaspace()] {
        for id in [model.real_vocab() as u32, 100_000, u32::MAX] {
            assert!(
                model.token_bytes(id).is_none() && model.token_text(id).is_none() && !model.is_special(id)
            );
            assert_eq!(model.decode(&[id, id], true), "");
        }
    }
    let model = fixtures::byte_level();
    assert!(model.real_vocab() == 275 && model.token_bytes(270).is_none(), "a gap inside the ids");
}

#[test]
fn special_tokens_are_added_once() {
    let model = fixtures::metaspace();
    assert!(model.adds_bos() && model.empty_prompt_tokens() == 1);
    let plain = model.encode("I am", false).unwrap();
    let with = model.encode_prompt("I am", true).unwrap();
    assert_eq!(with, [&[1][..], &plain[..]].concat());
    // The client wrote the token itself (bug log L04).
    let doubled = model.encode_prompt("<s>I am", true).unwrap();
    assert_eq!((doubled[0], doubled.iter().filter(|&&id| id == 1).count()), (1, 1));
    assert_eq!(model.encode_prompt("<s>I am", false).unwrap(), doubled);
    assert_eq!(model.encode_prompt("", true).unwrap(), [1]);
}

fn load_error(dir: &TempDir) -> (String, String) {
    match TextModel::load(dir.path()) {
        Err(TextError::File { path, problem }) => {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), problem)
        }
        other => panic!("expected a file error, got {other:?}"),
    }
}

#[test]
fn broken_folders_name_the_file_and_the_problem() {
    let dir = TempDir::new();
    assert_eq!(load_error(&dir).0, "tokenizer.json");
    dir.write("tokenizer.json", "{\"version\": ");
    let (file, problem) = load_error(&dir);
    assert!(file == "tokenizer.json" && problem.contains("EOF"), "{problem}");
    dir.write("tokenizer.json", fixtures::byte_level_json().to_string());
    for (config, expected) in [
        ("{", "EOF"),
        ("[]", "object"),
        ("{\"eos_token\": \"<|nope|>\"}", "<|nope|>"),
        ("{\"chat_template\": 7}", "chat_template"),
        ("{\"chat_template\": [{\"name\": \"default\"}]}", "chat_template"),
        ("{\"chat_template\": \"a\\nb\\n{% for %}\"}", "line 3"),
    ] {
        dir.write("tokenizer_config.json", config);
        let (file, problem) = load_error(&dir);
        assert!(file == "tokenizer_config.json" && problem.contains(expected), "{config}: {problem}");
    }
    dir.write("tokenizer_config.json", "{}").write("chat_template.jinja", "ok\n{{ nope");
    let (file, problem) = load_error(&dir);
    assert!(file == "chat_template.jinja" && problem.contains("line 2"), "{problem}");
    let text = TextModel::load(TempDir::new().path()).unwrap_err().to_string();
    assert!(text.contains("tokenizer.json") && text.contains("No such file"), "{text}");
}

#[test]
fn decoders_that_are_not_understood_are_refused_by_name() {
    let dir = TempDir::new();
    for (decoder, name) in [
        (json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "WordPiece"),
        (json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}), "CTC"),
        (json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}), "Strip"),
        (
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]}),
            "ByteLevel",
        ),
    ] {
        let mut tokenizer = fixtures::byte_level_json();
        tokenizer["decoder"] = decoder;
        dir.write("tokenizer.json", tokenizer.to_string());
        let (file, problem) = load_error(&dir);
        assert!(file == "tokenizer.json" && problem.contains(name), "{name}: {problem}");
    }
}

#[test]
fn added_tokens_must_get_the_ids_they_declare() {
    let mut tokenizer = fixtures::byte_level_json();
    tokenizer["added_tokens"][4]["id"] = 300.into();
    let dir = TempDir::new();
    dir.write("tokenizer.json", tokenizer.to_string());
    let (file, problem) = load_error(&dir);
    assert!(file == "tokenizer.json" && problem.contains("300") && problem.contains("268"), "{problem}");
}

#[test]
fn prompts_are_never_cut_or_padded() {
    let mut tokenizer = fixtures::byte_level_json();
    tokenizer["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let model = fixtures::load(&tokenizer, &json!({}));
    let text = "this is longer than four tokens";
    let ids = model.encode(text, true).unwrap();
    assert_eq!(model.decode(&ids, false), text);
}

#[test]
fn no_config_means_no_template_and_no_declared_eos() {
    let dir = TempDir::new();
    dir.write("tokenizer.json", fixtures::byte_level_json().to_string());
    let model = TextModel::load(dir.path()).unwrap();
    assert!(!model.has_template() && model.eos_ids().is_empty());
    let error = model.chat_prompt(&json!([]), &Default::default()).unwrap_err();
    assert_eq!(error, TextError::NoTemplate);
}
