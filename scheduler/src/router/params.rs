//! Parameters of a router from a configuration file, and every way they can be wrong.

use super::direction::Direction;
use super::suggest::closest;
use super::terms::Source;
use super::threshold::Threshold;
use crate::event::MAX_HEADS;
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
    /// A list.
    List(Vec<ParamValue>),
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v}"),
            Self::Text(v) => write!(f, "\"{v}\""),
            Self::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

impl ParamValue {
    /// A number, whole or not.
    fn number(&self) -> Option<f64> {
        match *self {
            Self::Float(v) => Some(v),
            Self::Int(v) => Some(v as f64),
            _ => None,
        }
    }
}

/// What a router may know of a learned head of a model, from its router file.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadInfo {
    /// `kind` of the file: `r2r`, `citer`, `co-llm`, `query`, or an outsider's.
    pub kind: String,
    /// The threshold that the file stores, if any.
    pub threshold: Option<Threshold>,
    /// How the file says scores are compared with it.
    pub direction: Direction,
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
    /// The heads of each model. `None` when they are not known, as in a simulation: every head is then there, without
    /// a stored threshold.
    pub heads: Option<&'a [Vec<HeadInfo>]>,
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
        self.wrong(key, got.to_string(), want)
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
        let value = raw.number().unwrap_or(f64::NAN);
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(self.bad(key, raw, format!("a number from {low} to {high}")))
        }
    }

    /// A share from 0 to 1, if given.
    pub fn share(&mut self, key: &'static str) -> Result<Option<f32>, RouterError> {
        let share = self.float(key, f64::NAN, 0.0, 1.0)?;
        Ok((!share.is_nan()).then_some(share as f32))
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &'static str, default: bool) -> Result<bool, RouterError> {
        match self.raw(key) {
            None => Ok(default),
            Some(&ParamValue::Bool(value)) => Ok(value),
            Some(raw) => Err(self.bad(key, raw, "true or false")),
        }
    }

    /// A list of numbers, if given.
    pub fn numbers(&mut self, key: &'static str) -> Result<Option<Vec<f64>>, RouterError> {
        let Some(raw) = self.raw(key) else { return Ok(None) };
        let ParamValue::List(values) = raw else { return Err(self.bad(key, raw, "a list of numbers")) };
        let numbers: Option<Vec<f64>> = values.iter().map(ParamValue::number).collect();
        numbers.map(Some).ok_or_else(|| self.bad(key, raw, "a list of numbers"))
    }

    /// A threshold: a number, `always` or `never`.
    pub fn threshold(&mut self, key: &'static str, default: Threshold) -> Result<Threshold, RouterError> {
        Ok(self.given_threshold(key)?.unwrap_or(default))
    }

    fn given_threshold(&mut self, key: &'static str) -> Result<Option<Threshold>, RouterError> {
        let Some(raw) = self.raw(key) else { return Ok(None) };
        let value = match raw {
            ParamValue::Text(v) => v.parse().ok(),
            number => number.number().map(|v| Threshold::Value(v as f32)),
        };
        match value.filter(|t| t.is_number()) {
            Some(value) => Ok(Some(value)),
            None => Err(self.bad(key, raw, "`always`, `never` or a number")),
        }
    }

    /// The key `threshold` as a word or a number from 0 to 1: the configuration's, else `weaker` (a router file's or
    /// a published value). There is no default beyond that: without either the router is refused.
    pub fn threshold_or(
        &mut self,
        weaker: Option<(Threshold, Source)>,
    ) -> Result<(Threshold, Source), RouterError> {
        const KEY: &str = "threshold";
        let given = self.given_threshold(KEY)?.map(|threshold| (threshold, Source::Config));
        match (given, weaker) {
            (Some((threshold, _)), _) if !threshold.is_share() => {
                Err(self.wrong(KEY, threshold.to_string(), "`always`, `never` or a number from 0 to 1"))
            }
            (Some(chosen), _) | (None, Some(chosen)) => Ok(chosen),
            (None, None) => Err(self.missing(KEY, "given, because no router file stores one")),
        }
    }

    /// The key `head` (default 0): a head of `model` whose file is of this kind and compares in this direction, and
    /// the threshold that the file stores.
    pub fn head(
        &mut self,
        model: ModelId,
        kind: &str,
        direction: Direction,
    ) -> Result<(u8, Option<Threshold>), RouterError> {
        let index = match self.raw("head") {
            None => 0,
            Some(&ParamValue::Int(v)) if (0..MAX_HEADS as i64).contains(&v) => v as u8,
            Some(raw) => return Err(self.bad("head", raw, format!("an index below {MAX_HEADS}"))),
        };
        let Some(heads) = self.spec.heads else { return Ok((index, None)) };
        let heads = heads.get(model.index()).map_or(&[][..], Vec::as_slice);
        let Some(info) = heads.get(usize::from(index)) else {
            let count = heads.len();
            return Err(self.models(format!("it reads head {index} of {model}, which has {count} heads")));
        };
        if info.kind != kind {
            return Err(
                self.models(format!("head {index} of {model} is of kind `{}`, not `{kind}`", info.kind))
            );
        }
        if info.direction != direction {
            let problem = format!(
                "the file of head {index} of {model} compares by `{}`, but `{kind}` compares by `{direction}`",
                info.direction
            );
            return Err(self.models(problem));
        }
        match info.threshold {
            Some(stored) if !stored.is_share() => {
                let problem = format!("the file of head {index} of {model} stores the threshold {stored}");
                Err(self.models(format!("{problem}, which is not from 0 to 1")))
            }
            stored => Ok((index, stored)),
        }
    }

    /// An error about a key that is not there.
    pub fn missing(&self, key: &str, want: impl Into<String>) -> RouterError {
        self.wrong(key, "missing".to_owned(), want)
    }

    fn wrong(&self, key: &str, got: String, want: impl Into<String>) -> RouterError {
        RouterError::BadParam {
            router: self.router.to_owned(),
            param: key.to_owned(),
            got,
            want: want.into(),
        }
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

    /// An error about the models.
    pub fn models(&self, problem: impl Into<String>) -> RouterError {
        let problem = problem.into();
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
