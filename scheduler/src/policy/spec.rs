//! Policies by name, as a configuration file writes them.

use super::{CountTable, Policy, Thresholds};
use crate::router::closest;
use std::fmt;

/// A policy as text and numbers. What is absent takes its default; what the named policy does not read is refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySpec {
    /// One of [`Policy::NAMES`].
    pub name: String,
    /// B or K.
    pub threshold: Option<Thresholds>,
    /// H.
    pub beside: Option<CountTable>,
    /// The weight of lookahead.
    pub alpha: Option<f64>,
}

/// Why a [`PolicySpec`] is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// No policy has this name.
    Unknown(String),
    /// The policy needs this key.
    Missing {
        /// The policy.
        policy: String,
        /// The key.
        key: &'static str,
    },
    /// The policy does not read this key.
    Unused {
        /// The policy.
        policy: String,
        /// The key.
        key: &'static str,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "there is no policy \"{name}\"")?;
                if let Some(near) = closest(name, Policy::NAMES.iter().copied()) {
                    write!(f, "; did you mean \"{near}\"?")?;
                }
                write!(f, " (known: {})", Policy::NAMES.join(", "))
            }
            Self::Missing { policy, key } => write!(f, "policy \"{policy}\" needs the key \"{key}\""),
            Self::Unused { policy, key } => write!(f, "policy \"{policy}\" does not read the key \"{key}\""),
        }
    }
}

impl std::error::Error for SpecError {}

impl Policy {
    /// The names that a [`PolicySpec`] may have.
    pub const NAMES: [&'static str; 7] =
        ["lookahead", "eager", "threshold", "threshold+hold", "exclusive", "model-sync", "step-sync"];

    /// The policy of a name and its parameters.
    pub fn from_spec(spec: &PolicySpec) -> Result<Self, SpecError> {
        let policy = || spec.name.clone();
        let threshold = || {
            spec.threshold.clone().ok_or_else(|| SpecError::Missing { policy: policy(), key: "threshold" })
        };
        let (built, reads): (Self, &[&str]) = match spec.name.as_str() {
            "step-sync" => (Self::StepSync, &[]),
            "model-sync" => (Self::Exclusive(Thresholds::peers(CountTable::constant(1))), &[]),
            "exclusive" => (Self::Exclusive(threshold()?), &["threshold"]),
            "eager" => (Self::Eager, &[]),
            "threshold" => (Self::Threshold(threshold()?), &["threshold"]),
            "threshold+hold" => {
                let beside = spec.beside.clone().unwrap_or_else(|| CountTable::constant(1));
                (Self::Hold { thresholds: threshold()?, beside }, &["threshold", "beside"])
            }
            "lookahead" => (Self::Lookahead { alpha: spec.alpha.unwrap_or(1.0) }, &["alpha"]),
            _ => return Err(SpecError::Unknown(policy())),
        };
        let given = [
            ("threshold", spec.threshold.is_some()),
            ("beside", spec.beside.is_some()),
            ("alpha", spec.alpha.is_some()),
        ];
        match given.into_iter().find(|(key, is_given)| *is_given && !reads.contains(key)) {
            Some((key, _)) => Err(SpecError::Unused { policy: policy(), key }),
            None => Ok(built),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> PolicySpec {
        PolicySpec { name: name.into(), ..PolicySpec::default() }
    }

    #[test]
    fn every_name_makes_its_policy() {
        let b = || Thresholds::peers(CountTable::constant(5));
        let with_b = |name: &str| PolicySpec { threshold: Some(b()), ..named(name) };
        assert_eq!(Policy::from_spec(&named("step-sync")), Ok(Policy::StepSync));
        let model_sync = Policy::Exclusive(Thresholds::peers(CountTable::constant(1)));
        assert_eq!(Policy::from_spec(&named("model-sync")), Ok(model_sync));
        assert_eq!(Policy::from_spec(&with_b("exclusive")), Ok(Policy::Exclusive(b())));
        assert_eq!(Policy::from_spec(&named("eager")), Ok(Policy::Eager));
        assert_eq!(Policy::from_spec(&with_b("threshold")), Ok(Policy::Threshold(b())));
        let hold = |h| Policy::Hold { thresholds: b(), beside: CountTable::constant(h) };
        assert_eq!(Policy::from_spec(&with_b("threshold+hold")), Ok(hold(1)));
        let spec = PolicySpec { beside: Some(CountTable::constant(3)), ..with_b("threshold+hold") };
        assert_eq!(Policy::from_spec(&spec), Ok(hold(3)));
        assert_eq!(Policy::from_spec(&named("lookahead")), Ok(Policy::default()));
        let spec = PolicySpec { alpha: Some(1.15), ..named("lookahead") };
        assert_eq!(Policy::from_spec(&spec), Ok(Policy::Lookahead { alpha: 1.15 }));
        for name in Policy::NAMES {
            let built = Policy::from_spec(&named(name)).or_else(|_| Policy::from_spec(&with_b(name)));
            assert!(built.is_ok(), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (named("threshhold"), "did you mean \"threshold\""),
            (named("threshold"), "needs the key \"threshold\""),
            (named("exclusive"), "needs the key \"threshold\""),
            (PolicySpec { alpha: Some(1.0), ..named("eager") }, "does not read the key \"alpha\""),
            (
                PolicySpec { beside: Some(CountTable::constant(2)), ..named("lookahead") },
                "does not read the key \"beside\"",
            ),
        ];
        for (spec, expected) in cases {
            let error = Policy::from_spec(&spec).map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(expected)), "{spec:?}: {error:?}");
        }
    }
}
