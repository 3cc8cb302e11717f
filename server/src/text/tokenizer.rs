//! The text side of one checkpoint folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`.

use crate::text::control::ControlGuard;
use crate::text::fingerprint::Fingerprint;
use crate::text::pieces::PieceTable;
use crate::text::template::ChatTemplate;
use crate::text::{RenderedPrompt, TextError, TextOptions};
use serde_json::Value;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::{AddedToken, Tokenizer};

/// The names of the token variables a chat template may use.
pub(crate) const TOKEN_VARIABLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// A tokenizer with everything the server asks of it. Immutable after loading; share it with `Arc`.
///
/// Ids for which the tokenizer has no token (rows that only pad a model's vocabulary) are legal arguments
/// everywhere: they have no bytes and no text.
pub struct TextModel {
    tokenizer: Tokenizer,
    pieces: PieceTable,
    guard: ControlGuard,
    template: ChatTemplate,
    bos: Option<u32>,
    eos: Vec<u32>,
    empty_prompt: Vec<u32>,
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel")
            .field("real_vocab", &self.real_vocab())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("has_template", &self.has_template())
            .finish_non_exhaustive()
    }
}

impl TextModel {
    /// Loads the text files of a checkpoint folder.
    ///
    /// `tokenizer.json` must exist. Without `tokenizer_config.json` and `chat_template.jinja` there is no chat
    /// template and no declared end-of-sequence id; completions work all the same. Truncation and padding
    /// configured in `tokenizer.json` are switched off: prompts are never cut silently.
    ///
    /// # Errors
    /// [`TextError::File`] names the file and what is wrong with it, for templates with the line.
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        Self::load_with(dir, &TextOptions::default())
    }

    /// As [`Self::load`], with what a deployment says.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(dir: &Path, options: &TextOptions) -> Result<Self, TextError> {
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|e| TextError::file(&path, e))?;
        let mut tokenizer = parse_tokenizer(&bytes).map_err(|problem| TextError::file(&path, problem))?;
        // Infallible for `None`; the result exists because a truncation length can be out of range.
        tokenizer.with_truncation(None).map_err(|e| TextError::file(&path, e))?;
        tokenizer.with_padding(None);
        check_declared_ids(&bytes, &tokenizer).map_err(|problem| TextError::file(&path, problem))?;
        let pieces = PieceTable::new(&tokenizer).map_err(|problem| TextError::file(&path, problem))?;
        let config_path = dir.join("tokenizer_config.json");
        let config = read_config(&config_path)?;
        let template = ChatTemplate::load(dir, &config, options.template.as_deref())?;
        let guard = ControlGuard::new(&tokenizer, template.sources(), options.guard_text)
            .map_err(|problem| TextError::file(&path, problem))?;
        let bos = token_text(&config, "bos_token").and_then(|t| tokenizer.token_to_id(&t));
        let mut eos = Vec::new();
        if let Some(text) = token_text(&config, "eos_token") {
            let id = tokenizer.token_to_id(&text).ok_or_else(|| {
                TextError::file(&config_path, format!("eos_token {text:?} is not in tokenizer.json"))
            })?;
            eos.push(id);
        }
        let mut model = Self { tokenizer, pieces, guard, template, bos, eos, empty_prompt: Vec::new() };
        model.empty_prompt = model.encode("", true).map_err(|e| TextError::file(&path, e))?;
        Ok(model)
    }

    /// Token ids of a text. Special-token texts in it become their ids.
    ///
    /// With `add_special` the tokenizer's post-processor adds what it adds (often a beginning-of-sequence token).
    ///
    /// # Errors
    /// [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        guarded(|| self.tokenizer.encode_fast(text, add_special).map(|e| e.get_ids().to_vec()))
    }

    /// Token ids of a raw completion prompt: like [`Self::encode`], but when the text already starts with the
    /// beginning-of-sequence token and the tokenizer adds another, one of the two is left out (bug log L04).
    ///
    /// # Errors
    /// [`TextError::Encode`] when the tokenizer refuses the text.
    pub fn encode_prompt(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, add_special)?;
        let doubled = ids.len() > 1 && ids[0] == ids[1] && Some(ids[0]) == self.bos;
        if add_special && doubled && self.adds_bos() {
            tracing::warn!("the prompt starts with the token that the tokenizer adds; it is used once");
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Token ids of a rendered chat. Control tokens come only from the template; the same texts inside
    /// messages are encoded as ordinary text.
    ///
    /// # Errors
    /// [`TextError::Encode`] when the tokenizer refuses the text, [`TextError::ControlText`] when its
    /// vocabulary cannot spell a control token's text in any other way.
    pub fn encode_rendered(&self, prompt: &RenderedPrompt) -> Result<Vec<u32>, TextError> {
        if prompt.is_plain() && self.guard.plain_is_safe() {
            return self.encode(prompt.marked(), prompt.add_special());
        }
        let ids = guarded(|| self.guard.encode(&self.tokenizer, prompt))?;
        ids.ok_or(TextError::ControlText)
    }

    /// Whether the checkpoint has a chat template.
    pub fn has_template(&self) -> bool {
        !self.template.is_empty()
    }

    /// One more than the highest id that has a token. Ids at or above it only pad a model's vocabulary.
    pub fn real_vocab(&self) -> usize {
        self.pieces.len()
    }

    /// The raw bytes an id stands for inside a text, or `None` when it has no token. Not always UTF-8.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.piece(id)
    }

    /// The most bytes one token stands for.
    pub fn longest_token(&self) -> usize {
        self.pieces.longest()
    }

    /// The tokenizer's own spelling of an id (for byte-level tokenizers not the text it decodes to).
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Whether an id is a special token, which `skip_special_tokens` leaves out of texts.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// The id of a special token.
    pub(crate) fn special_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token).filter(|&id| self.is_special(id))
    }

    /// Every added token with its flags, ascending by id.
    pub(crate) fn added_tokens(&self) -> Vec<(u32, AddedToken)> {
        let mut all: Vec<_> = self.tokenizer.get_added_tokens_decoder().into_iter().collect();
        all.sort_unstable_by_key(|&(id, _)| id);
        all
    }

    /// The end-of-sequence ids that `tokenizer_config.json` declares. The engine joins them with those of the
    /// checkpoint's other files.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The id of the declared beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// Whether the tokenizer itself puts the beginning-of-sequence token in front of a text.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.empty_prompt.first() == self.bos.as_ref()
    }

    /// How many tokens the empty text has with special tokens added: 0 for most tokenizers, 1 with a
    /// beginning-of-sequence token, and only then an empty prompt is usable.
    pub fn empty_prompt_tokens(&self) -> usize {
        self.empty_prompt.len()
    }

    /// The text of a whole answer. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// Equal to what the `tokenizers` library decodes, with one exception: in a run of byte-fallback tokens
    /// that is not valid UTF-8 as a whole, that library gives up the whole run, which a stream cannot do.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = self.pieces.decoder(skip_special);
        for &id in ids {
            self.pieces.push(&mut decoder, id, false, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    /// A digest of every id, token, flag and end-of-sequence id; equal for equal tokenizers.
    pub fn fingerprint(&self) -> u64 {
        let mut print = Fingerprint::new();
        for id in 0..self.real_vocab() as u32 {
            print.field(self.token_text(id).as_deref().unwrap_or_default().as_bytes());
            print.field(self.token_bytes(id).unwrap_or_default());
        }
        for (id, token) in self.added_tokens() {
            print.field(format!("{id} {token:?}").as_bytes());
        }
        print.field(format!("{:?} {:?}", self.bos, self.eos).as_bytes());
        print.value()
    }

    /// Whether a control token of this text exists, or the chat template writes it.
    pub fn knows_markup(&self, text: &str) -> bool {
        self.template.sources().contains(text)
            || self.added_tokens().iter().any(|(_, token)| token.content == text)
    }

    pub(crate) fn template(&self) -> &ChatTemplate {
        &self.template
    }

    pub(crate) fn guard(&self) -> &ControlGuard {
        &self.guard
    }

    pub(crate) fn pieces(&self) -> &PieceTable {
        &self.pieces
    }

    #[cfg(test)]
    pub(crate) fn raw(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// Runs a call into the tokenizer library; its error or panic becomes a [`TextError`], so that one odd text
/// cannot take a worker thread down.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| TextError::Encode(e.to_string())),
        Err(_) => Err(TextError::Encode("the tokenizer library failed on it".into())),
    }
}

fn parse_tokenizer(bytes: &[u8]) -> Result<Tokenizer, String> {
    match catch_unwind(|| Tokenizer::from_bytes(bytes)) {
        Ok(result) => result.map_err(|e| format!("not a usable tokenizer: {e}")),
        Err(_) => Err("not a usable tokenizer: the tokenizer library failed on it".into()),
    }
}

/// The library numbers added tokens itself and only logs when the file says otherwise; then every id after the
/// first such token would mean something else than to the model.
fn check_declared_ids(bytes: &[u8], tokenizer: &Tokenizer) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct Declared {
        #[serde(default)]
        added_tokens: Vec<DeclaredToken>,
    }
    #[derive(serde::Deserialize)]
    struct DeclaredToken {
        id: u32,
        content: String,
    }
    let declared: Declared = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    for DeclaredToken { id, content } in declared.added_tokens {
        let actual = tokenizer.token_to_id(&content);
        if actual != Some(id) {
            let actual = actual.map_or("none".to_owned(), |id| id.to_string());
            return Err(format!("added token {content:?} has id {id} here, but its place gives it {actual}"));
        }
    }
    Ok(())
}

/// `tokenizer_config.json` as an object; empty when the file does not exist.
fn read_config(path: &Path) -> Result<serde_json::Map<String, Value>, TextError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(serde_json::Map::new()),
        Err(e) => return Err(TextError::file(path, e)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(TextError::file(path, "must hold a JSON object")),
        Err(e) => Err(TextError::file(path, e)),
    }
}

/// A token of `tokenizer_config.json`: a string, or an object with `content`.
pub(crate) fn token_text(config: &serde_json::Map<String, Value>, name: &str) -> Option<String> {
    match config.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}
