//! Keeps control tokens out of what users write (bug log L31).
//!
//! A template mixes its own markup with the texts of messages, and afterwards `<|im_end|>` from a user looks like
//! `<|im_end|>` from the template. So before rendering, wherever a message's text spells a control token, or could
//! complete one together with markup next to it, one character is swapped for a private-use character that
//! occurs nowhere in the request or the template. Templates trim, split and join such texts as they do others.
//! After rendering, added tokens are looked for in the swapped text, and what lies between them is restored and
//! encoded without looking for added tokens. Texts that spell no control token are not touched at all.
//!
//! Control tokens are the special tokens, and other added tokens that look like markup (`<think>`). In messages
//! of the assistant only special tokens are guarded: templates look for `</think>` there.

use crate::text::ChatOptions;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::sync::OnceLock;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, AddedVocabulary, Encoding, PreTokenizerWrapper, Token, Tokenizer};

/// A rendered chat, ready to be tokenized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    swaps: Vec<(char, char)>,
    add_special: bool,
}

impl RenderedPrompt {
    /// The rendered text as the template wrote it.
    pub fn plain(&self) -> String {
        self.restore(&self.text)
    }

    /// Length of the rendered text in bytes, about.
    pub fn byte_len(&self) -> usize {
        self.text.len()
    }

    /// The end of the rendered text: what a template writes behind the last message. Texts of messages that spell a
    /// control token are not restored in it.
    pub(crate) fn tail(&self) -> &str {
        let from = self.text.len().saturating_sub(256);
        let start = (from..=self.text.len()).find(|&at| self.text.is_char_boundary(at)).unwrap_or(0);
        &self.text[start..]
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.swaps.is_empty()
    }

    pub(crate) fn marked(&self) -> &str {
        &self.text
    }

    pub(crate) fn add_special(&self) -> bool {
        self.add_special
    }

    fn restore(&self, text: &str) -> String {
        let back = |c| self.swaps.iter().find(|swap| swap.1 == c).map_or(c, |swap| swap.0);
        text.chars().map(back).collect()
    }
}

/// The characters swapped in one request: the real one, then its stand-in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    swaps: Vec<(char, char)>,
    used: bool,
}

impl Marks {
    pub(crate) fn into_prompt(self, text: String, add_special: bool) -> RenderedPrompt {
        let swaps = if self.used { self.swaps } else { Vec::new() };
        RenderedPrompt { text, swaps, add_special }
    }

    /// The stand-in for a character of some control token.
    fn stand_in(&mut self, c: char) -> char {
        self.used = true;
        self.swaps.iter().find(|swap| swap.0 == c).map_or(c, |swap| swap.1)
    }
}

/// A chat whose texts are guarded.
pub(crate) struct GuardedChat {
    pub messages: Value,
    pub options: ChatOptions,
    pub marks: Marks,
    /// A character that occurs nowhere in the request or the template.
    pub spare: char,
}

/// Which texts to guard in a piece of a request.
#[derive(Clone, Copy)]
struct Scope {
    /// Only special tokens.
    special_only: bool,
    /// Also what could complete a token together with neighbouring markup.
    edges: bool,
}

/// One control token.
struct Control {
    text: String,
    special: bool,
}

/// Everything about one tokenizer that guarding needs.
pub(crate) struct ControlGuard {
    controls: Vec<Control>,
    first_byte: [bool; 256],
    /// Distinct characters of the control tokens.
    alphabet: Vec<char>,
    /// Private-use characters that must not be stand-ins.
    taken: HashSet<char>,
    /// Finds added tokens and nothing else.
    finder: Tokenizer,
    plain_is_safe: bool,
    /// The tokenizer without added tokens: for the start of a text, and for later parts where that differs.
    /// Made when first needed: most chats spell no control token.
    bare: OnceLock<(Tokenizer, Option<Tokenizer>)>,
}

impl ControlGuard {
    pub(crate) fn new(tokenizer: &Tokenizer, template_sources: &str, on: bool) -> Result<Self, String> {
        let added = tokenizer.get_added_tokens_decoder();
        let mut controls: Vec<Control> = added
            .values()
            .filter(|token| on && is_control(token))
            .map(|token| Control { text: token.content.clone(), special: token.special })
            .collect();
        controls.sort_by(|a, b| a.text.cmp(&b.text));
        let mut first_byte = [false; 256];
        let mut alphabet: Vec<char> = controls.iter().flat_map(|c| c.text.chars()).collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        for control in &controls {
            first_byte[usize::from(control.text.as_bytes()[0])] = true;
        }
        let mut taken = HashSet::new();
        collect_private(template_sources, &mut taken);
        added.values().for_each(|token| collect_private(&token.content, &mut taken));
        let mut finder = Tokenizer::new(BPE::default());
        finder.with_normalizer(tokenizer.get_normalizer().cloned()).map_err(|e| e.to_string())?;
        finder.with_added_vocabulary(tokenizer.get_added_vocabulary().clone());
        let plain_is_safe = !on || !added.values().any(|token| is_control(token) && token.normalized);
        let bare = OnceLock::new();
        Ok(Self { controls, first_byte, alphabet, taken, finder, plain_is_safe, bare })
    }

    /// Whether a text without stand-ins can go straight to the tokenizer. Not so when control tokens are matched
    /// after normalization, which can turn other texts into theirs.
    pub(crate) fn plain_is_safe(&self) -> bool {
        self.plain_is_safe
    }

    /// Guards every text of a chat; `None` when the request uses up all private-use characters.
    pub(crate) fn mark_chat(&self, messages: &Value, options: &ChatOptions) -> Option<GuardedChat> {
        let mut messages = messages.clone();
        let mut options = options.clone();
        let (swaps, spare) = self.choose_stand_ins(&messages, &options)?;
        let mut marks = Marks { swaps, used: false };
        for message in messages.as_array_mut().into_iter().flatten() {
            if let Value::Object(message) = message {
                self.mark_message(message, &mut marks);
            }
        }
        let inner = Scope { special_only: false, edges: false };
        for value in options.tools.iter_mut().chain(&mut options.documents) {
            self.mark_value(value, inner, &mut marks);
        }
        for value in options.kwargs.values_mut() {
            self.mark_value(value, inner, &mut marks);
        }
        Some(GuardedChat { messages, options, marks, spare })
    }

    fn choose_stand_ins(&self, messages: &Value, options: &ChatOptions) -> Option<(Vec<(char, char)>, char)> {
        let mut taken = self.taken.clone();
        visit_texts(messages, &mut |text| collect_private(text, &mut taken));
        let given = options.tools.iter().chain(&options.documents).chain(options.kwargs.values());
        given.for_each(|value| {
            visit_texts(value, &mut |text| collect_private(text, &mut taken));
        });
        options.kwargs.keys().for_each(|key| collect_private(key, &mut taken));
        options.template.iter().for_each(|source| collect_private(source, &mut taken));
        let mut free = private_use().filter(|c| !taken.contains(c));
        let spare = free.next()?;
        let swaps = self.alphabet.iter().map(|&c| Some((c, free.next()?))).collect::<Option<_>>()?;
        Some((swaps, spare))
    }

    fn mark_message(&self, message: &mut Map<String, Value>, marks: &mut Marks) {
        let special_only = message.get("role").and_then(Value::as_str) == Some("assistant");
        for (key, value) in message {
            if key != "role" {
                let edges = value.is_string();
                self.mark_value(value, Scope { special_only, edges }, marks);
            }
        }
    }

    fn mark_value(&self, value: &mut Value, scope: Scope, marks: &mut Marks) {
        match value {
            Value::String(text) => {
                if let Some(marked) = self.mark_text(text, scope, marks) {
                    *text = marked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark_value(item, scope, marks)),
            Value::Object(map) => {
                for (key, mut item) in std::mem::take(map) {
                    self.mark_value(&mut item, scope, marks);
                    let key = self.mark_text(&key, scope, marks).unwrap_or(key);
                    map.insert(key, item);
                }
            }
            _ => {}
        }
    }

    /// The text with its dangerous characters swapped, or `None` when there are none.
    fn mark_text(&self, text: &str, scope: Scope, marks: &mut Marks) -> Option<String> {
        let controls = || self.controls.iter().filter(|c| c.special || !scope.special_only);
        let trimmed_start = text.len() - text.trim_start().len();
        let trimmed_end = text.trim_end().len();
        let core = text.get(trimmed_start..trimmed_end).filter(|core| !core.is_empty())?;
        // Completed at the front: the text starts with the end of a token, or lies inside of one.
        let joins_front = scope.edges
            && controls().any(|c| {
                c.text.char_indices().skip(1).any(|(at, _)| core.starts_with(&c.text[at..]))
                    || c.text.contains(core)
            });
        let mut out: Option<String> = None;
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            let spells = self.first_byte[usize::from(rest.as_bytes()[0])]
                && controls().any(|c| {
                    let completed =
                        scope.edges && at < trimmed_end && c.text.starts_with(&text[at..trimmed_end]);
                    rest.starts_with(&c.text) || completed
                });
            if spells || (joins_front && at == trimmed_start) {
                let out = out.get_or_insert_with(|| text[..at].to_owned());
                out.push(marks.stand_in(c));
            } else if let Some(out) = &mut out {
                out.push(c);
            }
        }
        out
    }

    /// Encodes a rendered prompt; `None` when the vocabulary spells a control token's text only as that token.
    pub(crate) fn encode(
        &self,
        tokenizer: &Tokenizer,
        prompt: &RenderedPrompt,
    ) -> tokenizers::Result<Option<Vec<u32>>> {
        let text = prompt.marked();
        let (start, later) = self.bare.get_or_init(|| bare(tokenizer));
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let found = self.finder.encode(text, false)?;
        let mut ids = Vec::new();
        let mut at = 0;
        let between = |at: usize, end: usize, ids: &mut Vec<u32>| -> tokenizers::Result<bool> {
            if at == end {
                return Ok(true);
            }
            let bare = later.as_ref().filter(|_| at > 0).unwrap_or(start);
            let encoding = bare.encode_fast(prompt.restore(&text[at..end]), false)?;
            ids.extend_from_slice(encoding.get_ids());
            Ok(!encoding.get_ids().iter().any(|id| added.get(id).is_some_and(is_control)))
        };
        for (&id, &(from, to)) in found.get_ids().iter().zip(found.get_offsets()) {
            if added.get(&id).is_some_and(|token| is_genuine(token, &text[from..to])) {
                if !between(at, from, &mut ids)? {
                    return Ok(None);
                }
                ids.push(id);
                at = to;
            }
        }
        if !between(at, text.len(), &mut ids)? {
            return Ok(None);
        }
        if !prompt.add_special() {
            return Ok(Some(ids));
        }
        let tokens = ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect();
        let encoding = tokenizer.post_process(Encoding::from_tokens(tokens, 0), None, true)?;
        Ok(Some(encoding.get_ids().to_vec()))
    }
}

/// Special tokens, and other added tokens that look like markup. Runs of white space never are.
fn is_control(token: &AddedToken) -> bool {
    let text = token.content.trim();
    let markup =
        (text.starts_with('<') && text.ends_with('>')) || (text.starts_with('[') && text.ends_with(']'));
    !text.is_empty() && (token.special || markup)
}

/// Whether the text itself spells the token, not only its normalized form.
fn is_genuine(token: &AddedToken, spelled: &str) -> bool {
    !token.normalized || !is_control(token) || spelled.trim() == token.content.trim()
}

/// The tokenizer without added tokens, for the first part of a text and for later parts where that differs.
fn bare(tokenizer: &Tokenizer) -> (Tokenizer, Option<Tokenizer>) {
    let mut start = tokenizer.clone();
    start.with_added_vocabulary(AddedVocabulary::new());
    let later = tokenizer.get_pre_tokenizer().and_then(without_first_prefix).map(|pre_tokenizer| {
        let mut later = start.clone();
        later.with_pre_tokenizer(Some(pre_tokenizer));
        later
    });
    (start, later)
}

/// A pre-tokenizer that treats its text as the continuation of another; `None` when there is no difference.
fn without_first_prefix(pre_tokenizer: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    fn edit(value: &mut Value) -> bool {
        match value {
            Value::Object(map) => {
                let scheme = map.get_mut("prepend_scheme").filter(|scheme| **scheme == "first");
                let mut changed = scheme.is_some();
                if let Some(scheme) = scheme {
                    *scheme = "never".into();
                }
                map.values_mut().for_each(|item| changed |= edit(item));
                changed
            }
            Value::Array(items) => items.iter_mut().fold(false, |changed, item| edit(item) | changed),
            _ => false,
        }
    }
    let mut json = serde_json::to_value(pre_tokenizer).ok()?;
    edit(&mut json).then(|| serde_json::from_value(json).ok()).flatten()
}

/// The characters stand-ins are taken from: plane 15, plane 16, then the basic plane's private area.
fn private_use() -> impl Iterator<Item = char> {
    (0xf_0000..=0xf_fffd).chain(0x10_0000..=0x10_fffd).chain(0xe000..=0xf8ff).filter_map(char::from_u32)
}

fn collect_private(text: &str, into: &mut HashSet<char>) {
    // Private-use characters start with these bytes; most texts have none of them.
    if text.bytes().any(|b| matches!(b, 0xee | 0xef | 0xf3 | 0xf4)) {
        into.extend(text.chars().filter(|&c| matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..)));
    }
}

fn visit_texts(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| visit_texts(item, visit)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            visit(key);
            visit_texts(item, visit);
        }),
        _ => {}
    }
}
