//! The one knob of a route: a number, or one of two words.

use std::fmt;
use std::str::FromStr;

/// When to ask the peer. What a number is compared with is the router's business.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Ask at every token.
    Always,
    /// Never ask.
    Never,
    /// Ask by comparison with this number.
    Value(f32),
}

impl Threshold {
    /// True unless the number is NaN, with which nothing compares.
    pub fn is_number(self) -> bool {
        !matches!(self, Self::Value(v) if v.is_nan())
    }

    /// True for a word and for a number from 0 to 1.
    pub fn is_share(self) -> bool {
        !matches!(self, Self::Value(v) if !(0.0..=1.0).contains(&v))
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    /// Accepts `always`, `never` or a number (not NaN).
    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        match text.trim() {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            number => match number.parse::<f32>() {
                Ok(value) if !value.is_nan() => Ok(Self::Value(value)),
                _ => Err(ThresholdError::number(text)),
            },
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Never => f.write_str("never"),
            Self::Value(value) => write!(f, "{value}"),
        }
    }
}

/// Text that is no threshold, or no comparison with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdError {
    text: String,
    want: &'static str,
}

impl ThresholdError {
    fn number(text: &str) -> Self {
        Self { text: text.to_owned(), want: "threshold; `always`, `never` or a number is" }
    }

    pub(super) fn direction(text: &str) -> Self {
        Self { text: text.to_owned(), want: "comparison; `>=`, `<` or `>` is" }
    }
}

impl fmt::Display for ThresholdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no {}", self.text, self.want)
    }
}

impl std::error::Error for ThresholdError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_parse_and_print() {
        for text in ["always", "never", "0.03", "-1", "1"] {
            let parsed: Threshold = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!(" 0.5 ".parse(), Ok(Threshold::Value(0.5)));
        for bad in ["", "sometimes", "nan", "Always", "0,03"] {
            let error = bad.parse::<Threshold>().unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("never"), "{error}");
        }
        assert!(!Threshold::Value(f32::NAN).is_number() && Threshold::Never.is_number());
    }
}
