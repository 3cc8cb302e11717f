//! What can go wrong with text, in words that a user or an operator can act on.

use std::fmt;
use std::path::{Path, PathBuf};

/// A failure to load a tokenizer or template, or to turn text into tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// A file of the checkpoint folder is missing, broken or asks for something unsupported.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The tokenizer refused a text.
    Encode(String),
    /// The checkpoint has no chat template.
    NoTemplate,
    /// The chat template called `raise_exception` with this message.
    Raised(String),
    /// The chat template failed on these messages.
    Render(String),
    /// The template that a request brought does not compile.
    Template(String),
    /// The last message cannot be gone on with: the template does not show it as it is.
    Continue,
    /// The text of a message would become a control token and the tokenizer offers no way around it.
    ControlText,
}

impl TextError {
    /// A problem with one file.
    pub(crate) fn file(path: &Path, problem: impl fmt::Display) -> Self {
        Self::File { path: path.to_owned(), problem: problem.to_string() }
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, problem } => write!(f, "{}: {problem}", path.display()),
            Self::Encode(problem) => write!(f, "the text cannot be tokenized: {problem}"),
            Self::NoTemplate => f.write_str("the model has no chat template"),
            Self::Raised(message) => f.write_str(message),
            Self::Render(problem) => write!(f, "the chat template cannot render the messages: {problem}"),
            Self::Template(problem) => write!(f, "chat_template cannot be used: {problem}"),
            Self::Continue => {
                f.write_str("the chat template does not show the last message so that it can go on")
            }
            Self::ControlText => f.write_str("the text of a message would be read as a control token"),
        }
    }
}

impl std::error::Error for TextError {}
