use crate::text::fixtures::{self, load};
use crate::text::{TextModel, check_pair};
use serde_json::{Value, json};

fn difference(edit: impl FnOnce(&mut Value, &mut Value)) -> String {
    let plain = load(&fixtures::byte_level_json(), &json!({"eos_token": "<|end|>"}));
    let (mut tokenizer, mut config) = (fixtures::byte_level_json(), json!({"eos_token": "<|end|>"}));
    edit(&mut tokenizer, &mut config);
    let edited = load(&tokenizer, &config);
    assert_ne!(plain.fingerprint(), edited.fingerprint());
    let back = check_pair(("large", &edited), ("small", &plain));
    assert!(back.is_err(), "the check must not depend on the order");
    check_pair(("small", &plain), ("large", &edited)).unwrap_err().to_string()
}

#[test]
fn equal_tokenizers_pass() {
    let root = fixtures::root().join("models/demo");
    let (small, large) =
        (TextModel::load(&root.join("slm")).unwrap(), TextModel::load(&root.join("llm")).unwrap());
    check_pair(("slm", &small), ("llm", &large)).unwrap();
    assert_eq!(small.fingerprint(), large.fingerprint());
}

#[test]
fn the_first_difference_is_named() {
    let text = difference(|tokenizer, _| {
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let moved = vocab.iter().find(|(_, id)| **id == 7).unwrap().0.clone();
        vocab.shift_remove(&moved);
        vocab.insert("zz".into(), 7.into());
    });
    assert!(text.contains("`small`") && text.contains("`large`") && text.contains("id 7"), "{text}");
    assert!(text.contains("\"ć\" against \"zz\""), "{text}");
}

#[test]
fn added_tokens_of_one_side_only_are_named() {
    let text = difference(|tokenizer, _| {
        tokenizer["added_tokens"].as_array_mut().unwrap().pop();
        tokenizer["model"]["vocab"].as_object_mut().unwrap().shift_remove("☃");
    });
    assert!(text.contains("id 274") && text.contains("no token"), "{text}");
    let text = difference(|tokenizer, _| {
        tokenizer["added_tokens"].as_array_mut().unwrap().remove(4);
    });
    assert!(text.contains("id 268") && text.contains("not an added token"), "{text}");
}

#[test]
fn flags_and_special_ids_count() {
    let text = difference(|tokenizer, _| tokenizer["added_tokens"][2]["special"] = true.into());
    assert!(text.contains("special flag of id 266") && text.contains("false against true"), "{text}");
    let text = difference(|tokenizer, _| tokenizer["added_tokens"][3]["lstrip"] = true.into());
    assert!(text.contains("id 267") && text.contains("lstrip"), "{text}");
    let text = difference(|_, config| config["eos_token"] = "<s>".into());
    assert!(text.contains("end-of-sequence") && text.contains("[264] against [271]"), "{text}");
    let text = difference(|_, config| config["bos_token"] = "<s>".into());
    assert!(text.contains("beginning-of-sequence"), "{text}");
}
