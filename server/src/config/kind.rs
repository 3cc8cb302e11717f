//! Types and ranges of configuration values, in one place for the check, the messages and the reference.

use std::net::SocketAddr;

use toml::Value;

use super::parse_bytes;

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number from the first to the second.
    Int(i64, i64),
    /// A number from the first to the second.
    Number(f64, f64),
    /// A number above the first and at most the second.
    Above(f64, f64),
    /// Seconds as a number from 0 to a day.
    Seconds,
    /// A text that is not empty.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A number of bytes above 0, or a text like `"2GiB"`.
    Bytes,
    /// An address and a port.
    Addr,
    /// A file or folder. Of a file: relative to that file's folder; of a flag or variable: to the working directory.
    Path,
    /// A list of texts that are not empty.
    Texts,
    /// A list of whole numbers from 0.
    Ints,
    /// Anything that this sentence says; checked where it is read.
    Other(&'static str),
}

/// Longest time that a key in seconds may hold: a day. The clock can add it to now.
const MOST_SECONDS: f64 = 86_400.0;

impl Kind {
    /// What a value must be, to follow "must be" and to stand in the reference.
    pub(crate) fn wanted(self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Int(least, i64::MAX) => format!("a whole number of at least {least}"),
            Kind::Int(least, most) => format!("a whole number from {least} to {most}"),
            Kind::Number(least, most) => format!("a number from {least} to {most}"),
            Kind::Above(least, most) => format!("a number above {least} and at most {most}"),
            Kind::Seconds => format!("seconds, a number from 0 to {MOST_SECONDS}"),
            Kind::Text => "a text that is not empty".into(),
            Kind::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                one_of(&quoted)
            }
            Kind::Bytes => "a byte count above 0, a number or a text like \"2GiB\"".into(),
            Kind::Addr => "an address and a port like \"127.0.0.1:8000\"".into(),
            Kind::Path => "a path".into(),
            Kind::Texts => "a list of texts that are not empty".into(),
            Kind::Ints => "a list of whole numbers from 0".into(),
            Kind::Other(wanted) => wanted.into(),
        }
    }

    /// Whether a value is of this type and in its range.
    pub(crate) fn accepts(self, value: &Value) -> bool {
        let number = value.as_float().or(value.as_integer().map(|n| n as f64));
        let text = value.as_str().filter(|text| !text.is_empty());
        match self {
            Kind::Bool => value.is_bool(),
            Kind::Int(least, most) => value.as_integer().is_some_and(|n| (least..=most).contains(&n)),
            Kind::Number(least, most) => number.is_some_and(|n| (least..=most).contains(&n)),
            Kind::Above(least, most) => number.is_some_and(|n| n > least && n <= most),
            Kind::Seconds => number.is_some_and(|n| (0.0..=MOST_SECONDS).contains(&n)),
            Kind::Text | Kind::Path => text.is_some(),
            Kind::Word(words) => text.is_some_and(|text| words.contains(&text)),
            Kind::Bytes => match text {
                Some(text) => parse_bytes(text).is_ok_and(|n| n > 0),
                None => value.as_integer().is_some_and(|n| n > 0),
            },
            Kind::Addr => text.is_some_and(|text| text.parse::<SocketAddr>().is_ok()),
            Kind::Texts => value
                .as_array()
                .is_some_and(|list| list.iter().all(|v| v.as_str().is_some_and(|t| !t.is_empty()))),
            Kind::Ints => value
                .as_array()
                .is_some_and(|list| list.iter().all(|v| v.as_integer().is_some_and(|n| n >= 0))),
            Kind::Other(_) => true,
        }
    }

    /// The value of a flag or a variable: TOML, where texts may go without quotes and a list of texts may be written
    /// with commas.
    pub(crate) fn read(self, text: &str) -> Value {
        let text = text.trim();
        match self {
            Kind::Texts if !text.starts_with('[') => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Value::Array(parts.map(plain).collect())
            }
            Kind::Text | Kind::Word(_) | Kind::Addr | Kind::Path => plain(text),
            Kind::Bool if text == "1" => Value::Boolean(true),
            Kind::Bool if text == "0" => Value::Boolean(false),
            _ => toml_value(text).unwrap_or_else(|| Value::String(text.into())),
        }
    }
}

/// A text with or without its quotes.
fn plain(text: &str) -> Value {
    let quoted = text.starts_with(['"', '\'']).then(|| toml_value(text)).flatten();
    quoted.filter(Value::is_str).unwrap_or_else(|| Value::String(text.into()))
}

/// A value in TOML syntax, if it is one.
fn toml_value(text: &str) -> Option<Value> {
    // One line: what follows a line break would be keys of its own.
    let line = !text.contains(['\n', '\r']);
    let table: toml::Table = line.then(|| toml::from_str(&format!("v = {text}")).ok()).flatten()?;
    table.get("v").cloned()
}

/// `a`, `a or b`, `a, b or c`.
fn one_of(words: &[String]) -> String {
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(kind: Kind, text: &str) -> bool {
        kind.accepts(&toml_value(text).expect("TOML"))
    }

    #[test]
    fn ranges_hold_at_both_ends() {
        assert!(accepts(Kind::Int(1, 8), "1") && accepts(Kind::Int(1, 8), "8"));
        assert!(
            !accepts(Kind::Int(1, 8), "0")
                && !accepts(Kind::Int(1, 8), "9")
                && !accepts(Kind::Int(1, 8), "2.0")
        );
        assert!(accepts(Kind::Above(0.0, 1.0), "1") && !accepts(Kind::Above(0.0, 1.0), "0"));
        for kind in [Kind::Above(0.0, 1.0), Kind::Number(0.0, 1.0), Kind::Seconds] {
            assert!(!accepts(kind, "nan") && !accepts(kind, "inf") && !accepts(kind, "-0.1"));
        }
        assert!(accepts(Kind::Seconds, "86400") && !accepts(Kind::Seconds, "86400.5"));
        assert!(accepts(Kind::Bytes, "\"1KiB\"") && accepts(Kind::Bytes, "7"));
        assert!(
            !accepts(Kind::Bytes, "0") && !accepts(Kind::Bytes, "\"0\"") && !accepts(Kind::Bytes, "\"lots\"")
        );
        assert!(accepts(Kind::Addr, "\"[::1]:80\"") && !accepts(Kind::Addr, "\"localhost\""));
        assert!(
            accepts(Kind::Texts, "[\"a\"]") && accepts(Kind::Texts, "[]") && !accepts(Kind::Texts, "[\"\"]")
        );
        assert!(accepts(Kind::Word(&["a", "b"]), "\"b\"") && !accepts(Kind::Word(&["a", "b"]), "\"c\""));
    }

    #[test]
    fn flags_and_variables_need_no_quotes() {
        let text = |t: &str| Value::String(t.into());
        assert_eq!(Kind::Path.read("a b.toml"), text("a b.toml"));
        assert_eq!(Kind::Path.read("\"a b\""), text("a b"));
        assert_eq!(Kind::Text.read("3"), text("3"));
        assert_eq!(Kind::Int(0, 9).read(" 3 "), Value::Integer(3));
        assert_eq!(Kind::Int(0, 9).read("three"), text("three"));
        assert_eq!(Kind::Bool.read("1"), Value::Boolean(true));
        assert_eq!(Kind::Bytes.read("2GiB"), text("2GiB"));
        assert_eq!(Kind::Texts.read("a, b,"), Value::Array(vec![text("a"), text("b")]));
        assert_eq!(Kind::Texts.read("[\"a,b\"]"), Value::Array(vec![text("a,b")]));
        assert_eq!(Kind::Other("").read("[0, 0.5]").as_array().map(Vec::len), Some(2));
        // Not a second key through a line break.
        assert_eq!(Kind::Int(0, 9).read("1\nother = 2"), text("1\nother = 2"));
    }

    #[test]
    fn words_are_listed() {
        assert_eq!(Kind::Word(&["a", "b", "c"]).wanted(), "\"a\", \"b\" or \"c\"");
        assert_eq!(Kind::Word(&["a"]).wanted(), "\"a\"");
    }
}
