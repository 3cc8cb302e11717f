use crate::text::fixtures::{self, Random};
use crate::text::{Detokenizer, TextModel};
use serde_json::json;
use std::sync::Arc;

fn stream(model: &Arc<TextModel>, ids: &[u32], skip: bool) -> Vec<String> {
    let mut detok = Detokenizer::new(Arc::clone(model), skip);
    let mut pieces: Vec<String> = ids
        .iter()
        .map(|&id| {
            let mut piece = String::new();
            detok.push(id, &mut piece);
            piece
        })
        .collect();
    let mut rest = String::new();
    detok.finish(&mut rest);
    pieces.push(rest);
    pieces
}

fn id(model: &TextModel, token: &str) -> u32 {
    model.raw().token_to_id(token).unwrap_or_else(|| panic!("no token {token:?}"))
}

/// Decodes by definition: all bytes first, then text.
fn by_definition(model: &TextModel, ids: &[u32], skip: bool, strip: bool) -> String {
    let kept = ids.iter().filter(|&&id| !(skip && model.is_special(id)));
    let bytes: Vec<u8> = kept.flat_map(|&id| model.token_bytes(id).unwrap_or_default().to_vec()).collect();
    let bytes = if strip { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes[..] };
    String::from_utf8_lossy(bytes).into_owned()
}

fn random_ids(random: &mut Random, model: &TextModel) -> Vec<u32> {
    let most = model.real_vocab() + 8;
    (0..random.below(24)).map(|_| random.below(most) as u32).collect()
}

#[test]
fn pieces_joined_are_the_whole_decoded_byte_level() {
    for model in [fixtures::byte_level(), fixtures::demo()] {
        let mut random = Random(1);
        for _ in 0..4000 {
            let ids = random_ids(&mut random, &model);
            let skip = random.below(2) == 0;
            let joined = stream(&model, &ids, skip).concat();
            assert_eq!(joined, model.decode(&ids, skip), "{ids:?}");
            assert_eq!(joined, by_definition(&model, &ids, skip, false), "{ids:?}");
            assert_eq!(joined, model.raw().decode(&ids, skip).unwrap(), "{ids:?}");
        }
    }
}

/// Random ids, mostly from the bytes of real characters, so that valid and broken runs both occur.
fn byte_heavy_ids(random: &mut Random, model: &TextModel) -> Vec<u32> {
    let samples = ["é", "€", "😀", "▁", " ", "a", "世"];
    let mut ids = Vec::new();
    for _ in 0..random.below(10) {
        match random.below(4) {
            0 => ids.push(random.below(model.real_vocab() + 4) as u32),
            1 => ids.push(3 + random.below(256) as u32),
            _ => ids.extend(random.pick(&samples).bytes().map(|byte| 3 + u32::from(byte))),
        }
    }
    ids
}

/// Whether every run of byte tokens is valid UTF-8, in which case the library's decoder loses nothing.
fn runs_are_valid(model: &TextModel, ids: &[u32], skip: bool) -> bool {
    let kept: Vec<u32> = ids
        .iter()
        .copied()
        .filter(|&id| model.token_bytes(id).is_some() && !(skip && model.is_special(id)))
        .collect();
    let is_byte = |id: &u32| (3..259).contains(id);
    kept.chunk_by(|a, b| is_byte(a) == is_byte(b)).filter(|run| is_byte(&run[0])).all(|run| {
        let bytes: Vec<u8> = run.iter().map(|id| (id - 3) as u8).collect();
        std::str::from_utf8(&bytes).is_ok()
    })
}

#[test]
fn pieces_joined_are_the_whole_decoded_byte_fallback() {
    let model = fixtures::metaspace();
    let (mut random, mut compared) = (Random(2), 0);
    for _ in 0..6000 {
        let ids = byte_heavy_ids(&mut random, &model);
        let skip = random.below(2) == 0;
        let joined = stream(&model, &ids, skip).concat();
        assert_eq!(joined, model.decode(&ids, skip), "{ids:?}");
        assert_eq!(joined, by_definition(&model, &ids, skip, true), "{ids:?}");
        if runs_are_valid(&model, &ids, skip) {
            compared += 1;
            assert_eq!(joined, model.raw().decode(&ids, skip).unwrap(), "{ids:?}");
        }
    }
    assert!(compared > 1000, "only {compared} cases were comparable");
}

#[test]
fn the_metaspace_decoder_and_no_decoder_agree_with_the_library() {
    let metaspace =
        |scheme| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    for decoder in [metaspace("always"), metaspace("first"), metaspace("never"), json!(null)] {
        let mut tokenizer = fixtures::metaspace_json();
        tokenizer["decoder"] = decoder.clone();
        let model = Arc::new(fixtures::load(&tokenizer, &json!({})));
        let mut random = Random(3);
        for _ in 0..1500 {
            let ids = random_ids(&mut random, &model);
            let skip = random.below(2) == 0;
            let joined = stream(&model, &ids, skip).concat();
            assert_eq!(joined, model.raw().decode(&ids, skip).unwrap(), "{decoder}: {ids:?}");
        }
    }
}

#[test]
fn a_character_is_given_out_when_it_is_complete() {
    let model = fixtures::byte_level();
    let four = "😀".as_bytes();
    for splits in [vec![0xf0, 0x9f, 0x98, 0x80], vec![id(&model, "ðŁ"), id(&model, "ĺĢ")]] {
        let pieces = stream(&model, &splits, true);
        let last = pieces.len() - 2;
        assert_eq!(pieces[last], "😀");
        assert!(pieces[..last].iter().all(String::is_empty), "{pieces:?}");
    }
    let three_one = [id(&model, "ðŁĺ"), u32::from(four[3])];
    assert_eq!(stream(&model, &three_one, true), ["", "😀", ""]);
    // A space glued to the first byte, then the rest of the euro sign.
    let glued = [id(&model, "Ġâ"), 0x82, 0xac, u32::from(b'!')];
    assert_eq!(stream(&model, &glued, true), [" ", "", "€", "!", ""]);
}

#[test]
fn hopeless_bytes_become_replacement_characters_at_once() {
    let model = fixtures::byte_level();
    assert_eq!(stream(&model, &[0xff, 0x41], true), ["\u{fffd}", "A", ""]);
    assert_eq!(stream(&model, &[0xe2, 0x82, 0x41], true), ["", "", "\u{fffd}A", ""]);
    assert_eq!(stream(&model, &[0xe2, 0x82], true), ["", "", "\u{fffd}"]);
    let model = fixtures::metaspace();
    let ids = [
        id(&model, "▁I"),
        id(&model, "▁am"),
        3 + 0xe2,
        3 + 0x82,
        3 + 0xac,
        id(&model, "."),
        id(&model, "▁I"),
    ];
    assert_eq!(stream(&model, &ids, true), ["I", " am", "", "", "€", ".", " I", ""]);
}

#[test]
fn special_tokens_are_skipped_on_demand() {
    let model = fixtures::byte_level();
    let ids = [265, u32::from(b'a'), 266, 264];
    assert_eq!(stream(&model, &ids, true).concat(), "a<think>");
    assert_eq!(stream(&model, &ids, false).concat(), "<|start|>a<think><|end|>");
}
