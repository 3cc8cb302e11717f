//! What each id contributes to a text, worked out once at load from the tokenizer's decoder.
//!
//! Supported decoders: `ByteLevel` (every token is a string over the byte alphabet), and the SentencePiece
//! family: `Replace`, `ByteFallback`, `Metaspace`, `Fuse`, a leading `Strip`, in a sequence or alone. With these
//! the text is a concatenation of per-id bytes, except at its very start, where a leading space may be dropped.

use serde_json::Value;
use tokenizers::{Decoder, DecoderWrapper, Tokenizer};

/// Byte strings per id, and how the start of a text differs.
pub(crate) struct PieceTable {
    inner: Pieces,
    /// The bytes of the first token of a text, where the decoder treats it differently.
    first: Option<Pieces>,
    /// How many of this ASCII byte are dropped at the start of a text.
    strip: Option<(u8, usize)>,
    known: Vec<bool>,
    special: Vec<bool>,
    longest: usize,
}

/// Byte strings in one buffer.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

/// The state of one text under way: at most three bytes of an unfinished character.
#[derive(Clone, Debug)]
pub(crate) struct TextDecoder {
    pending: Vec<u8>,
    started: bool,
    strip_left: usize,
    skip_special: bool,
}

impl TextDecoder {
    /// Moves every complete character to `out`; bytes that can no longer become one turn into U+FFFD.
    fn drain(&mut self, out: &mut String) {
        let mut at = 0;
        while at < self.pending.len() {
            match std::str::from_utf8(&self.pending[at..]) {
                Ok(text) => {
                    out.push_str(text);
                    at = self.pending.len();
                }
                Err(error) => {
                    let valid = at + error.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.pending[at..valid]));
                    let Some(bad) = error.error_len() else {
                        at = valid;
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    at = valid + bad;
                }
            }
        }
        self.pending.drain(..at);
    }

    /// Ends the text: an unfinished character becomes U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

impl PieceTable {
    /// Builds the table; the error says which decoder is not supported.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Self, String> {
        let vocab = tokenizer.get_vocab(true);
        let len = vocab.values().max().map_or(0, |&id| id as usize + 1);
        let plan = DecoderPlan::new(tokenizer.get_decoder())?;
        let added = tokenizer.get_added_vocabulary();
        let mut table = Self {
            inner: Pieces::default(),
            first: plan.first_differs().then(Pieces::default),
            strip: plan.strip,
            known: vec![false; len],
            special: vec![false; len],
            longest: 0,
        };
        for id in 0..len {
            let token = tokenizer.id_to_token(id as u32);
            table.known[id] = token.is_some();
            table.special[id] = token.as_deref().is_some_and(|t| added.is_special_token(t));
            let token = token.unwrap_or_default();
            let piece = plan.piece(&token, false)?;
            table.longest = table.longest.max(piece.len());
            table.inner.push(&piece);
            if let Some(first) = &mut table.first {
                first.push(&plan.piece(&token, true)?);
            }
        }
        Ok(table)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn piece(&self, id: u32) -> Option<&[u8]> {
        self.known.get(id as usize)?.then(|| self.inner.get(id as usize))
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(crate) fn decoder(&self, skip_special: bool) -> TextDecoder {
        let strip_left = self.strip.map_or(0, |(_, count)| count);
        TextDecoder { pending: Vec::new(), started: false, strip_left, skip_special }
    }

    /// Adds one id to a text; `shown` keeps it from being skipped. The cost depends on the length of its token alone.
    pub(crate) fn push(&self, state: &mut TextDecoder, id: u32, shown: bool, out: &mut String) {
        let Some(mut piece) = self.piece(id) else { return };
        if state.skip_special && !shown && self.is_special(id) {
            return;
        }
        if let (false, Some(first)) = (state.started, &self.first) {
            piece = first.get(id as usize);
        }
        state.started = true;
        if let Some((byte, _)) = self.strip {
            while state.strip_left > 0 && !piece.is_empty() {
                state.strip_left -= 1;
                match piece.strip_prefix(&[byte]) {
                    Some(rest) => piece = rest,
                    None => state.strip_left = 0,
                }
            }
        }
        state.pending.extend_from_slice(piece);
        state.drain(out);
    }
}

/// A decoder, taken apart.
#[derive(Default)]
struct DecoderPlan {
    byte_level: bool,
    byte_fallback: bool,
    /// No decoder at all: the library joins tokens with a space.
    join_with_space: bool,
    replaces: Vec<DecoderWrapper>,
    /// The replacement character of `Metaspace`, and whether the first token drops it.
    metaspace: Option<(char, bool)>,
    strip: Option<(u8, usize)>,
    fused: bool,
}

impl DecoderPlan {
    fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let mut plan = Self::default();
        match decoder {
            None => plan.join_with_space = true,
            Some(decoder) => plan.add(decoder)?,
        }
        let other = plan.byte_fallback || plan.metaspace.is_some() || !plan.replaces.is_empty();
        if plan.byte_level && (other || plan.strip.is_some()) {
            return Err("decoder `ByteLevel` mixed with others is not supported".into());
        }
        Ok(plan)
    }

    fn add(&mut self, decoder: &DecoderWrapper) -> Result<(), String> {
        match decoder {
            DecoderWrapper::Sequence(sequence) => {
                sequence.get_decoders().iter().try_for_each(|step| self.add(step))?;
            }
            DecoderWrapper::ByteLevel(_) => self.byte_level = true,
            DecoderWrapper::ByteFallback(_) if !self.fused => self.byte_fallback = true,
            DecoderWrapper::Replace(_) if !self.fused => self.replaces.push(decoder.clone()),
            DecoderWrapper::Metaspace(_) if !self.fused => self.metaspace = Some(metaspace(decoder)?),
            DecoderWrapper::Fuse(_) => self.fused = true,
            DecoderWrapper::Strip(strip) if self.fused && strip.stop == 0 && strip.content.is_ascii() => {
                self.strip = Some((strip.content as u8, strip.start));
            }
            other => return Err(format!("decoder `{}` is not supported here", name(other))),
        }
        Ok(())
    }

    fn first_differs(&self) -> bool {
        self.join_with_space || self.metaspace.is_some_and(|(_, drops)| drops)
    }

    /// The bytes of one token, at the start of a text or later in it.
    fn piece(&self, token: &str, first: bool) -> Result<Vec<u8>, String> {
        if self.byte_level {
            return Ok(byte_level(token));
        }
        if self.join_with_space {
            return Ok(if first { token.into() } else { format!(" {token}").into_bytes() });
        }
        let mut token = vec![token.to_owned()];
        for replace in &self.replaces {
            token = replace.decode_chain(token).map_err(|e| format!("decoder `Replace`: {e}"))?;
        }
        let token = token.concat();
        if let (true, Some(byte)) = (self.byte_fallback, byte_token(&token)) {
            return Ok(vec![byte]);
        }
        let Some((mark, drops)) = self.metaspace else { return Ok(token.into_bytes()) };
        let space = if first && drops { "" } else { " " };
        Ok(token.replace(mark, space).into_bytes())
    }
}

/// The byte a token like `<0xE2>` stands for.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The bytes of a token over the byte alphabet; a token with any other character stands for itself.
fn byte_level(token: &str) -> Vec<u8> {
    token.chars().map(alphabet_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The inverse of the GPT-2 byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 bytes
/// (0-32, 127-160, 173, in this order) for U+0100 onwards.
fn alphabet_byte(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The replacement character, and whether the first token loses it.
fn metaspace(decoder: &DecoderWrapper) -> Result<(char, bool), String> {
    let json = serde_json::to_value(decoder).map_err(|e| e.to_string())?;
    let mark = json.get("replacement").and_then(Value::as_str).and_then(|s| s.chars().next()).unwrap_or('▁');
    let never = json.get("prepend_scheme").and_then(Value::as_str) == Some("never");
    Ok((mark, !never))
}

fn name(decoder: &DecoderWrapper) -> &'static str {
    match decoder {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for c in (0..0x400).filter_map(char::from_u32) {
            if let Some(byte) = alphabet_byte(c) {
                assert!(!std::mem::replace(&mut seen[byte as usize], true), "byte {byte} twice");
            }
        }
        assert!(seen.iter().all(|&s| s));
        assert_eq!(alphabet_byte('Ġ'), Some(b' '));
        assert_eq!(alphabet_byte('Ċ'), Some(b'\n'));
    }

    #[test]
    fn byte_tokens_are_recognised() {
        assert_eq!(byte_token("<0xE2>"), Some(0xe2));
        assert_eq!(byte_token("<0x0a>"), Some(0x0a));
        for other in ["<0xE>", "<0xE22>", "<0xZZ>", "0xE2", "<0x", ""] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
