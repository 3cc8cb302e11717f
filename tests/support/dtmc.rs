//! The exact values of the throughput model (`tests/golden/dtmc`) as JSON, and how to read it.

use super::root;
use serde_json::Value;

/// A file of the folder.
pub fn golden(file: &str) -> Value {
    let path = root().join("tests/golden/dtmc").join(file);
    serde_json::from_str(&std::fs::read_to_string(path).expect("a golden file")).expect("JSON")
}

/// A list.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// A number.
pub fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// A whole number.
pub fn count(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

/// A list of such lists.
pub fn matrix(value: &Value) -> Vec<Vec<f64>> {
    list(value).iter().map(numbers).collect()
}
