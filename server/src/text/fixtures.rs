//! Small tokenizers and other helpers for tests.

use crate::text::TextModel;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// A folder that goes away with its owner.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("tokenrouter-text-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.join(name), content).unwrap();
        self
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The tokenizer of the demo pair.
pub(crate) fn demo() -> Arc<TextModel> {
    static DEMO: OnceLock<Arc<TextModel>> = OnceLock::new();
    Arc::clone(DEMO.get_or_init(|| Arc::new(TextModel::load(&root().join("models/demo/slm")).unwrap())))
}

/// Loads a tokenizer given as JSON.
pub(crate) fn load(tokenizer: &Value, config: &Value) -> TextModel {
    let dir = TempDir::new();
    dir.write("tokenizer.json", tokenizer.to_string()).write("tokenizer_config.json", config.to_string());
    TextModel::load(dir.path()).unwrap()
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "normalized": false,
           "single_word": false, "lstrip": false, "rstrip": false})
}

/// The byte alphabet, written down the way GPT-2 defines it.
fn alphabet() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    let mut char_of = |byte: u32| {
        if printable(byte) {
            return char::from_u32(byte).unwrap();
        }
        next += 1;
        char::from_u32(next - 1).unwrap()
    };
    (0..256).map(&mut char_of).collect()
}

/// A byte-level BPE tokenizer: ids 0..=255 are the bytes, then a few merges and added tokens, with a gap in the
/// ids at 270 and ids up to 274.
pub(crate) fn byte_level_json() -> Value {
    let alphabet = alphabet();
    let mut vocab = serde_json::Map::new();
    for (id, c) in alphabet.iter().enumerate() {
        vocab.insert(c.to_string(), id.into());
    }
    let spell = |bytes: &[u8]| bytes.iter().map(|&b| alphabet[b as usize]).collect::<String>();
    let mut merges = Vec::new();
    let pairs: [(&[u8], &[u8]); 8] = [
        (b"h", b"i"),
        (b" ", b"hi"),
        (b"a", b"b"),
        (b"ab", b"c"),
        (&[0xf0], &[0x9f]),
        (&[0xf0, 0x9f], &[0x98]),
        (&[0x98], &[0x80]),
        (b" ", &[0xe2]),
    ];
    for (left, right) in pairs {
        vocab.insert(spell(&[left, right].concat()), vocab.len().into());
        merges.push(json!([spell(left), spell(right)]));
    }
    let added = vec![
        added(264, "<|end|>", true),
        added(265, "<|start|>", true),
        added(266, "<think>", false),
        added(267, "</think>", false),
        added(268, "\n\n", false),
        added(269, "<é€>", false),
        added(271, "<s>", true),
        added(272, "[x]", true),
        added(273, "word", false),
        added(274, "☃", true),
    ];
    // The library takes the id of an added token from the vocabulary, if it is there.
    for token in &added {
        vocab.insert(token["content"].as_str().unwrap().into(), token["id"].clone());
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges}
    })
}

/// The byte-level tokenizer, loaded. Its ids 264 and 271 end and begin sequences.
pub(crate) fn byte_level() -> Arc<TextModel> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    let config = json!({"eos_token": "<|end|>", "bos_token": {"content": "<s>"}});
    Arc::clone(MODEL.get_or_init(|| Arc::new(load(&byte_level_json(), &config))))
}

/// A SentencePiece-like tokenizer: 0..=2 are `<unk>`, `<s>`, `</s>`, 3..=258 the byte tokens, then words; it puts
/// `<s>` in front.
pub(crate) fn metaspace_json() -> Value {
    let mut vocab = serde_json::Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocab.insert(token.into(), vocab.len().into());
    }
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    for token in
        ["▁", "I", "a", "m", "t", "i", "n", "g", ".", "é", "▁I", "am", "▁am", "▁▁", "in", "ing", "▁a"]
    {
        vocab.insert(token.into(), vocab.len().into());
    }
    let merges = [["▁", "I"], ["a", "m"], ["▁", "am"], ["▁", "▁"], ["i", "n"], ["in", "g"], ["▁", "a"]];
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}
    })
}

/// The SentencePiece-like tokenizer, loaded.
pub(crate) fn metaspace() -> Arc<TextModel> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    let config = json!({"eos_token": {"content": "</s>"}, "bos_token": "<s>"});
    Arc::clone(MODEL.get_or_init(|| Arc::new(load(&metaspace_json(), &config))))
}

/// A small random generator (SplitMix64), so that failures repeat.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// One of the items.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
