//! Stop strings, searched in the whole answer while it is written.

/// One stop string with its failure function (Knuth, Morris, Pratt) and the length matched so far.
#[derive(Clone, Debug)]
struct Stop {
    text: String,
    fail: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fail = vec![0; bytes.len()];
        let mut length = 0;
        for i in 1..bytes.len() {
            while length > 0 && bytes[i] != bytes[length] {
                length = fail[length - 1];
            }
            length += usize::from(bytes[i] == bytes[length]);
            fail[i] = length;
        }
        Self { text, fail, matched: 0 }
    }

    /// Advances by one byte; true when the whole string has just been seen.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fail[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

/// Looks for stop strings across any split of the text.
///
/// The match that is complete first wins (the longest of several that end together), so the result does not
/// depend on how the text was cut into pieces. Only the longest suffix that begins some stop string is held back.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    include: bool,
    held: String,
    done: bool,
}

impl StopMatcher {
    /// A matcher for these strings (empty ones are ignored); with `include` the stop string itself is given out.
    pub fn new(stops: Vec<String>, include: bool) -> Self {
        let stops = stops.into_iter().map(Stop::new).collect();
        Self { stops, include, held: String::new(), done: false }
    }

    /// Adds text and appends to `out` what certainly belongs to the answer. Returns the index of the stop string
    /// that ended it; everything after that is ignored.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.done {
            return None;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        let old = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                let end = old + at + 1;
                let keep = if self.include { end } else { end - self.stops[index].text.len() };
                out.push_str(&self.held[..keep]);
                self.held.clear();
                self.done = true;
                return Some(index);
            }
        }
        // A partial match is a prefix of a string that starts with a whole character, and the text ends with
        // one, so the cut falls between characters.
        let hold = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let give = self.held.len() - hold;
        out.push_str(&self.held[..give]);
        self.held.drain(..give);
        None
    }

    /// Ends the answer and appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        self.done = true;
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The stop string with this index.
    pub fn stop(&self, index: usize) -> &str {
        &self.stops[index].text
    }

    /// Advances every stop string; the longest that is complete, the first among equals.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut best: Option<usize> = None;
        for index in 0..self.stops.len() {
            if self.stops[index].text.is_empty() || !self.stops[index].step(byte) {
                continue;
            }
            if best.is_none_or(|b| self.stops[b].text.len() < self.stops[index].text.len()) {
                best = Some(index);
            }
        }
        best
    }
}
