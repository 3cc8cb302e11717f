//! Why a checkpoint was refused.

use std::fmt;
use std::path::{Path, PathBuf};

/// A checkpoint cannot be served: the file, the field or tensor in it, and what is wrong and what
/// would be right. Loading either gives a model whose mathematics is fully understood, or this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file (or folder) that holds the fault.
    pub file: PathBuf,
    /// The JSON field (dotted path), the tensor name, or empty when the whole file is at fault.
    pub field: String,
    /// The value found and what would be right, in words.
    pub problem: String,
}

impl LoadError {
    /// An error about one field or tensor of a file.
    pub fn field(file: &Path, field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), field: field.into(), problem: problem.into() }
    }

    /// An error about a whole file.
    pub fn file(file: &Path, problem: impl Into<String>) -> Self {
        Self::field(file, "", problem)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}: {}", self.file.display(), self.problem)
        } else {
            write!(f, "{}: {}: {}", self.file.display(), self.field, self.problem)
        }
    }
}

impl std::error::Error for LoadError {}
