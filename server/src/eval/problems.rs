//! Prompt files, and whether an answer is right.

use std::path::Path;

use serde_json::Value;

/// How an answer is compared with the right one. What a model writes up to `</think>` is not part of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Check {
    /// The text holds the sentence "The answer is N." with the right N.
    Sentence,
    /// The last number of the text is the right one; 1,200 and 1200.0 are the same number.
    LastNumber,
    /// The text is the right answer, but for white space around it.
    Exact,
}

impl Check {
    /// Whether `text` answers with `right`.
    pub(crate) fn passes(self, text: &str, right: &str) -> bool {
        let said = text.rsplit("</think>").next().unwrap_or(text).trim();
        match self {
            Check::Sentence => said.contains(&format!("The answer is {right}.")),
            Check::LastNumber => last_number(said).is_some_and(|n| Some(n) == last_number(right)),
            Check::Exact => said == right.trim(),
        }
    }
}

/// The last number of a text in one spelling: without thousands' commas, leading zeros, and zeros behind the point.
fn last_number(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = text[..end]
        .rfind(|c| !is_part(c))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let digits = text[start..end].replace(',', "");
    let (whole, part) = digits.split_once('.').unwrap_or((&digits, ""));
    let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
    let before = &text[..start];
    // A sum such as 7-3 ends in 3, not in -3.
    let negative = before.strip_suffix('-').is_some_and(|b| !b.ends_with(|c: char| c.is_ascii_digit()));
    let sign = if negative && !(whole.is_empty() && part.is_empty()) { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    Some(if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") })
}

/// One line of a prompt file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    /// The user's message.
    pub(crate) prompt: String,
    /// The right answer, where the line has one.
    pub(crate) answer: Option<String>,
    /// How much the whole query asks for the large model, from 0 to 1, where the line says so.
    pub(crate) score: Option<f32>,
}

/// The first `count` problems (all without it) of a file of JSON lines `{"prompt": "...", "answer": "..."}`; an answer
/// may be a number, `score` (0 to 1) is for query-level routing, other fields are ignored.
///
/// # Errors
/// One line that names the file, the line and the field.
pub(crate) fn read(path: &Path, count: Option<usize>) -> Result<Vec<Problem>, String> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lines = lines.take(count.unwrap_or(usize::MAX));
    let problems: Vec<Problem> = lines
        .map(|(at, line)| parse(line).map_err(|e| format!("{file}, line {}: {e}", at + 1)))
        .collect::<Result<_, _>>()?;
    if problems.is_empty() {
        return Err(format!("{file}: there is no prompt in it"));
    }
    Ok(problems)
}

fn parse(line: &str) -> Result<Problem, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let prompt = value["prompt"].as_str().ok_or("\"prompt\" must be a text")?.to_owned();
    let answer = match &value["answer"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        other => return Err(format!("\"answer\" is {other}; a text or a number is needed")),
    };
    let score = match &value["score"] {
        Value::Null => None,
        other => {
            let number = other.as_f64().filter(|n| (0.0..=1.0).contains(n));
            let number =
                number.ok_or_else(|| format!("\"score\" is {other}; a number from 0 to 1 is needed"))?;
            Some(number as f32)
        }
    };
    Ok(Problem { prompt, answer, score })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_must_come_after_the_thinking() {
        assert!(Check::Sentence.passes("1+1=2.\n</think>\n\nThe answer is 2.", "2"));
        assert!(!Check::Sentence.passes("The answer is 2.\n</think>\n\nThe answer is 3.", "2"));
        assert!(!Check::Sentence.passes("The answer is 23.", "2"));
    }

    #[test]
    fn the_last_number_counts_in_any_spelling() {
        for (said, right, same) in [
            ("so 3 and then 50.", "50", true),
            ("$1,200.00", "1200", true),
            ("7-3", "3", true),
            ("it is -3", "3", false),
            ("it is -3", "-3", true),
            ("ünd ½ 4 €", "4", true),
            ("007", "7", true),
            ("-0.0", "0", true),
            ("0.50", "0.5", true),
            ("5 of 10", "5", false),
            ("none", "5", false),
            ("none", "none", false),
        ] {
            assert_eq!(Check::LastNumber.passes(said, right), same, "{said} {right}");
        }
        assert!(
            Check::Exact.passes("<think>x</think>\n\nParis\n", " Paris")
                && !Check::Exact.passes("Paris.", "Paris")
        );
    }

    #[test]
    fn lines_are_read_and_bad_ones_named() {
        let good = parse(r#"{"prompt": "p", "answer": 3, "score": 0.5, "id": 1}"#);
        let same = Problem { prompt: "p".into(), answer: Some("3".into()), score: Some(0.5) };
        assert_eq!(good, Ok(same));
        assert_eq!(parse(r#"{"prompt": "p"}"#).map(|p| (p.answer, p.score)), Ok((None, None)));
        for (bad, expected) in [
            ("{", "EOF"),
            (r#"{"answer": "3"}"#, "\"prompt\""),
            (r#"{"prompt": 3}"#, "\"prompt\""),
            (r#"{"prompt": "p", "answer": [3]}"#, "\"answer\""),
            (r#"{"prompt": "p", "score": 1.5}"#, "\"score\""),
        ] {
            assert!(parse(bad).is_err_and(|e| e.contains(expected)), "{bad}");
        }
    }
}
