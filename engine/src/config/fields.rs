//! Reading JSON objects field by field, so that every complaint names file, field and value.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::LoadError;

/// Reads a file that must hold one JSON object.
pub(crate) fn read_object(file: &Path) -> Result<Map<String, Value>, LoadError> {
    let bytes = std::fs::read(file).map_err(|e| LoadError::file(file, format!("cannot be read: {e}")))?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(LoadError::file(file, format!("holds {}, a JSON object is needed", brief(&other)))),
        Err(e) => Err(LoadError::file(file, format!("is not valid JSON: {e}"))),
    }
}

/// A value as it may stand in an error message: never longer than a line.
pub(crate) fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 {
        return text;
    }
    let head: String = text.chars().take(77).collect();
    format!("{head}...")
}

/// One JSON object of a file. `null` counts as absent everywhere, as `transformers` writes it for
/// "not set".
pub(crate) struct Fields<'a> {
    file: PathBuf,
    prefix: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The top-level object of `file`.
    pub(crate) fn new(file: &Path, map: &'a Map<String, Value>) -> Self {
        Self { file: file.to_path_buf(), prefix: String::new(), map }
    }

    /// The value of a field, `None` when absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// Whether the field is written at all, be it null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The names of all fields that are not null.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str())
    }

    /// The dotted name of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// An error about a field of this object.
    pub(crate) fn error(&self, name: &str, problem: impl Into<String>) -> LoadError {
        LoadError::field(&self.file, self.path(name), problem)
    }

    /// An error that quotes the value found.
    pub(crate) fn wrong(&self, name: &str, wanted: &str) -> LoadError {
        let found = self.map.get(name).map_or_else(|| "absent".to_owned(), brief);
        self.error(name, format!("is {found}, {wanted}"))
    }

    /// A whole number between `low` and `high`, both included.
    pub(crate) fn integer(&self, name: &str, low: u64, high: u64) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = value.as_u64().filter(|n| (low..=high).contains(n));
        match whole.and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(name, &format!("a whole number from {low} to {high} is needed"))),
        }
    }

    /// Like [`Self::integer`], for a field that must be there.
    pub(crate) fn required_integer(&self, name: &str, low: u64, high: u64) -> Result<usize, LoadError> {
        self.integer(name, low, high)?.ok_or_else(|| {
            self.error(name, format!("is absent, a whole number from {low} to {high} is needed"))
        })
    }

    /// A finite number, written as an integer or with a point.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(name, "a finite number is needed")),
        }
    }

    /// A number above zero.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        match self.number(name)? {
            Some(x) if x <= 0.0 => Err(self.wrong(name, "a number above 0 is needed")),
            other => Ok(other),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "true or false is needed"))
    }

    /// A string.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, "a string is needed"))
    }

    /// A nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(name, "an object is needed"))?;
        let prefix = format!("{}{name}.", self.prefix);
        Ok(Some(Fields { file: self.file.clone(), prefix, map }))
    }
}
