//! The routers of a scenario: the simulator's own two, and every router of the registry.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use tokenrouter_scheduler::ModelId;
use tokenrouter_scheduler::router::{ParamValue, Registry, Router, RouterSpec, closest};
use tokenrouter_scheduler::sim::MatrixRouter;
use tokenrouter_scheduler::sim::serving::{Phase, ReplayRouter, SwitchRouter, TraceRequest};
use toml::Value;

use super::sections::RouterSection;
use crate::config::keys;

/// Follows a routing matrix.
const MATRIX: &str = "matrix";
/// Follows the trace.
const REPLAY: &str = "replay";

/// What routers are built for.
pub(super) struct Surroundings<'a> {
    pub(super) models: &'a [String],
    /// The trace, if there is one.
    pub(super) trace: &'a [TraceRequest],
    /// Routing matrices that replace the first, phase by phase.
    pub(super) phases: &'a [Vec<Vec<f64>>],
    pub(super) phase: &'a Phase,
    pub(super) registry: &'a Registry,
}

/// Builds one router.
///
/// # Errors
/// The key at fault.
pub(super) fn build(section: &RouterSection, around: &Surroundings<'_>) -> Result<Box<dyn Router>, String> {
    let models = around.models.len();
    match section.name.as_str() {
        MATRIX => matrix(section, around),
        REPLAY => {
            check_keys(section, &["name", "share", "commit", "entry"])?;
            if around.trace.iter().all(|t| t.destinations.is_empty()) {
                return Err(
                    "router.name is \"replay\", but the workload has no trace with destinations".into()
                );
            }
            let destinations = around.trace.iter().map(|t| t.destinations.clone()).collect();
            let keep = commits(section, models)?.unwrap_or_default();
            Ok(Box::new(ReplayRouter::new(destinations, entry(section, models)?, models, keep)))
        }
        name => {
            let known: Vec<&str> = around.registry.names().chain([MATRIX, REPLAY]).collect();
            if !known.contains(&name) {
                let near = closest(name, known.iter().copied());
                let hint = near.map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
                return Err(format!("router.name is \"{name}\"{hint} (known: {})", known.join(", ")));
            }
            let mut params = BTreeMap::new();
            for (key, value) in &section.params {
                params.insert(key.clone(), param(around.models, key, value)?);
            }
            let vocab = vec![1 << 16; models];
            let spec = RouterSpec { models, entry: ModelId(0), vocab: &vocab, heads: None, params };
            around.registry.build(name, &spec).map_err(|e| e.to_string())
        }
    }
}

fn matrix(section: &RouterSection, around: &Surroundings<'_>) -> Result<Box<dyn Router>, String> {
    check_keys(section, &["name", "share", "routing", "commit", "entry"])?;
    let models = around.models.len();
    let entry = entry(section, models)?;
    let routing: Vec<Vec<f64>> =
        read(section, "routing")?.ok_or("router \"matrix\" needs the key \"routing\"")?;
    check_routing("router.routing", &routing, models)?;
    let keep = commits(section, models)?;
    let make = |routing: &Vec<Vec<f64>>, key: &str| -> Result<Box<dyn Router>, String> {
        check_routing(key, routing, models)?;
        let router = MatrixRouter::new(routing.clone(), entry);
        Ok(Box::new(match &keep {
            Some(keep) => router.keeping(keep.clone()),
            None => router,
        }))
    };
    let first = make(&routing, "router.routing")?;
    if around.phases.is_empty() {
        return Ok(first);
    }
    let later = around.phases.iter().map(|routing| make(routing, "change.routing"));
    let all = std::iter::once(Ok(first)).chain(later).collect::<Result<Vec<_>, _>>()?;
    let switch = SwitchRouter::new(all, around.phase.clone()).ok_or("no router")?;
    Ok(Box::new(switch))
}

/// Refuses a matrix that is not square over the models, or has a row that is no distribution.
fn check_routing(key: &str, routing: &[Vec<f64>], models: usize) -> Result<(), String> {
    if routing.len() != models || routing.iter().any(|row| row.len() != models) {
        return Err(format!("{key} must have {models} rows of {models} numbers, one per model"));
    }
    for (i, row) in routing.iter().enumerate() {
        if let Some(p) = row.iter().find(|p| !(0.0..=1.0).contains(*p)) {
            return Err(format!("{key} has {p} in row {i}; probabilities are from 0 to 1"));
        }
        let sum: f64 = row.iter().sum();
        if (sum - 1.0).abs() > 1e-6 {
            return Err(format!("row {i} of {key} sums to {sum}; it must be 1"));
        }
    }
    Ok(())
}

/// The matrix C: 1 where a candidate is kept, 0 where it is dropped.
fn commits(section: &RouterSection, models: usize) -> Result<Option<Vec<Vec<bool>>>, String> {
    let Some(commit) = read::<Vec<Vec<i64>>>(section, "commit")? else { return Ok(None) };
    if commit.len() != models || commit.iter().any(|row| row.len() != models) {
        return Err(format!("router.commit must have {models} rows of {models} numbers, one per model"));
    }
    for (i, row) in commit.iter().enumerate() {
        if let Some(c) = row.iter().find(|c| ![0, 1].contains(*c)) {
            return Err(format!("router.commit has {c} in row {i}; 1 keeps a candidate, 0 drops it"));
        }
        if let Some(0) = commit[i].get(i) {
            let routing: Vec<Vec<f64>> = read(section, "routing")?.unwrap_or_default();
            if routing.get(i).and_then(|r| r.get(i)).is_none_or(|&p| p > 0.0) {
                return Err(format!(
                    "router.commit drops the token of model {i} where the request stays; it must be 1"
                ));
            }
        }
    }
    Ok(Some(commit.iter().map(|row| row.iter().map(|&c| c == 1).collect()).collect()))
}

fn entry(section: &RouterSection, models: usize) -> Result<ModelId, String> {
    match read::<i64>(section, "entry")?.unwrap_or(0) {
        i if i >= 0 && (i as usize) < models => Ok(ModelId(i as u8)),
        other => Err(format!("router.entry is {other}; an index below {models} is needed")),
    }
}

fn read<T: DeserializeOwned>(section: &RouterSection, key: &str) -> Result<Option<T>, String> {
    let value = section.params.get(key).cloned();
    let wrong = |e: toml::de::Error| format!("router.{key}: {}", e.message());
    value.map(|v| v.try_into().map_err(wrong)).transpose()
}

fn check_keys(section: &RouterSection, known: &[&str]) -> Result<(), String> {
    let table: toml::Table = section.params.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    keys::check_table("[router]", &table, known)
}

/// A parameter; a model may be given by its name.
fn param(models: &[String], key: &str, value: &Value) -> Result<ParamValue, String> {
    Ok(match value {
        Value::Boolean(v) => ParamValue::Bool(*v),
        Value::Integer(v) => ParamValue::Int(*v),
        Value::Float(v) => ParamValue::Float(*v),
        Value::String(v) => match models.iter().position(|m| m == v) {
            Some(index) if key == "model" || key == "peer" => ParamValue::Int(index as i64),
            _ => ParamValue::Text(v.clone()),
        },
        Value::Array(values) => {
            ParamValue::List(values.iter().map(|v| param(models, key, v)).collect::<Result<_, _>>()?)
        }
        other => {
            return Err(format!("router.{key} is {other}; a number, a text, a boolean or a list is needed"));
        }
    })
}
