//! An answer written down token by token for both models of a scripted pair, and who writes what of it.

use std::path::PathBuf;

use super::scripted::{SURE, Script, UNSURE};
use super::tokenizers::{END, OTHER, START, TestTokenizer, byte_bpe, metaspace};

/// One position: what each model says there, and whether it doubts.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The token of the small model, then that of the large one.
    pub says: [u32; 2],
    /// Whether the model is unsure.
    pub doubts: [bool; 2],
}

/// A scripted pair that tells one story: the small model in lower case, the large one in upper case.
pub struct Story {
    /// Its tokenizer.
    pub tokenizer: TestTokenizer,
    /// Every position of the answer, the end-of-sequence token last.
    pub steps: Vec<Step>,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// One model alone.
    Alone(usize),
    /// `r-stitch`: a doubting small model's token is dropped; the large one writes as long as it doubts.
    Stitch,
}

impl Story {
    /// Bytes: words, emojis split in every way, glued spaces, CJK by single bytes, invalid bytes, a control token in
    /// the middle, and half a character at the end.
    pub fn bytes() -> Self {
        let same = |bytes: &'static [u8]| (bytes, bytes);
        let says: Vec<(&[u8], &[u8])> = vec![
            (b"abc", b"ABC"),
            (b"def", b"DEF"),
            (b"g", b"G"),
            (b"hi", b"HI"),
            (b"j", b"J"),
            same(b"\xf0\x9f"),
            same(b"\x98\x80"),
            same(b"\xf0"),
            same(b"\x9f\x98\x81"),
            same(b"\xf0\x9f\x98"),
            same(b"\x82"),
            same(b" \xe2"),
            same(b"\x82\xac"),
            same(b"\xe4"),
            same(b"\xb8"),
            same(b"\x96"),
            same(b"\xc3"),
            (b"x", b"X"),
            (b"a", b"A"),
            (b"aa", b"AA"),
            (b"b", b"B"),
            same(b"\n\n"),
            same(OTHER.as_bytes()),
            (b" end", b" END"),
            same(b"\xe2\x82"),
        ];
        let words: Vec<&[u8]> = says
            .iter()
            .flat_map(|(a, b)| [*a, *b])
            .filter(|w| w.len() > 1 && *w != OTHER.as_bytes())
            .collect();
        let mut unique: Vec<&[u8]> = Vec::new();
        words.into_iter().for_each(|word| {
            if !unique.contains(&word) {
                unique.push(word);
            }
        });
        Self::new(byte_bpe(&unique), &says)
    }

    /// A marker for spaces and byte tokens.
    pub fn metaspace() -> Self {
        let says: Vec<(&[u8], &[u8])> = vec![
            (b" i", b" I"),
            (b" am", b" AM"),
            (b"\xe2", b"\xe2"),
            (b"\x82", b"\x82"),
            (b"\xac", b"\xac"),
            (b".", b"!"),
            (b" it", b" IT"),
            (b"  ", b"  "),
            (b" is", b" IS"),
            (b"\xf0", b"\xf0"),
            (b"\x9f", b"\x9f"),
            (b"\x98", b"\x98"),
            (b"\x80", b"\x80"),
            (b"\xc3\xa9", b"\xc3\x89"),
            (b"\xff", b"\xff"),
            (b" ", b" "),
            (b"ab", b"AB"),
            (OTHER.as_bytes(), OTHER.as_bytes()),
            (b"c", b"C"),
            (b"\xc3", b"\xc3"),
        ];
        let words = [
            " i", " I", " am", " AM", ".", "!", " it", " IT", "  ", " is", " IS", "é", "É", " ", "ab", "AB",
            "c", "C",
        ];
        Self::new(metaspace(&words), &says)
    }

    fn new(tokenizer: TestTokenizer, says: &[(&[u8], &[u8])]) -> Self {
        let id = |bytes: &[u8]| {
            if bytes == OTHER.as_bytes() { tokenizer.control(OTHER) } else { tokenizer.id(bytes) }
        };
        let end = tokenizer.control(END);
        let ids = says.iter().map(|(a, b)| [id(a), id(b)]).chain([[end, end]]);
        // Every third token of the small model is doubtful, and of the large one's every second.
        let steps = ids.enumerate().map(|(at, says)| Step { says, doubts: [at % 3 == 1, at % 2 == 1] });
        let steps = steps.collect();
        Story { tokenizer, steps }
    }

    /// The small and the large model.
    pub fn scripts(&self) -> [Script; 2] {
        [0, 1].map(|model| {
            let mut script = Script::new(&self.tokenizer);
            let mut before = [self.tokenizer.control(START); 2];
            for step in &self.steps {
                let logit = if step.doubts[model] { UNSURE } else { SURE };
                before.iter().for_each(|token| script.say(*token, step.says[model], logit));
                before = step.says;
            }
            script
        })
    }

    /// Their checkpoints.
    pub fn write(&self) -> [PathBuf; 2] {
        self.scripts().map(|script| script.write("story", &self.tokenizer))
    }

    /// Token ids and writers of the whole answer, the end included.
    pub fn answer(&self, writer: Writer) -> (Vec<u32>, Vec<usize>) {
        let mut owner = if let Writer::Alone(model) = writer { model } else { 0 };
        let mut answer = (Vec::new(), Vec::new());
        for step in &self.steps {
            if writer == Writer::Stitch && owner == 0 && step.doubts[0] {
                owner = 1;
            }
            answer.0.push(step.says[owner]);
            answer.1.push(owner);
            if writer == Writer::Stitch && owner == 1 {
                owner = usize::from(step.doubts[1]);
            }
        }
        answer
    }

    /// The text of the answer's first tokens as far as it is certain what they are: without a character that is
    /// not complete.
    pub fn certain(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> =
            ids.iter().flat_map(|id| self.tokenizer.bytes[*id as usize].iter().copied()).collect();
        let open = |chunk: &[u8]| std::str::from_utf8(chunk).is_err_and(|e| e.error_len().is_none());
        let whole = match bytes.utf8_chunks().last() {
            Some(last) if open(last.invalid()) => bytes.len() - last.invalid().len(),
            _ => bytes.len(),
        };
        let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
        match text.strip_prefix(' ') {
            Some(rest) if self.tokenizer.strips_first_space => rest.into(),
            _ => text,
        }
    }
}
