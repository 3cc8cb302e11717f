//! The few things chat templates expect to behave as in Python: `tojson` and `strftime`.

use minijinja::value::{Value as JinjaValue, ValueKind};
use serde_json::Value;
use std::fmt::Write;

/// How `json.dumps` is asked to print.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    /// Spaces per level; `None` prints one line.
    pub indent: Option<usize>,
    /// Between items.
    pub item: String,
    /// Between key and value.
    pub key: String,
    /// Escape everything outside ASCII.
    pub ascii: bool,
    /// Print keys in order.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self { indent: None, item: ", ".into(), key: ": ".into(), ascii: false, sort_keys: false }
    }
}

/// Prints a value as Python's `json.dumps` does.
pub(crate) fn json(value: &Value, style: &JsonStyle) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: &JsonStyle, level: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&python_float(float)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_string(out, text, style.ascii),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| (None, item)).collect();
            write_items(out, '[', ']', &items, style, level);
        }
        Value::Object(map) => {
            let mut items: Vec<_> = map.iter().map(|(key, item)| (Some(key.as_str()), item)).collect();
            if style.sort_keys {
                items.sort_by_key(|&(key, _)| key);
            }
            write_items(out, '{', '}', &items, style, level);
        }
    }
}

/// How Python prints a list, a dictionary or a float in a template; `None` for values that print as they do here.
pub(crate) fn repr(value: &JinjaValue) -> Option<String> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    if !float && !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return None;
    }
    let mut out = String::new();
    write_repr(&mut out, &serde_json::to_value(value).ok()?);
    Some(out)
}

fn write_repr(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(_) => write_value(out, value, &JsonStyle::default(), 0),
        Value::String(text) => write_python_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_python_string(out, key);
                out.push_str(": ");
                write_repr(out, item);
            }
            out.push('}');
        }
    }
}

/// In single quotes, unless the text has those and no double ones.
fn write_python_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            // Writing to a String cannot fail.
            c if (c as u32) < 0x20 || c == '\u{7f}' => drop(write!(out, "\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn write_items(
    out: &mut String,
    open: char,
    close: char,
    items: &[(Option<&str>, &Value)],
    style: &JsonStyle,
    level: usize,
) {
    out.push(open);
    for (index, &(key, item)) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(if style.indent.is_some() { style.item.trim_end() } else { &style.item });
        }
        new_line(out, style, level + 1);
        if let Some(key) = key {
            write_string(out, key, style.ascii);
            out.push_str(&style.key);
        }
        write_value(out, item, style, level + 1);
    }
    if !items.is_empty() {
        new_line(out, style, level);
    }
    out.push(close);
}

fn new_line(out: &mut String, style: &JsonStyle, level: usize) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr` of a finite float: the shortest digits that read back, with an exponent outside 1e-4 .. 1e16.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A moment in UTC, taken apart.
struct Moment {
    year: i64,
    month: usize,
    day: u32,
    year_day: u32,
    week_day: usize,
    seconds: u32,
}

impl Moment {
    fn new(unix: u64) -> Self {
        let mut days = (unix / 86_400) as i64;
        let week_day = ((days + 4) % 7) as usize;
        let seconds = (unix % 86_400) as u32;
        let mut year = 1970;
        while days >= i64::from(year_length(year)) {
            days -= i64::from(year_length(year));
            year += 1;
        }
        let year_day = days as u32;
        let mut month = 0;
        let mut day = year_day;
        while day >= month_length(year, month) {
            day -= month_length(year, month);
            month += 1;
        }
        Self { year, month, day: day + 1, year_day: year_day + 1, week_day, seconds }
    }
}

fn year_length(year: i64) -> u32 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    365 + u32::from(leap)
}

fn month_length(year: i64, month: usize) -> u32 {
    match month {
        1 => year_length(year) - 337,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// `strftime` in UTC and English for the directives templates use; others are printed as they are.
pub(crate) fn strftime(unix: u64, format: &str) -> String {
    let at = Moment::new(unix);
    let (hour, minute, second) = (at.seconds / 3600, at.seconds / 60 % 60, at.seconds % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (month, day) = (MONTHS[at.month], DAYS[at.week_day]);
        let text = match chars.next() {
            Some('Y') => at.year.to_string(),
            Some('y') => format!("{:02}", at.year % 100),
            Some('m') => format!("{:02}", at.month + 1),
            Some('d') => format!("{:02}", at.day),
            Some('e') => format!("{:2}", at.day),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => day.to_owned(),
            Some('a') => day[..3].to_owned(),
            Some('j') => format!("{:03}", at.year_day),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => strftime(unix, "%Y-%m-%d"),
            Some('T') => strftime(unix, "%H:%M:%S"),
            Some('D') => strftime(unix, "%m/%d/%y"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json as value;

    #[test]
    fn json_is_printed_as_python_does() {
        let sample = value!({"b": [1, 2.0, "é<&>\u{2028}"], "a": {}, "c": [], "d": null, "e": true});
        let plain = json(&sample, &JsonStyle::default());
        assert_eq!(
            plain,
            "{\"b\": [1, 2.0, \"é<&>\u{2028}\"], \"a\": {}, \"c\": [], \"d\": null, \"e\": true}"
        );
        let style = JsonStyle { indent: Some(2), ascii: true, sort_keys: true, ..JsonStyle::default() };
        let expected = "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\\u0001\\n\",\n  \"b\": [\n    1,\n    {}\n  ]\n}";
        assert_eq!(json(&value!({"b": [1, {}], "a": "é😀\u{1}\n"}), &style), expected);
    }

    #[test]
    fn floats_are_printed_as_python_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (float, text) in cases {
            assert_eq!(python_float(float), text);
        }
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(strftime(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(strftime(951_782_400, "%F %a %j"), "2000-02-29 Tue 060");
        assert_eq!(strftime(1_735_689_599, "%d %b %Y %T %I %p %%"), "31 Dec 2024 23:59:59 11 PM %");
        assert_eq!(strftime(1_709_251_200, "%F %Q %"), "2024-03-01 %Q %");
    }
}
