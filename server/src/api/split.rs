//! The text of a choice, taken apart while it is written: what the reader sees, what the model thought, what it calls.
//!
//! The way of a text: thoughts are split off; stop strings are looked for in the rest; tool calls are taken out of it.

use crate::api::reasoning::{Thinking, ThoughtSplit};
use crate::api::request::ApiRequest;
use crate::api::settings::ReasoningField;
use crate::api::tools::{CallDelta, ToolFormat, ToolSplit};
use crate::api::{reasoning, tools};
use crate::text::StopMatcher;

/// How the text of a request's choices is taken apart. The default: everything is content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputPlan {
    /// Where thoughts are to be told from content, and how the answer begins.
    pub thinking: Thinking,
    /// How tool calls are written, where they are to be found.
    pub tools: Option<ToolFormat>,
    /// Where thoughts go.
    pub reasoning_field: ReasoningField,
    /// Thoughts are counted, but not sent.
    pub hide_reasoning: bool,
}

impl OutputPlan {
    /// The tags that are looked for.
    pub(crate) fn tags(&self) -> &'static [&'static str] {
        const ALL: [&str; 4] = [reasoning::OPEN, reasoning::CLOSE, tools::OPEN, tools::CLOSE];
        match (self.thinking != Thinking::Off, self.tools == Some(ToolFormat::Hermes)) {
            (true, true) => &ALL,
            (true, false) => &ALL[..2],
            (false, true) => &ALL[2..],
            (false, false) => &[],
        }
    }
}

/// What one event adds to a choice. Deltas put together are the whole choice, so that a stream and a plain answer
/// cannot differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// What the model thought.
    pub reasoning: String,
    /// Text of the answer.
    pub content: String,
    /// Tool calls, at most one entry each.
    pub calls: Vec<CallDelta>,
}

impl Delta {
    /// Nothing to tell a client of.
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Appends a later delta.
    pub(crate) fn add(&mut self, later: Self) {
        self.reasoning.push_str(&later.reasoning);
        self.content.push_str(&later.content);
        CallDelta::merge(&mut self.calls, later.calls);
    }
}

/// Takes decoded text and gives out typed pieces, as soon as their kind is certain.
pub(crate) struct Splitter {
    thoughts: ThoughtSplit,
    stops: StopMatcher,
    tools: Option<ToolSplit>,
    hide_reasoning: bool,
}

impl Splitter {
    /// A splitter for one choice of a request.
    pub(crate) fn new(request: &ApiRequest) -> Self {
        Self {
            thoughts: ThoughtSplit::new(request.output.thinking),
            stops: StopMatcher::new(request.stop.clone(), request.include_stop),
            tools: request.output.tools.map(ToolSplit::new),
            hide_reasoning: request.output.hide_reasoning,
        }
    }

    /// Whether the text so far ends among the model's thoughts.
    pub(crate) fn thinking(&self) -> bool {
        self.thoughts.thinking()
    }

    /// Whether a tool is called.
    pub(crate) fn calls(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.calls() > 0)
    }

    /// Adds decoded text. `Some`: the stop string of this index is complete and the choice is over. Without
    /// `stoppable` no stop string is looked for in this text.
    pub(crate) fn push(&mut self, text: &str, stoppable: bool, out: &mut Delta) -> Option<usize> {
        let mut answer = String::new();
        self.thoughts.push(text, &mut out.reasoning, &mut answer);
        self.hide(out);
        self.answer(answer, stoppable, out)
    }

    /// Ends the decoded text: what was held back is what it looks like so far. As [`Self::push`].
    pub(crate) fn finish(&mut self, stoppable: bool, out: &mut Delta) -> Option<usize> {
        let mut answer = String::new();
        self.thoughts.finish(&mut out.reasoning, &mut answer);
        self.hide(out);
        let matched = self.answer(answer, stoppable, out);
        let mut rest = String::new();
        self.stops.finish(&mut rest);
        self.unstopped(&rest, out);
        if let Some(tools) = &mut self.tools {
            tools.finish(&mut out.content, &mut out.calls);
        }
        matched
    }

    /// The stop string with this index.
    pub(crate) fn stop(&self, index: usize) -> &str {
        self.stops.stop(index)
    }

    fn answer(&mut self, text: String, stoppable: bool, out: &mut Delta) -> Option<usize> {
        if !stoppable {
            self.unstopped(&text, out);
            return None;
        }
        let mut clear = String::new();
        let matched = self.stops.push(&text, &mut clear);
        self.unstopped(&clear, out);
        matched
    }

    fn unstopped(&mut self, text: &str, out: &mut Delta) {
        match &mut self.tools {
            Some(tools) => tools.push(text, &mut out.content, &mut out.calls),
            None => out.content.push_str(text),
        }
    }

    fn hide(&self, out: &mut Delta) {
        if self.hide_reasoning {
            out.reasoning.clear();
        }
    }
}
