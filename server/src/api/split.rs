//! The text of a choice, taken apart while it is written: what the reader sees, what the model thought, what it calls.

use crate::api::request::ApiRequest;
use crate::text::StopMatcher;

/// What one event adds to a choice. Deltas put together are the whole choice, so that a stream and a plain answer
/// cannot differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    /// Text of the answer.
    pub content: String,
}

impl Delta {
    /// Nothing to tell a client of.
    pub(crate) fn is_empty(&self) -> bool {
        self.content.is_empty()
    }

    /// Appends a later delta.
    pub(crate) fn add(&mut self, later: Self) {
        self.content.push_str(&later.content);
    }
}

/// Takes decoded text and gives out typed pieces, as soon as their kind is certain.
pub(crate) struct Splitter {
    stops: StopMatcher,
}

impl Splitter {
    /// A splitter for one choice of a request.
    pub(crate) fn new(request: &ApiRequest) -> Self {
        Self { stops: StopMatcher::new(request.stop.clone(), request.include_stop) }
    }

    /// Adds decoded text. `Some`: the stop string of this index is complete and the choice is over. Without
    /// `stoppable` no stop string is looked for in this text.
    pub(crate) fn push(&mut self, text: &str, stoppable: bool, out: &mut Delta) -> Option<usize> {
        if !stoppable {
            out.content.push_str(text);
            return None;
        }
        self.stops.push(text, &mut out.content)
    }

    /// Ends the choice: what was held back is what it looks like so far.
    pub(crate) fn finish(&mut self, out: &mut Delta) {
        self.stops.finish(&mut out.content);
    }

    /// The stop string with this index.
    pub(crate) fn stop(&self, index: usize) -> &str {
        self.stops.stop(index)
    }
}
