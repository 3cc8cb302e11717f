//! `/v1/scheduling`: how steps are launched, and what that rests on.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};
use tokenrouter_engine::{EngineInfo, EngineStatus, ModelInfo, ModelStatus};
use tokenrouter_scheduler::{
    ModelId, ModelStatus as Estimates, Nanos, PlannerConfig, PlannerStatus, Policy, Thresholds,
};

use crate::api::json;
use crate::config::handoff_name;

/// More requests than this are never admitted (`server.max_running`).
const MOST_REQUESTS: usize = 4096;

/// The body of `GET /v1/scheduling`. What has not been seen is null. `estimates` forget, and are what plans are made
/// from; the other numbers count from the start.
pub fn scheduling_json(info: &EngineInfo, status: &EngineStatus) -> Vec<u8> {
    let planner = status.planner();
    let names: Vec<&str> = info.models.iter().map(|model| model.name.as_str()).collect();
    let model = |(m, (info, status)): (usize, (&ModelInfo, &ModelStatus))| {
        one_model(info, status, &names, m, planner.models.get(m))
    };
    let models: Vec<Value> = info.models.iter().zip(&status.models).enumerate().map(model).collect();
    let base = words(&info.policy, &names);
    let policy = if info.planner.is_some() {
        format!("auto: the best plan for what is measured; until there is one, {base}")
    } else {
        base.clone()
    };
    let in_force = if planner.planned { words(&planner.policy, &names) } else { base };
    json::to_vec(&json!({
        "policy": policy,
        "in_force": in_force,
        "handoff": handoff_name(info.handoff),
        "requests": {
            "running": get(&status.running), "waiting": get(&status.waiting), "routed": planner.requests,
        },
        "guard_launches": get(&status.guard_launches),
        "plan": info.planner.map(|config| plan_json(&config, &planner)),
        "models": models,
    }))
}

fn plan_json(config: &PlannerConfig, planner: &PlannerStatus) -> Value {
    json!({
        "active": planner.planned,
        "up_to_requests": planner.plan_len,
        "predicted_tokens_per_s": planner.predicted,
        "measured_tokens_per_s": planner.measured,
        "predicted_p99_inter_token_ms": planner.predicted_p99.map(ms),
        "p99_inter_token_limit_ms": config.p99_limit.map(ms),
        "rounds": planner.rounds,
        "plans": planner.plans,
        "fallbacks": planner.fallbacks,
        "last_error": planner.error,
    })
}

fn ms(nanos: Nanos) -> f64 {
    nanos as f64 * 1e-6
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Relaxed)
}

fn one_model(
    info: &ModelInfo,
    status: &ModelStatus,
    names: &[&str],
    index: usize,
    estimates: Option<&Estimates>,
) -> Value {
    let (launches, steps, rows) = (get(&status.launches), get(&status.steps), get(&status.rows));
    let per = |sum: u64, count: u64| (count > 0).then(|| sum as f64 / count as f64);
    let others = names.iter().zip(&status.handoffs).enumerate().filter(|(to, _)| *to != index);
    let handoffs: Map<String, Value> =
        others.map(|(_, (name, count))| ((*name).to_owned(), get(count).into())).collect();
    json!({
        "name": info.name,
        "ready": get(&status.ready), "running": get(&status.running), "pending": get(&status.pending),
        "launches": launches, "steps": steps,
        "step_ms": per(get(&status.busy), steps).map(|nanos| nanos * 1e-6),
        "rows_per_step": per(rows, launches),
        "tokens_fed_per_step": per(get(&status.fed), launches),
        "committed_tokens": get(&status.committed),
        "handoffs_to": handoffs,
        "estimates": estimates.map(|estimates| estimates_json(estimates, names)),
    })
}

fn estimates_json(estimates: &Estimates, names: &[&str]) -> Value {
    let by_name = |values: &[f64]| -> Map<String, Value> {
        names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
    };
    let step_ms: Map<String, Value> =
        estimates.latency.iter().map(|(rows, time)| (rows.to_string(), ms(*time).into())).collect();
    json!({
        "step_ms_by_rows": step_ms,
        "slowdown_beside_others": estimates.slowdown,
        "routing": by_name(&estimates.routing),
        "tokens_committed": by_name(&estimates.commit),
        "decisions": estimates.decisions,
        "steps": estimates.steps,
    })
}

/// A policy in words.
pub(crate) fn words(policy: &Policy, names: &[&str]) -> String {
    match policy {
        Policy::StepSync => "step-sync: all models with work launch together, and wait for each other".into(),
        Policy::Eager => "eager: a model launches whatever is ready".into(),
        Policy::Lookahead { alpha } => {
            format!("lookahead: a model waits only for a batch that is worth waiting for (alpha {alpha})")
        }
        Policy::Threshold(b) => format!("threshold: a model launches at {} ready requests", each(b, names)),
        Policy::Exclusive(k) => {
            format!("exclusive: one model at a time; a slower one at {} ready requests", each(k, names))
        }
        Policy::Hold { thresholds, beside } => format!(
            "threshold+hold: a model launches at {} ready requests; the fastest one waits for a batch that is about \
             to return, and needs {} to start beside another",
            each(thresholds, names),
            table(|count| beside.at(count))
        ),
    }
}

fn each(thresholds: &Thresholds, names: &[&str]) -> String {
    let one = |(m, name): (usize, &&str)| {
        format!("{name} {}", table(|count| thresholds.at(ModelId(m as u8), count)))
    };
    names.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// A table over the number of requests: one number, or its entries up to where it stays the same.
fn table(at: impl Fn(usize) -> usize) -> String {
    let last = at(MOST_REQUESTS);
    // Every table is clipped to the count itself, which says nothing about the table.
    let Some(differs) = (1..=MOST_REQUESTS).rev().find(|&count| at(count) != last.min(count)) else {
        return last.to_string();
    };
    let entries: Vec<String> = (1..=differs + 1).map(|count| at(count).to_string()).collect();
    format!("[{}] (by number of requests)", entries.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenrouter_scheduler::CountTable;

    #[test]
    fn policies_in_words() {
        let names = ["small", "large"];
        let growing = CountTable::by_count(vec![1, 2, 2, 3, 3]);
        let thresholds = |b| Thresholds::per_model(vec![CountTable::constant(1), b]);
        let cases = [
            (Policy::default(), "(alpha 1)"),
            (Policy::Eager, "eager: "),
            (Policy::StepSync, "step-sync: "),
            (Policy::Threshold(Thresholds::constants(&[1, 5])), "at small 1, large 5 ready"),
            (
                Policy::Threshold(thresholds(growing.clone())),
                "at small 1, large [1, 2, 2, 3] (by number of requests) ready",
            ),
            (Policy::Exclusive(thresholds(CountTable::constant(3))), "at small 1, large 3 ready"),
            (
                Policy::Hold { thresholds: thresholds(growing.clone()), beside: CountTable::constant(2) },
                "needs 2 to start",
            ),
        ];
        for (policy, expected) in cases {
            let text = words(&policy, &names);
            assert!(text.contains(expected) && !text.contains("  "), "{text}");
        }
    }
}
