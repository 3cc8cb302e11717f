//! Methods and filters of Python that templates use and the library lacks.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

/// Replaces the filters and tests that answer differently in Jinja.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter("replace", replace);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
            || (value.kind() == ValueKind::Iterable && value.len().is_some())
    });
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
}

/// Methods of strings that `minijinja-contrib` does not know, then those that it does.
pub(super) fn unknown_method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = value.as_str().and_then(|text| string_method(text, method, args));
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// `None`: not a method of ours, or not with these arguments.
fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Value> {
    let first = args.first()?.as_str()?;
    match (method, args.len()) {
        ("removeprefix", 1) => Some(text.strip_prefix(first).unwrap_or(text).into()),
        ("removesuffix", 1) => Some(text.strip_suffix(first).unwrap_or(text).into()),
        ("partition", 1) if !first.is_empty() => Some(match text.split_once(first) {
            Some((before, after)) => list(&[before, first, after]),
            None => list(&[text, "", ""]),
        }),
        ("rpartition", 1) if !first.is_empty() => Some(match text.rsplit_once(first) {
            Some((before, after)) => list(&[before, first, after]),
            None => list(&["", "", text]),
        }),
        ("rsplit", 1 | 2) if !first.is_empty() => {
            let most = match args.get(1) {
                Some(most) => usize::try_from(most.as_i64()?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), first).collect();
            parts.reverse();
            Some(list(&parts))
        }
        _ => None,
    }
}

fn list(parts: &[&str]) -> Value {
    parts.iter().map(|&part| Value::from(part)).collect()
}

/// The filter `length`, which in Jinja takes what is undefined for empty.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
    value.len().ok_or_else(wrong)
}

/// The filter `replace`, which in Jinja can be told how many times.
fn replace(value: &Value, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    if value.is_undefined() || value.is_none() {
        return Err(Error::new(ErrorKind::UndefinedError, "replace needs a text"));
    }
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(match count {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}
