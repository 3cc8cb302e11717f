//! Models that write one answer together must mean the same by every id.

use crate::text::TextModel;
use std::fmt;

/// The first thing in which two tokenizers differ. `Display` names both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairMismatch {
    /// Names of the two models.
    pub names: [String; 2],
    /// The id, where the difference is about one.
    pub id: Option<u32>,
    /// What each side has there.
    pub found: [String; 2],
    /// What was compared.
    what: &'static str,
}

impl fmt::Display for PairMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [left, right] = &self.names;
        write!(f, "the tokenizers of `{left}` and `{right}` differ in {}", self.what)?;
        if let Some(id) = self.id {
            write!(f, " of id {id}")?;
        }
        write!(f, ": {} against {}", self.found[0], self.found[1])
    }
}

impl std::error::Error for PairMismatch {}

/// Compares two tokenizers id by id: token, bytes, flags of added tokens, then declared end-of-sequence ids and
/// what a plain text gets in front.
///
/// Vocabularies padded to different sizes in the models' `config.json` are no concern of this check: padding rows
/// have no token.
///
/// # Errors
/// The first difference.
pub fn check_pair(left: (&str, &TextModel), right: (&str, &TextModel)) -> Result<(), PairMismatch> {
    let differ = |what, id, a: String, b: String| {
        let names = [left.0.to_owned(), right.0.to_owned()];
        if a == b { Ok(()) } else { Err(PairMismatch { names, id, found: [a, b], what }) }
    };
    let (a, b) = (left.1, right.1);
    for id in 0..a.real_vocab().max(b.real_vocab()) as u32 {
        differ("the token", Some(id), shown(a.token_text(id)), shown(b.token_text(id)))?;
        if a.token_bytes(id) != b.token_bytes(id) {
            differ("the text", Some(id), bytes(a, id), bytes(b, id))?;
        }
        differ("the special flag", Some(id), a.is_special(id).to_string(), b.is_special(id).to_string())?;
    }
    for pair in pair_up(&a.added_tokens(), &b.added_tokens()) {
        let (id, sides) = pair;
        let [x, y] = sides.map(|flags| flags.unwrap_or_else(|| "not an added token".into()));
        differ("the flags", Some(id), x, y)?;
    }
    differ("the end-of-sequence ids", None, format!("{:?}", a.eos_ids()), format!("{:?}", b.eos_ids()))?;
    differ("the beginning-of-sequence id", None, format!("{:?}", a.bos_id()), format!("{:?}", b.bos_id()))?;
    let (x, y) = (a.empty_prompt_tokens().to_string(), b.empty_prompt_tokens().to_string());
    differ("the number of tokens added to a text", None, x, y)
}

type Added = (u32, tokenizers::AddedToken);

/// The flags of every id that is an added token on either side, ascending.
fn pair_up(left: &[Added], right: &[Added]) -> Vec<(u32, [Option<String>; 2])> {
    let flags = |side: &[Added], id| side.iter().find(|token| token.0 == id).map(|token| flags(&token.1));
    let mut ids: Vec<u32> = left.iter().chain(right).map(|token| token.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| (id, [flags(left, id), flags(right, id)])).collect()
}

fn flags(token: &tokenizers::AddedToken) -> String {
    let all = [
        ("special", token.special),
        ("normalized", token.normalized),
        ("single_word", token.single_word),
        ("lstrip", token.lstrip),
        ("rstrip", token.rstrip),
    ];
    let set: Vec<&str> = all.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
    if set.is_empty() { "none".into() } else { set.join(", ") }
}

fn shown(token: Option<String>) -> String {
    token.map_or_else(|| "no token".into(), |text| format!("{text:?}"))
}

fn bytes(model: &TextModel, id: u32) -> String {
    format!("{:02x?}", model.token_bytes(id))
}
