//! JSON in one line that survives clients which split text at any kind of line end.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use serde_json::{Map, Value};
use std::io;

use crate::api::ApiError;

/// Compact JSON with U+007F..U+009F (among them U+0085), U+2028 and U+2029 escaped.
struct LineFormatter(CompactFormatter);

impl Formatter for LineFormatter {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut start = 0;
        for (at, c) in fragment.char_indices() {
            if matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}') {
                writer.write_all(&fragment.as_bytes()[start..at])?;
                write!(writer, "\\u{:04x}", c as u32)?;
                start = at + c.len_utf8();
            }
        }
        writer.write_all(&fragment.as_bytes()[start..])
    }
}

/// Appends a value to a buffer.
pub(crate) fn write(out: &mut Vec<u8>, value: &Value) {
    let mut serializer = Serializer::with_formatter(out, LineFormatter(CompactFormatter));
    // A Value has string keys and writing to memory cannot fail, so there is no error to report.
    let _ = value.serialize(&mut serializer);
}

/// A value as bytes.
pub(crate) fn to_vec(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, value);
    out
}

/// Reads a request body: one JSON object. Of a key that occurs twice, the last value counts.
pub(crate) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::invalid_json("the request body must be a JSON object")),
        Err(error) => {
            let what = if error.is_eof() { "ends too early" } else { "is not valid JSON" };
            let (line, column) = (error.line(), error.column());
            Err(ApiError::invalid_json(format!("the request body {what} at line {line} column {column}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn line_ends_of_every_kind_are_escaped() {
        let value = json!({"a\u{2028}": "x\u{85}y\u{2029}\n\r\u{7f}é\u{9f}\u{a0}😀\"\\\u{0}"});
        let bytes = to_vec(&value);
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text, "{\"a\\u2028\":\"x\\u0085y\\u2029\\n\\r\\u007fé\\u009f\u{a0}😀\\\"\\\\\\u0000\"}");
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), value);
    }

    #[test]
    fn bodies_that_are_no_object_are_refused_without_an_echo() {
        let deep = "[".repeat(100_000);
        let bad: [&[u8]; 12] = [
            b"",
            b"{",
            b"{\"secret\": tru",
            b"[]",
            b"\"secret\"",
            b"{\"secret\": NaN}",
            b"{} secret",
            b"\xef\xbb\xbf{}",
            b"{\"secret\": \"\xb0\xa1\"}",
            b"{\"secret\": \"\\ud800\"}",
            b"{\"secret\": 1e999}",
            deep.as_bytes(),
        ];
        for body in bad {
            let error = parse_object(body).unwrap_err();
            assert_eq!((error.status, error.code), (400, Some("invalid_json")));
            assert!(!error.message.contains("secret"), "{}", error.message);
        }
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let map = parse_object(br#"{"n": 1, "m": 2, "n": 3}"#).unwrap();
        assert_eq!(map.get("n"), Some(&json!(3)));
    }
}
