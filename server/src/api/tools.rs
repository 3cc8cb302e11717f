//! Finds the tool calls in an answer while it is written.
//!
//! `hermes` (Qwen, Hermes): `<tool_call>{"name": "f", "arguments": {..}}</tool_call>`, any number, text between them
//! allowed. `llama3_json`: an answer that begins with `{"name": "f", "parameters": {..}}`, several parted by `;`.
//! Both keys are understood in both. White space around calls is no content.
//!
//! A call is certain when its name is known and its arguments begin as an object; from there the argument text goes
//! out as the model writes it, to the byte, however it ends. A text that only looks like a call stays content, tags
//! included. Calls with the keys in another order are read when they are complete.

mod json;

use crate::text::{hold, hold_len};
use json::{Head, Scan};

/// The tag before a call.
pub(crate) const OPEN: &str = "<tool_call>";
/// The tag after it.
pub(crate) const CLOSE: &str = "</tool_call>";
/// Llama's mark before a call; special, so seldom in the text.
const PYTHON: &str = "<|python_tag|>";

/// How a model writes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// JSON between `<tool_call>` tags.
    Hermes,
    /// The answer is JSON.
    Llama3Json,
}

/// What one event adds to a call: its name comes with the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Which call of the choice.
    pub index: usize,
    /// The function, with the first delta of a call.
    pub name: Option<String>,
    /// More of the argument text.
    pub arguments: String,
}

impl CallDelta {
    /// Appends later deltas to a list in which each call has one entry.
    pub(crate) fn merge(calls: &mut Vec<Self>, later: Vec<Self>) {
        for delta in later {
            match calls.iter_mut().find(|call| call.index == delta.index) {
                Some(call) => call.arguments.push_str(&delta.arguments),
                None => calls.push(delta),
            }
        }
    }
}

/// Where in an answer the splitter is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the text; at its start a Llama call may begin.
    Text,
    /// After a call.
    Gap,
    /// In a call whose name and arguments have not both begun.
    Head,
    /// In a call that has to be complete to be understood; so much is scanned.
    Whole(Scan, usize),
    /// In the arguments.
    Arguments(Scan),
    /// After the arguments.
    Tail(Scan),
    /// No call can come any more.
    Plain,
}

/// Splits one answer.
#[derive(Clone, Debug)]
pub(crate) struct ToolSplit {
    format: ToolFormat,
    place: Place,
    /// Text that is not told of yet.
    held: String,
    /// What stood before the body of a call; content again if it turns out to be none.
    lead: String,
    calls: usize,
}

/// What is given out.
struct Out<'a> {
    content: &'a mut String,
    calls: &'a mut Vec<CallDelta>,
}

impl ToolSplit {
    /// A splitter for one answer.
    pub(crate) fn new(format: ToolFormat) -> Self {
        Self { format, place: Place::Text, held: String::new(), lead: String::new(), calls: 0 }
    }

    /// How many calls there are so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Adds text and appends what is certain.
    pub(crate) fn push(&mut self, text: &str, content: &mut String, calls: &mut Vec<CallDelta>) {
        self.held.push_str(text);
        let mut out = Out { content, calls };
        while !self.held.is_empty() && self.advance(&mut out) {}
    }

    /// Ends the answer: what was held back is what it looks like.
    pub(crate) fn finish(&mut self, content: &mut String, calls: &mut Vec<CallDelta>) {
        let mut out = Out { content, calls };
        if matches!(self.place, Place::Head | Place::Whole(..)) {
            self.complete(self.held.len(), 0, &mut out);
        }
        if matches!(self.place, Place::Text | Place::Gap | Place::Plain) {
            out.content.push_str(&self.held);
        }
        self.held.clear();
    }

    /// One move; false when more text is needed.
    fn advance(&mut self, out: &mut Out<'_>) -> bool {
        match (self.place, self.format) {
            (Place::Plain, _) => {
                out.content.push_str(&self.held);
                self.held.clear();
                false
            }
            (Place::Text | Place::Gap, ToolFormat::Hermes) => self.look_for_tag(out),
            (Place::Text | Place::Gap, ToolFormat::Llama3Json) => self.look_for_object(out),
            (Place::Head, _) => self.head(out),
            (Place::Whole(scan, at), _) => self.whole(scan, at, out),
            (Place::Arguments(scan), _) => self.arguments(scan, out),
            (Place::Tail(scan), _) => self.tail(scan),
        }
    }

    fn look_for_tag(&mut self, out: &mut Out<'_>) -> bool {
        let after_call = matches!(self.place, Place::Gap);
        let start = if after_call { self.held.len() - self.held.trim_start().len() } else { 0 };
        if let Some(at) = self.held.find(OPEN) {
            let end = self.held[..at].trim_end().len();
            if start < end {
                out.content.push_str(&self.held[start..end]);
            }
            self.lead = self.held[end.max(start).min(at)..at + OPEN.len()].to_owned();
            self.held.drain(..at + OPEN.len());
            self.place = Place::Head;
            return true;
        }
        self.held.drain(..start);
        let keep = hold_len(&self.held, OPEN);
        let certain = self.held[..self.held.len() - keep].trim_end().len();
        if certain > 0 {
            self.place = Place::Text;
        }
        hold(&mut self.held, certain, out.content);
        false
    }

    fn look_for_object(&mut self, out: &mut Out<'_>) -> bool {
        let after_call = matches!(self.place, Place::Gap);
        let between = |c: char| c.is_whitespace() || (after_call && c == ';');
        let text = self.held.trim_start_matches(between);
        let text = text.strip_prefix(PYTHON).unwrap_or(text).trim_start();
        if text.is_empty() || PYTHON.starts_with(text) {
            return false;
        }
        let before = self.held.len() - text.len();
        if text.starts_with('{') {
            self.lead = self.held.drain(..before).collect();
            self.place = Place::Head;
        } else {
            let before = if after_call { before } else { 0 };
            out.content.push_str(&self.held[before..]);
            self.held.clear();
            self.place = Place::Plain;
        }
        true
    }

    fn head(&mut self, out: &mut Out<'_>) -> bool {
        match json::head(&self.held) {
            Head::More => return false,
            Head::Call { name, arguments } => {
                self.begin(name, String::new(), out);
                self.held.drain(..arguments);
                self.place = Place::Arguments(Scan::default());
            }
            Head::Whole => self.place = Place::Whole(Scan::default(), 0),
            Head::Never => self.give_up(out),
        }
        true
    }

    fn whole(&mut self, mut scan: Scan, at: usize, out: &mut Out<'_>) -> bool {
        if self.format == ToolFormat::Hermes {
            let Some(end) = self.held.find(CLOSE) else { return false };
            self.complete(end, CLOSE.len(), out);
            return true;
        }
        for (index, byte) in self.held.bytes().enumerate().skip(at) {
            if scan.step(byte) {
                self.complete(index + 1, 0, out);
                return true;
            }
        }
        self.place = Place::Whole(scan, self.held.len());
        false
    }

    fn arguments(&mut self, mut scan: Scan, out: &mut Out<'_>) -> bool {
        let bytes = self.held.as_bytes();
        let mut end = bytes.len();
        let mut next = None;
        for (at, &byte) in bytes.iter().enumerate() {
            if byte == b'<' && !scan.in_string() && self.format == ToolFormat::Hermes {
                let rest = &self.held[at..];
                if rest.starts_with(CLOSE) {
                    (end, next) = (at, Some(Place::Tail(scan)));
                    break;
                } else if CLOSE.starts_with(rest) {
                    end = at;
                    break;
                }
            }
            if scan.step(byte) {
                (end, next) = (at + 1, Some(Place::Tail(Scan::inside())));
                break;
            }
        }
        if end > 0 {
            let delta =
                CallDelta { index: self.calls - 1, name: None, arguments: self.held[..end].to_owned() };
            CallDelta::merge(out.calls, vec![delta]);
        }
        self.held.drain(..end);
        self.place = next.unwrap_or(Place::Arguments(scan));
        next.is_some()
    }

    /// What follows the arguments is markup; further keys are of no interest.
    fn tail(&mut self, mut scan: Scan) -> bool {
        let end = match self.format {
            ToolFormat::Hermes => self.held.find(CLOSE).map(|at| at + CLOSE.len()),
            ToolFormat::Llama3Json => self.held.bytes().position(|byte| scan.step(byte)).map(|at| at + 1),
        };
        let keep = if self.format == ToolFormat::Hermes { hold_len(&self.held, CLOSE) } else { 0 };
        self.held.drain(..end.unwrap_or(self.held.len() - keep));
        self.place = if end.is_some() { Place::Gap } else { Place::Tail(scan) };
        if end.is_some() {
            self.lead.clear();
        }
        end.is_some()
    }

    /// The body of a call is complete: its first `end` bytes, `more` bytes of markup follow.
    fn complete(&mut self, end: usize, more: usize, out: &mut Out<'_>) {
        // A Llama call has no tag: without arguments it is just some JSON.
        let bare = self.format == ToolFormat::Hermes;
        match json::whole(&self.held[..end], bare) {
            Some((name, arguments)) => {
                self.begin(name, arguments, out);
                self.held.drain(..end + more);
                self.place = Place::Gap;
                self.lead.clear();
            }
            None => self.give_up(out),
        }
    }

    /// This is no call: what stood before it is content, and what is held is text like any other.
    fn give_up(&mut self, out: &mut Out<'_>) {
        out.content.push_str(&std::mem::take(&mut self.lead));
        self.place = if self.format == ToolFormat::Hermes { Place::Text } else { Place::Plain };
    }

    fn begin(&mut self, name: String, arguments: String, out: &mut Out<'_>) {
        out.calls.push(CallDelta { index: self.calls, name: Some(name), arguments });
        self.calls += 1;
    }
}

#[cfg(test)]
mod tests;
