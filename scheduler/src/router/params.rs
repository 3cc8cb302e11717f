//! Parameters of a router from a configuration file, and every way they can be wrong.

use super::suggest::closest;
use super::threshold::Threshold;
use crate::ids::ModelId;
use std::collections::BTreeMap;
use std::fmt;

/// A parameter's value as the configuration wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A string.
    Text(String),
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v}"),
            Self::Text(v) => write!(f, "\"{v}\""),
        }
    }
}

/// What a router is built for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterSpec<'a> {
    /// How many models are configured.
    pub models: usize,
    /// The entry model.
    pub entry: ModelId,
    /// Configured vocabulary size of each model.
    pub vocab: &'a [usize],
    /// The parameters.
    pub params: BTreeMap<String, ParamValue>,
}

/// Why a router cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterError {
    /// No router of that name is registered.
    UnknownRouter {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A router of that name is registered already.
    Duplicate {
        /// The name.
        name: String,
    },
    /// The router has no such parameter.
    UnknownParam {
        /// The router.
        router: String,
        /// The parameter.
        param: String,
        /// The parameters it has.
        known: Vec<String>,
    },
    /// A parameter's value is of the wrong type or out of range.
    BadParam {
        /// The router.
        router: String,
        /// The parameter.
        param: String,
        /// The value, as written.
        got: String,
        /// What would be right.
        want: String,
    },
    /// The router does not fit the configured models.
    Models {
        /// The router.
        router: String,
        /// What is wrong.
        problem: String,
    },
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRouter { name, known } => {
                write!(f, "there is no router `{name}`{}", help(name, known))
            }
            Self::Duplicate { name } => write!(f, "a router `{name}` is registered already"),
            Self::UnknownParam { router, param, known } => {
                write!(f, "router `{router}` has no parameter `{param}`{}", help(param, known))
            }
            Self::BadParam { router, param, got, want } => {
                write!(f, "router `{router}`: `{param}` is {got}, but must be {want}")
            }
            Self::Models { router, problem } => write!(f, "router `{router}`: {problem}"),
        }
    }
}

impl std::error::Error for RouterError {}

/// "; did you mean X? (known: A, B)".
fn help(name: &str, known: &[String]) -> String {
    let meant = closest(name, known.iter().map(String::as_str))
        .map(|k| format!("; did you mean `{k}`?"))
        .unwrap_or_default();
    if known.is_empty() {
        format!("{meant} (known: none)")
    } else {
        format!("{meant} (known: {})", known.join(", "))
    }
}

/// Reads a router's parameters with defaults. Every key asked for is known; [`super::Registry::build`] refuses
/// the ones nobody asked for, so a factory cannot forget to.
#[derive(Debug)]
pub struct ParamReader<'a> {
    router: &'a str,
    spec: &'a RouterSpec<'a>,
    asked: Vec<&'static str>,
}

impl<'a> ParamReader<'a> {
    pub(crate) fn new(router: &'a str, spec: &'a RouterSpec<'a>) -> Self {
        Self { router, spec, asked: Vec::new() }
    }

    /// The name the router is built under.
    pub fn router(&self) -> &'a str {
        self.router
    }

    /// What the router is built for.
    pub fn spec(&self) -> &'a RouterSpec<'a> {
        self.spec
    }

    /// The raw value of a key, if given.
    pub fn raw(&mut self, key: &'static str) -> Option<&'a ParamValue> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        self.spec.params.get(key)
    }

    /// An error about a key's value.
    pub fn bad(&self, key: &str, got: &ParamValue, want: impl Into<String>) -> RouterError {
        RouterError::BadParam {
            router: self.router.to_owned(),
            param: key.to_owned(),
            got: got.to_string(),
            want: want.into(),
        }
    }

    /// A number between `low` and `high`.
    pub fn float(
        &mut self,
        key: &'static str,
        default: f64,
        low: f64,
        high: f64,
    ) -> Result<f64, RouterError> {
        let Some(raw) = self.raw(key) else { return Ok(default) };
        let value = match *raw {
            ParamValue::Float(v) => v,
            ParamValue::Int(v) => v as f64,
            _ => f64::NAN,
        };
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(self.bad(key, raw, format!("a number from {low} to {high}")))
        }
    }

    /// A threshold: a number, `always` or `never`.
    pub fn threshold(&mut self, key: &'static str, default: Threshold) -> Result<Threshold, RouterError> {
        let Some(raw) = self.raw(key) else { return Ok(default) };
        let value = match raw {
            ParamValue::Float(v) => Some(Threshold::Value(*v as f32)),
            ParamValue::Int(v) => Some(Threshold::Value(*v as f32)),
            ParamValue::Text(v) => v.parse().ok(),
            ParamValue::Bool(_) => None,
        };
        value.filter(|t| t.is_number()).ok_or_else(|| self.bad(key, raw, "`always`, `never` or a number"))
    }

    /// A configured model by its index.
    pub fn model(&mut self, key: &'static str, default: ModelId) -> Result<ModelId, RouterError> {
        let Some(raw) = self.raw(key) else { return Ok(default) };
        match *raw {
            ParamValue::Int(v) if v >= 0 && (v as usize) < self.spec.models => Ok(ModelId(v as u8)),
            _ => Err(self.bad(key, raw, format!("a model index below {}", self.spec.models))),
        }
    }

    /// The model a two-model router works with beside the entry: the key `peer`, or the only other model.
    pub fn peer(&mut self) -> Result<ModelId, RouterError> {
        let (entry, models) = (self.spec.entry, self.spec.models);
        let given = self.raw("peer").is_some();
        if models < 2 {
            return Err(self.models(format!("it needs two models, but {models} is configured")));
        }
        if models > 2 && !given {
            return Err(
                self.models(format!("{models} models are configured; `peer` must say which one to ask"))
            );
        }
        let other = ModelId(u8::from(entry.0 == 0));
        let peer = self.model("peer", other)?;
        if peer == entry {
            return Err(self.models(format!("`peer` is {}, which is the entry model itself", peer.0)));
        }
        Ok(peer)
    }

    fn models(&self, problem: String) -> RouterError {
        RouterError::Models { router: self.router.to_owned(), problem }
    }

    /// Refuses the first key that was never asked for.
    pub(crate) fn finish(self) -> Result<(), RouterError> {
        match self.spec.params.keys().find(|key| !self.asked.contains(&key.as_str())) {
            None => Ok(()),
            Some(param) => Err(RouterError::UnknownParam {
                router: self.router.to_owned(),
                param: param.clone(),
                known: self.asked.iter().map(|&k| k.to_owned()).collect(),
            }),
        }
    }
}
