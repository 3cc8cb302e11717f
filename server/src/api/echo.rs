//! A prompt that is given back in front of the answer (`echo`).

use crate::api::request::PromptInput;
use crate::text::{Detokenizer, TextModel};
use std::sync::Arc;

/// One prompt as text and as tokens.
#[derive(Debug)]
pub(crate) struct Echo {
    /// What the client sent, or what is left of it; of token ids, what they decode to.
    pub text: String,
    /// Its tokens, those included that the tokenizer has added.
    pub ids: Vec<u32>,
    /// Where each of them begins in `text`, in characters.
    pub offsets: Vec<usize>,
    /// Characters of `text`.
    pub chars: usize,
    /// The state in which the answer's first token is decoded: behind the prompt.
    detok: Detokenizer,
}

impl Echo {
    pub(crate) fn new(
        model: &Arc<TextModel>,
        prompt: &PromptInput,
        ids: Vec<u32>,
        skip_special: bool,
    ) -> Self {
        let mut detok = Detokenizer::new(Arc::clone(model), skip_special);
        let (decoded, mut offsets) = decode(&mut detok, &ids);
        let text = match prompt {
            PromptInput::Text { text, .. } => {
                // The text stands at the end of what all its tokens say, behind a token that begins every prompt.
                let (whole, places) = decode(&mut Detokenizer::new(Arc::clone(model), false), &ids);
                let added = whole.strip_suffix(text.as_str()).map_or(0, |added| added.chars().count());
                offsets = places.into_iter().map(|at| at.saturating_sub(added)).collect();
                // Of a prompt that was cut in front, what is left.
                if text.ends_with(&whole) { whole } else { text.clone() }
            }
            PromptInput::Chat(_) | PromptInput::Ids(_) => decoded,
        };
        let chars = text.chars().count();
        // A tokenizer that normalises says other characters than the client has sent.
        offsets.iter_mut().for_each(|at| *at = (*at).min(chars));
        Self { text, ids, offsets, chars, detok }
    }

    /// Decodes what comes behind the prompt.
    pub(crate) fn detokenizer(&self) -> Detokenizer {
        self.detok.clone()
    }
}

/// The text of `ids`, and how many characters stand in front of each.
fn decode(detok: &mut Detokenizer, ids: &[u32]) -> (String, Vec<usize>) {
    let (mut text, mut chars, mut offsets) = (String::new(), 0, Vec::with_capacity(ids.len()));
    for id in ids {
        offsets.push(chars);
        let before = text.len();
        detok.push(*id, &mut text);
        chars += text[before..].chars().count();
    }
    (text, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixtures;

    fn echo(model: &Arc<TextModel>, prompt: PromptInput, ids: &[u32]) -> Echo {
        Echo::new(model, &prompt, ids.to_vec(), true)
    }

    #[test]
    fn a_text_comes_back_as_it_was_sent_and_ids_as_they_decode() {
        let model = fixtures::byte_level();
        let text = "hi é abc";
        let ids = model.encode(text, false).unwrap();
        let sent = echo(&model, PromptInput::Text { text: text.into(), add_special: true }, &ids);
        assert_eq!((sent.text.as_str(), sent.chars, sent.offsets.len()), (text, 8, ids.len()));
        let by_ids = echo(&model, PromptInput::Ids(ids.clone()), &ids);
        assert_eq!((by_ids.text, by_ids.offsets), (sent.text, sent.offsets.clone()));
        for (at, id) in sent.offsets.iter().zip(&ids) {
            let token = model.decode(&[*id], false);
            let rest: String = text.chars().skip(*at).collect();
            assert!(rest.starts_with(&token) || token.contains('\u{fffd}'), "{token:?} at {at}");
        }
    }

    #[test]
    fn of_a_prompt_that_was_cut_the_rest_comes_back() {
        let model = fixtures::byte_level();
        let ids = model.encode("hi abc", false).unwrap();
        let rest = model.decode(&ids[ids.len() - 1..], false);
        let prompt = PromptInput::Text { text: "hi abc".into(), add_special: true };
        let sent = echo(&model, prompt, &ids[ids.len() - 1..]);
        assert_eq!((sent.text, sent.offsets), (rest, vec![0]));
    }

    #[test]
    fn a_first_token_that_the_client_did_not_send_takes_no_room() {
        let model = fixtures::metaspace();
        let ids = model.encode("It", true).unwrap();
        let sent = echo(&model, PromptInput::Text { text: "It".into(), add_special: true }, &ids);
        assert_eq!(sent.text, "It");
        assert!(sent.offsets.iter().all(|at| *at <= 2) && sent.offsets[0] == 0, "{:?}", sent.offsets);
    }

    #[test]
    fn a_character_that_begins_in_the_prompt_ends_in_the_answer() {
        let model = fixtures::byte_level();
        let ids = model.encode("é", false).unwrap();
        assert_eq!(ids.len(), 2, "two bytes, two tokens");
        let half = echo(&model, PromptInput::Ids(ids[..1].to_vec()), &ids[..1]);
        let mut rest = String::new();
        half.detokenizer().push(ids[1], &mut rest);
        assert_eq!((half.text.as_str(), rest.as_str()), ("", "é"));
    }
}
