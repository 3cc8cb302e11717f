//! The `[scheduling]` section: which policy launches steps, and its parameters.

use std::path::PathBuf;

use serde::Deserialize;
use tokenrouter_scheduler::router::closest;
use tokenrouter_scheduler::{CountTable, Handoff, PlannerConfig, Policy, PolicySpec, SpecError, Thresholds};
use toml::Value;

/// The policy that plans.
pub(crate) const AUTO: &str = "auto";
/// Longest limit between two tokens: an hour.
const MOST_MS: f64 = 3_600_000.0;

/// When a model launches a step. Changes speed only, never an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct SchedulingSection {
    /// `auto` (lookahead until there is a plan, then the plan), or a fixed one: `lookahead`, `eager`, `threshold`,
    /// `threshold+hold`, `exclusive`, `model-sync` or `step-sync`.
    pub policy: String,
    /// Ready requests at which a model launches: a number for every model but the first (which launches at 1), or a
    /// list with an entry per model. An entry may be a list by the number of requests that may visit the model.
    /// Read by `threshold`, `threshold+hold` (B) and `exclusive` (K).
    pub threshold: Option<Value>,
    /// Ready requests that the fastest model needs to start beside another one that runs (H): a number, or a list by
    /// the number of requests. Read by `threshold+hold`.
    pub beside: Option<Value>,
    /// Weight of expected arrivals against waiting requests. Read by `lookahead` and `auto`.
    pub alpha: Option<f64>,
    /// What a request takes along to another model: `resume` (its pages, at once) or `readmit` (nothing: it comes as
    /// a new request, for comparison).
    pub handoff: String,
    /// The most that the 99th percentile of the time between two tokens of a request may be, in milliseconds, as far
    /// as a plan can help it. Read by `auto`.
    pub p99_inter_token_ms: Option<f64>,
    /// Step times measured on this machine.
    pub profile: Option<PathBuf>,
}

impl Default for SchedulingSection {
    fn default() -> Self {
        SchedulingSection {
            policy: AUTO.into(),
            threshold: None,
            beside: None,
            alpha: None,
            p99_inter_token_ms: None,
            handoff: handoff_name(Handoff::default()).into(),
            profile: None,
        }
    }
}

impl SchedulingSection {
    /// The policy for a deployment of `models` models; of `auto`, the one while there is no plan.
    ///
    /// # Errors
    /// One line that names the key and what would be right.
    pub fn policy(&self, models: usize) -> Result<Policy, String> {
        let threshold = self.threshold.as_ref().map(|v| thresholds(v, models)).transpose();
        let beside = self.beside.as_ref().map(table).transpose();
        let spec = PolicySpec {
            name: if self.is_auto() { "lookahead".into() } else { self.policy.clone() },
            threshold: threshold.map_err(|e| format!("scheduling.threshold {e}"))?,
            beside: beside.map_err(|e| format!("scheduling.beside {e}"))?,
            alpha: self.alpha,
        };
        if let Some(alpha) = self.alpha.filter(|a| !(a.is_finite() && *a > 0.0)) {
            return Err(format!("scheduling.alpha is {alpha}; it must be a number above 0"));
        }
        Policy::from_spec(&spec).map_err(|e| format!("[scheduling]: {}", self.refusal(&e)))
    }

    /// How to plan; `None` for a fixed policy.
    ///
    /// # Errors
    /// One line that names the key and what would be right.
    pub fn planner(&self) -> Result<Option<PlannerConfig>, String> {
        let key = "p99_inter_token_ms";
        let limit = match self.p99_inter_token_ms {
            Some(_) if !self.is_auto() => {
                return Err(format!(
                    "[scheduling]: policy \"{}\" does not read the key \"{key}\"",
                    self.policy
                ));
            }
            Some(ms) if !(ms > 0.0 && ms <= MOST_MS) => {
                return Err(format!("scheduling.{key} is {ms}; it must be above 0 and at most {MOST_MS}"));
            }
            limit => limit,
        };
        let p99_limit = limit.map(|ms| (ms * 1e6).ceil() as u64);
        Ok(self.is_auto().then(|| PlannerConfig { p99_limit, ..PlannerConfig::default() }))
    }

    fn is_auto(&self) -> bool {
        self.policy == AUTO
    }

    /// The scheduler's refusal, in the words of this file.
    fn refusal(&self, error: &SpecError) -> String {
        let name = match error {
            SpecError::Unknown(name) => name,
            // `auto` is read as lookahead, which is not what the file says.
            other if self.is_auto() => return other.to_string().replace("\"lookahead\"", "\"auto\""),
            other => return other.to_string(),
        };
        let known = || std::iter::once(AUTO).chain(Policy::NAMES);
        let hint = closest(name, known()).map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        let known: Vec<&str> = known().collect();
        format!("there is no policy \"{name}\"{hint} (known: {})", known.join(", "))
    }

    /// What a handoff takes along.
    ///
    /// # Errors
    /// One line that names the key and what would be right.
    pub fn handoff(&self) -> Result<Handoff, String> {
        handoff_from(&self.handoff).map_err(|e| format!("scheduling.handoff is {e}"))
    }
}

/// The handoff of a word.
///
/// # Errors
/// The word, and what would be right.
pub(crate) fn handoff_from(word: &str) -> Result<Handoff, String> {
    let named = HANDOFFS.into_iter().find(|handoff| handoff_name(*handoff) == word);
    named.ok_or_else(|| {
        let near = closest(word, HANDOFFS.into_iter().map(handoff_name));
        let hint = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        format!("\"{word}\"; it must be resume or readmit{hint}")
    })
}

/// The words of `scheduling.handoff`.
const HANDOFFS: [Handoff; 2] = [Handoff::Resume, Handoff::Readmit];

/// The word for it in the configuration.
pub(crate) fn handoff_name(handoff: Handoff) -> &'static str {
    match handoff {
        Handoff::Resume => "resume",
        Handoff::Readmit => "readmit",
    }
}

fn thresholds(value: &Value, models: usize) -> Result<Thresholds, String> {
    match value {
        Value::Array(entries) if entries.len() == models => {
            Ok(Thresholds::per_model(entries.iter().map(table).collect::<Result<_, _>>()?))
        }
        Value::Array(entries) => Err(format!(
            "has {} entries for {models} models; give one per model, or a single number for all but the first",
            entries.len()
        )),
        number => Ok(Thresholds::peers(CountTable::constant(count(number)?))),
    }
}

fn table(value: &Value) -> Result<CountTable, String> {
    match value {
        Value::Array(entries) if entries.is_empty() => Err("has an empty list".into()),
        Value::Array(entries) => {
            Ok(CountTable::by_count(entries.iter().map(count).collect::<Result<_, _>>()?))
        }
        number => Ok(CountTable::constant(count(number)?)),
    }
}

fn count(value: &Value) -> Result<u32, String> {
    let number = value.as_integer().and_then(|n| u32::try_from(n).ok());
    number.filter(|&n| n >= 1).ok_or_else(|| format!("holds {value}; a whole number of at least 1 is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Policy, String> {
        let section: SchedulingSection = toml::from_str(text).map_err(|e| e.to_string())?;
        section.policy(2)
    }

    #[test]
    fn every_form_is_read() {
        let constant = CountTable::constant;
        let cases = [
            ("", Policy::default()),
            ("policy = \"auto\"\nalpha = 2", Policy::Lookahead { alpha: 2.0 }),
            ("policy = \"lookahead\"", Policy::default()),
            ("policy = \"lookahead\"\nalpha = 2", Policy::Lookahead { alpha: 2.0 }),
            ("policy = \"eager\"", Policy::Eager),
            ("policy = \"step-sync\"", Policy::StepSync),
            ("policy = \"model-sync\"", Policy::Exclusive(Thresholds::peers(constant(1)))),
            ("policy = \"exclusive\"\nthreshold = 6", Policy::Exclusive(Thresholds::peers(constant(6)))),
            ("policy = \"threshold\"\nthreshold = [1, 5]", Policy::Threshold(Thresholds::constants(&[1, 5]))),
            (
                "policy = \"threshold\"\nthreshold = [1, [1, 2, 2, 3]]",
                Policy::Threshold(Thresholds::per_model(vec![
                    constant(1),
                    CountTable::by_count(vec![1, 2, 2, 3]),
                ])),
            ),
            (
                "policy = \"threshold+hold\"\nthreshold = 5\nbeside = 3",
                Policy::Hold { thresholds: Thresholds::peers(constant(5)), beside: constant(3) },
            ),
        ];
        for (text, policy) in cases {
            assert_eq!(read(text), Ok(policy), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("policy = \"thresold\"", "did you mean \"threshold\""),
            ("policy = \"aut\"", "did you mean \"auto\""),
            ("policy = \"auto\"\nthreshold = 5", "policy \"auto\" does not read the key \"threshold\""),
            ("threshold = 5", "policy \"auto\" does not read the key \"threshold\""),
            ("policy = \"threshold\"", "needs the key \"threshold\""),
            ("policy = \"eager\"\nthreshold = 5", "does not read the key \"threshold\""),
            ("policy = \"threshold\"\nthreshold = 0", "at least 1"),
            ("policy = \"threshold\"\nthreshold = 2.5", "whole number"),
            ("policy = \"threshold\"\nthreshold = [1, 2, 3]", "3 entries for 2 models"),
            ("policy = \"threshold\"\nthreshold = [1, []]", "empty list"),
            ("alpha = -1.0", "scheduling.alpha"),
            ("alpha = nan", "scheduling.alpha"),
        ];
        for (text, expected) in cases {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn handoffs_by_name() {
        let read =
            |text: &str| toml::from_str::<SchedulingSection>(text).map_err(|e| e.to_string())?.handoff();
        assert_eq!(read(""), Ok(Handoff::Resume));
        assert_eq!(read("handoff = \"readmit\""), Ok(Handoff::Readmit));
        let error = read("handoff = \"resum\"").expect_err("a typo");
        assert!(error.contains("scheduling.handoff") && error.contains("did you mean \"resume\""), "{error}");
    }

    #[test]
    fn only_auto_plans() {
        let read =
            |text: &str| toml::from_str::<SchedulingSection>(text).map_err(|e| e.to_string())?.planner();
        let plan = |p99_limit| Some(PlannerConfig { p99_limit, ..PlannerConfig::default() });
        assert_eq!(read(""), Ok(plan(None)));
        assert_eq!(read("policy = \"auto\"\np99_inter_token_ms = 40.5"), Ok(plan(Some(40_500_000))));
        assert_eq!(read("p99_inter_token_ms = 1e-9"), Ok(plan(Some(1))));
        assert_eq!(read("policy = \"lookahead\""), Ok(None));
        for (text, expected) in [
            ("policy = \"eager\"\np99_inter_token_ms = 5", "\"eager\" does not read the key"),
            ("p99_inter_token_ms = 0", "above 0"),
            ("p99_inter_token_ms = -1.0", "above 0"),
            ("p99_inter_token_ms = nan", "above 0"),
            ("p99_inter_token_ms = 1e12", "at most 3600000"),
            ("p99_inter_token_ms = \"5\"", "p99_inter_token_ms"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
