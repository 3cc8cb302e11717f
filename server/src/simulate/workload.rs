//! The `[workload]` section: arrivals and lengths.

use std::path::Path;

use tokenrouter_scheduler::sim::serving::{Arrivals, Length, TraceRequest, Workload};
use toml::Value;

use super::build::nanos;
use super::sections::WorkloadSection;
use super::trace;

/// The most tokens, and turns.
const MOST: i64 = 1 << 24;
/// The most clients, and requests of a burst.
pub(super) const MOST_CLIENTS: usize = 1 << 20;

/// The trace that the section names; empty without one.
///
/// # Errors
/// The file, and the line at fault.
pub(super) fn trace(
    section: &WorkloadSection,
    base: &Path,
    models: usize,
) -> Result<Vec<TraceRequest>, String> {
    let Some(file) = section.trace.as_ref().filter(|_| section.arrivals == "trace") else {
        return Ok(Vec::new());
    };
    let path = base.join(file);
    let text =
        std::fs::read_to_string(&path).map_err(|e| format!("workload.trace {}: {e}", path.display()))?;
    trace::parse(&text, models).map_err(|e| format!("workload.trace {}: {e}", path.display()))
}

/// The workload; `shares` are those of the routes.
///
/// # Errors
/// The key at fault.
pub(super) fn build(
    section: &WorkloadSection,
    trace: &[TraceRequest],
    shares: Vec<f64>,
) -> Result<Workload, String> {
    let arrivals = arrivals(section, trace)?;
    let length = |key: &str, value: &Option<Value>, default: Option<u32>| match (value, default) {
        (Some(value), _) => length(&format!("workload.{key}"), value),
        (None, Some(default)) => Ok(Length::Constant(default)),
        (None, None) => Err(format!("workload.{key} is missing")),
    };
    if i64::from(section.shared_prefix) > MOST {
        return Err(format!("workload.shared_prefix is {}; at most {MOST} tokens", section.shared_prefix));
    }
    // A trace has lengths of its own.
    let needed = (!trace.is_empty()).then_some(1);
    Ok(Workload {
        arrivals,
        prompt: length("prompt", &section.prompt, needed)?,
        answer: length("answer", &section.answer, needed)?,
        turns: length("turns", &section.turns, Some(1))?,
        follow_up: length("follow_up", &section.follow_up, Some(1))?,
        think: nanos("workload.think_s", section.think_s)?,
        shared_prefix: section.shared_prefix,
        max_new_tokens: section.max_tokens,
        shares,
        staggered: section.staggered,
    })
}

fn arrivals(section: &WorkloadSection, trace: &[TraceRequest]) -> Result<Arrivals, String> {
    let keys = [
        ("clients", section.clients.is_some(), "closed"),
        ("rate_per_s", section.rate_per_s.is_some(), "poisson"),
        ("burst", section.burst.is_some(), "bursts"),
        ("every_s", section.every_s.is_some(), "bursts"),
        ("trace", section.trace.is_some(), "trace"),
    ];
    let name = section.arrivals.as_str();
    let known = ["closed", "poisson", "bursts", "trace"];
    if !known.contains(&name) {
        let near = tokenrouter_scheduler::router::closest(name, known);
        let hint = near.map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
        return Err(format!("workload.arrivals is \"{name}\"{hint} (known: {})", known.join(", ")));
    }
    for (key, given, of) in keys {
        if given != (of == name) {
            let problem = if given { "does not read" } else { "needs" };
            return Err(format!("workload.arrivals \"{name}\" {problem} the key \"{key}\""));
        }
    }
    let positive = |key: &str, value: Option<usize>| match value {
        Some(n) if (1..=MOST_CLIENTS).contains(&n) => Ok(n),
        other => Err(format!("workload.{key} is {}; it must be 1..={MOST_CLIENTS}", other.unwrap_or(0))),
    };
    Ok(match name {
        "closed" => Arrivals::Closed(positive("clients", section.clients)?),
        "poisson" => match section.rate_per_s.filter(|r| *r > 0.0 && *r <= 1e6) {
            Some(rate) => Arrivals::Poisson(rate),
            None => return Err("workload.rate_per_s must be a number above 0 and at most 1e6".into()),
        },
        "bursts" => {
            let every = nanos("workload.every_s", section.every_s.unwrap_or(0.0))?;
            if every == 0 {
                return Err("workload.every_s is 0; bursts need time between them".into());
            }
            Arrivals::Bursts(positive("burst", section.burst)?, every)
        }
        _ => Arrivals::Trace(trace.to_vec()),
    })
}

/// A number, a range `[low, high]`, or `{ mean = 100 }`.
fn length(key: &str, value: &Value) -> Result<Length, String> {
    let wrong = || {
        format!("{key} is {value}; a number of at least 1, a range [low, high] or {{ mean = 100 }} is needed")
    };
    let whole = |v: &Value| v.as_integer().filter(|n| (1..=MOST).contains(n)).map(|n| n as u32);
    match value {
        Value::Integer(_) => whole(value).map(Length::Constant).ok_or_else(wrong),
        Value::Array(ends) => match ends.as_slice() {
            [low, high] => match (whole(low), whole(high)) {
                (Some(low), Some(high)) if low <= high => Ok(Length::Uniform(low, high)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        },
        Value::Table(table) if table.len() == 1 => {
            let mean = table.get("mean").and_then(|m| m.as_float().or(m.as_integer().map(|n| n as f64)));
            mean.filter(|m| (1.0..=MOST as f64).contains(m)).map(Length::Geometric).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}
