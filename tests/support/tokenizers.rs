//! Two tokenizers made in the test: bytes with a few longer tokens, and a SentencePiece-like one. Both say which id
//! has which bytes, so that a test can write an answer down token by token and knows its text without a decoder.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Ends a turn; every fixture declares it as the end-of-sequence token.
pub const END: &str = "<|end|>";
/// Begins an answer; the chat template ends in it.
pub const START: &str = "<|start|>";
/// A second control token, which some tests declare as an end as well.
pub const OTHER: &str = "<|other|>";

/// A tokenizer as JSON, and what its ids stand for.
pub struct TestTokenizer {
    /// `tokenizer.json`.
    pub json: Value,
    /// Bytes of every id in an answer; control tokens have none.
    pub bytes: Vec<Vec<u8>>,
    /// Whether the first space of an answer is left out.
    pub strips_first_space: bool,
    ids: HashMap<Vec<u8>, u32>,
    control: HashMap<&'static str, u32>,
}

impl TestTokenizer {
    /// Ids below it have a token.
    pub fn vocab(&self) -> usize {
        self.bytes.len()
    }

    /// The token with exactly these bytes.
    pub fn id(&self, bytes: impl AsRef<[u8]>) -> u32 {
        let bytes = bytes.as_ref();
        *self.ids.get(bytes).unwrap_or_else(|| panic!("no token {:?}", String::from_utf8_lossy(bytes)))
    }

    /// A control token.
    pub fn control(&self, name: &str) -> u32 {
        self.control[name]
    }

    /// The text of an answer by definition: all bytes first, then characters.
    pub fn text(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes[*id as usize].iter().copied()).collect();
        let bytes = match bytes.strip_prefix(b" ") {
            Some(rest) if self.strips_first_space => rest,
            _ => &bytes,
        };
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn new(strips_first_space: bool) -> Self {
        let (bytes, ids, control) = (Vec::new(), HashMap::new(), HashMap::new());
        TestTokenizer { json: Value::Null, bytes, strips_first_space, ids, control }
    }

    fn push(&mut self, bytes: &[u8]) -> u32 {
        let id = self.bytes.len() as u32;
        self.bytes.push(bytes.to_vec());
        // A byte token stands behind a token of its own for the same byte.
        self.ids.entry(bytes.to_vec()).or_insert(id);
        id
    }

    fn push_control(&mut self, name: &'static str) -> Value {
        let id = self.bytes.len() as u32;
        self.bytes.push(Vec::new());
        self.control.insert(name, id);
        json!({"id": id, "content": name, "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    }
}

/// The printable form of a byte in byte-level tokenizers, as GPT-2 defines it.
fn alphabet(byte: u8) -> char {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let byte = u32::from(byte);
    let code = if printable(byte) { byte } else { 256 + (0..byte).filter(|b| !printable(*b)).count() as u32 };
    char::from_u32(code).expect("a character")
}

/// Byte-level BPE: ids 0 to 255 are the bytes, then `words` (also pieces of characters), then the control tokens.
/// Words are reached by merges only where they are two known tokens; an answer can hold all of them.
pub fn byte_bpe(words: &[&[u8]]) -> TestTokenizer {
    let mut made = TestTokenizer::new(false);
    let spell = |bytes: &[u8]| bytes.iter().map(|b| alphabet(*b)).collect::<String>();
    let mut vocab = Map::new();
    for byte in 0..=255u8 {
        let id = made.push(&[byte]);
        vocab.insert(spell(&[byte]), id.into());
    }
    let mut merges = Vec::new();
    for word in words {
        let parts = (1..word.len()).map(|at| word.split_at(at));
        let known = parts.rev().find(|(a, b)| made.ids.contains_key(*a) && made.ids.contains_key(*b));
        if let Some((a, b)) = known {
            merges.push(json!([spell(a), spell(b)]));
        }
        let id = made.push(word);
        let before = vocab.insert(spell(word), id.into());
        assert!(before.is_none(), "{word:?} twice");
    }
    let added = [END, START, OTHER].map(|name| made.push_control(name));
    made.json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocab, "merges": merges}
    });
    made
}

/// SentencePiece-like: the control tokens, the 256 byte tokens `<0x00>` to `<0xFF>`, then `words`, in which a space
/// is written as the marker. Every prompt gets [`START`] in front.
pub fn metaspace(words: &[&str]) -> TestTokenizer {
    let mut made = TestTokenizer::new(true);
    let mut vocab = Map::new();
    let added = [END, START, OTHER].map(|name| made.push_control(name));
    for (id, token) in added.iter().enumerate() {
        vocab.insert(token["content"].as_str().expect("a name").into(), id.into());
    }
    for byte in 0..=255u8 {
        let id = made.push(&[byte]);
        vocab.insert(format!("<0x{byte:02X}>"), id.into());
    }
    for word in words {
        let id = made.bytes.len() as u32;
        made.bytes.push(word.as_bytes().to_vec());
        made.ids.insert(word.as_bytes().to_vec(), id);
        let before = vocab.insert(word.replace(' ', "▁"), id.into());
        assert!(before.is_none(), "{word:?} twice");
    }
    let start = made.control(START);
    made.json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": START, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {START: {"id": START, "ids": [start], "tokens": [START]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": []}
    });
    made
}
