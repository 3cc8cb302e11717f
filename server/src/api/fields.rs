//! Typed access to the fields of a request body. `null` means "not given" everywhere.

use crate::api::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One JSON object of a request, with the prefix its fields have in error messages.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    /// The fields of an object inside the body; `prefix` ends with a dot.
    pub(crate) fn nested(map: &'a Map<String, Value>, prefix: &'a str) -> Self {
        Self { map, prefix }
    }

    /// The value, unless absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A refusal of this field.
    pub(crate) fn invalid(&self, name: &str, right: &str) -> ApiError {
        let name = format!("{}{name}", self.prefix);
        ApiError::invalid(&name, format!("{name} must be {right}"))
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(name, "true or false"))
    }

    /// A flag with its default.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.bool(name)?.unwrap_or(default))
    }

    /// An integer; `16.0` is one, `"16"` is not.
    pub(crate) fn int(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || self.invalid(name, &format!("an integer from {} to {}", range.start(), range.end()));
        let int = integer(value).ok_or_else(wrong)?;
        if range.contains(&int) { Ok(Some(int)) } else { Err(wrong()) }
    }

    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let right = || self.invalid(name, &format!("a number from {} to {}", range.start(), range.end()));
        number.map(|number| Some(number as f32)).ok_or_else(right)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(name, "a string"))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.invalid(name, "an object"))
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_array().map(|list| Some(list.as_slice())).ok_or_else(|| self.invalid(name, "a list"))
    }

    /// A list of token ids below `vocab`, at most `most` of them.
    pub(crate) fn ids(&self, name: &str, vocab: usize, most: usize) -> Result<Vec<u32>, ApiError> {
        let list = self.list(name)?.unwrap_or_default();
        if list.len() > most {
            return Err(self.invalid(name, &format!("a list of at most {most} token ids")));
        }
        token_ids(list, vocab).ok_or_else(|| self.invalid(name, &ids_text(vocab)))
    }
}

/// What a list of token ids must be.
pub(crate) fn ids_text(vocab: usize) -> String {
    format!("a list of token ids from 0 to {}", vocab.saturating_sub(1))
}

/// The ids of a list, if every entry is an integer below `vocab`.
pub(crate) fn token_ids(list: &[Value], vocab: usize) -> Option<Vec<u32>> {
    list.iter()
        .map(|value| integer(value).and_then(|id| u32::try_from(id).ok()))
        .collect::<Option<Vec<u32>>>()
        .filter(|ids| ids.iter().all(|&id| (id as usize) < vocab))
}

/// The integer a JSON number is, integral floats up to 2^53 included.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_i64().or_else(|| {
        let float = value.as_f64().filter(|_| value.is_f64())?;
        (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
    })
}
