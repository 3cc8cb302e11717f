//! Tells a model's thoughts from its answer: `<think>...</think>` as Qwen3 and its kin write it.
//!
//! Whether the model starts inside such a block is read off the rendered prompt's tail, never off `enable_thinking`:
//! templates open the block, leave it to the model, or write an empty one themselves when thinking is off. The line
//! feeds right inside and after the block belong to its markup, as templates treat them when they render old turns.

use crate::text::{hold, hold_len};

/// The tag that begins a block of thoughts.
pub(crate) const OPEN: &str = "<think>";
/// The tag that ends it.
pub(crate) const CLOSE: &str = "</think>";

/// How an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// Everything is content, tags included: no parser, or the prompt has closed the block.
    #[default]
    Off,
    /// The model may open a block itself, at the very beginning.
    Maybe,
    /// The prompt ends inside a block.
    Open,
}

impl Thinking {
    /// What the end of a rendered prompt says.
    pub(crate) fn after_prompt(prompt: &str) -> Self {
        let tail = prompt.trim_end();
        if tail.ends_with(OPEN) {
            Self::Open
        } else if tail.ends_with(CLOSE) {
            Self::Off
        } else {
            Self::Maybe
        }
    }

    /// What the beginning of an assistant's message says that the model is to continue.
    pub(crate) fn after_beginning(content: &str) -> Self {
        match (content.rfind(OPEN), content.rfind(CLOSE)) {
            (Some(open), close) if close.is_none_or(|close| close < open) => Self::Open,
            _ if content.trim().is_empty() => Self::Maybe,
            _ => Self::Off,
        }
    }
}

/// Where in an answer the splitter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space and perhaps the beginning of a tag so far.
    Start,
    /// Inside the block, before its first character.
    Lead,
    Inside,
    /// After the block, before the answer's first character.
    Gap,
    Outside,
}

/// Splits one answer. At most a run of white space and the beginning of a tag are held back.
#[derive(Clone, Debug)]
pub(crate) struct ThoughtSplit {
    place: Place,
    held: String,
}

impl ThoughtSplit {
    /// A splitter for an answer that begins like this.
    pub(crate) fn new(thinking: Thinking) -> Self {
        let place = match thinking {
            Thinking::Off => Place::Outside,
            Thinking::Maybe => Place::Start,
            Thinking::Open => Place::Lead,
        };
        Self { place, held: String::new() }
    }

    /// Whether the text so far ends inside a block.
    pub(crate) fn thinking(&self) -> bool {
        matches!(self.place, Place::Lead | Place::Inside)
    }

    /// Adds text and appends what is certain to the thoughts or to the answer.
    pub(crate) fn push(&mut self, text: &str, thoughts: &mut String, answer: &mut String) {
        if self.place == Place::Outside {
            answer.push_str(text);
            return;
        }
        self.held.push_str(text);
        while self.advance(thoughts, answer) {}
    }

    /// Ends the answer and appends what was held back.
    pub(crate) fn finish(&mut self, thoughts: &mut String, answer: &mut String) {
        let rest = std::mem::take(&mut self.held);
        if self.thinking() { thoughts.push_str(&rest) } else { answer.push_str(&rest) }
    }

    /// One move; false when more text is needed.
    fn advance(&mut self, thoughts: &mut String, answer: &mut String) -> bool {
        match self.place {
            Place::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.place = Place::Lead;
                } else if OPEN.starts_with(text) {
                    return false;
                } else {
                    self.place = Place::Outside;
                }
            }
            Place::Lead | Place::Gap => {
                let after = if self.place == Place::Lead { Place::Inside } else { Place::Outside };
                self.held = self.held.trim_start_matches('\n').to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.place = after;
            }
            Place::Inside => {
                if let Some(at) = self.held.find(CLOSE) {
                    thoughts.push_str(self.held[..at].trim_end_matches('\n'));
                    self.held.drain(..at + CLOSE.len());
                    self.place = Place::Gap;
                } else {
                    let keep = hold_len(&self.held, CLOSE);
                    let certain = self.held[..self.held.len() - keep].trim_end_matches('\n').len();
                    hold(&mut self.held, certain, thoughts);
                    return false;
                }
            }
            Place::Outside => {
                answer.push_str(&self.held);
                self.held.clear();
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thoughts and answer of a text that comes in pieces of so many bytes, and whether it ends inside the block.
    fn split(start: Thinking, text: &str, size: usize) -> (String, String, bool) {
        let (mut thoughts, mut answer) = (String::new(), String::new());
        let mut split = ThoughtSplit::new(start);
        let mut rest = text;
        while !rest.is_empty() {
            let mut at = size.min(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            split.push(&rest[..at], &mut thoughts, &mut answer);
            rest = &rest[at..];
        }
        let inside = split.thinking();
        split.finish(&mut thoughts, &mut answer);
        (thoughts, answer, inside)
    }

    #[test]
    fn blocks_are_found_however_the_text_is_cut() {
        use Thinking::{Maybe, Off, Open};
        let table = [
            (Maybe, "<think>\nwhy\n\nnot\n</think>\n\nfour", "why\n\nnot", "four", false),
            (Maybe, " \n<think>a</think>b", "a", "b", false),
            (Maybe, "<think>\n\n</think>\n\nfour\n", "", "four\n", false),
            (Maybe, "four <think>a</think>", "", "four <think>a</think>", false),
            (Maybe, "\n\n four", "", "\n\n four", false),
            (Maybe, "<thin", "", "<thin", false),
            (Maybe, "<thinner", "", "<thinner", false),
            (Maybe, "", "", "", false),
            (Maybe, "\n", "", "\n", false),
            (Maybe, "<think>", "", "", true),
            (Open, "a</think>b</think>c", "a", "b</think>c", false),
            (Open, "\na <think> b\n</think>\n", "a <think> b", "", false),
            (Open, "a </thin k> </b", "a </thin k> </b", "", true),
            (Open, "é\n\n\n", "é\n\n\n", "", true),
            (Open, "</think>", "", "", false),
            (Open, "", "", "", true),
            (Off, "<think>a</think>b", "", "<think>a</think>b", false),
        ];
        for (start, text, thoughts, answer, inside) in table {
            for size in 1..=text.len().max(1) {
                let expected = (thoughts.to_owned(), answer.to_owned(), inside);
                assert_eq!(split(start, text, size), expected, "{text:?} {size}");
            }
        }
    }

    #[test]
    fn the_tail_of_the_prompt_decides() {
        for (prompt, thinking) in [
            ("<|im_start|>assistant\n<think>\n", Thinking::Open),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking::Off),
            ("<|im_start|>assistant\n", Thinking::Maybe),
            ("", Thinking::Maybe),
        ] {
            assert_eq!(Thinking::after_prompt(prompt), thinking, "{prompt:?}");
        }
        for (content, thinking) in [
            ("<think>\nso", Thinking::Open),
            ("<think>so</think>four", Thinking::Off),
            ("<think>so</think><think>", Thinking::Open),
            ("four", Thinking::Off),
            (" ", Thinking::Maybe),
        ] {
            assert_eq!(Thinking::after_beginning(content), thinking, "{content:?}");
        }
    }
}
