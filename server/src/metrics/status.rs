//! `GET /v1/status`: the numbers behind the status page. Totals count from the start, so that whoever reads twice has
//! rates; `clock_s` is the clock to divide by.

use serde_json::{Map, Value, json};
use tokenrouter_engine::ModelStatus;
use tokenrouter_engine::status::PHASE_NAMES;
use tokenrouter_engine::tally::{ROW_BUCKETS, TIME_BOUNDS};
use tokenrouter_scheduler::{ModelId, PlannerStatus, Threshold};

use super::page::{Facts, get};
use super::plan::batch_threshold;
use super::traffic::{REASONS, REFUSALS};
use crate::api::policy_words;

/// The body. `state` is what `/ready` says, `created` the start of the process in Unix seconds.
pub(crate) fn status_json(facts: &Facts<'_>, state: &str) -> Value {
    let Facts { status, traffic, info, .. } = *facts;
    let planner = status.planner();
    let models = facts.models();
    let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
    let (free, cached, total) =
        (get(&status.pages_free), get(&status.pages_cached), get(&status.pages_total));
    let by_word = |words: &[&str], counts: &[u64]| -> Map<String, Value> {
        words.iter().zip(counts).map(|(word, count)| ((*word).to_owned(), (*count).into())).collect()
    };
    json!({
        "name": facts.name,
        "version": env!("CARGO_PKG_VERSION"),
        "state": state,
        "started": facts.started,
        "clock_s": seconds(status.clock()),
        "requests": {
            "running": get(&status.running),
            "waiting": get(&status.waiting),
            "finished": by_word(&REASONS, &traffic.finished),
            "refused": by_word(&REFUSALS, &traffic.refused),
            "preempted": get(&status.preemptions),
        },
        "tokens": {
            "prompt": traffic.prompt_tokens,
            "cached": traffic.entry_hits,
            "generation": traffic.generation_tokens(),
        },
        "time_to_first_token": {
            "count": traffic.first_token.count(), "sum_s": traffic.first_token.sum(),
        },
        "inter_token": {"count": traffic.inter_token.count(), "sum_s": traffic.inter_token.sum()},
        "kv": {
            "capacity_tokens": info.capacity_tokens, "context_len": info.context_len,
            "pages": total, "used": total.saturating_sub(free), "cached": cached,
        },
        "plan": plan(facts, &planner, &names),
        "routes": info.routes.iter().map(|route| {
            let threshold = route.terms.threshold.map(|(threshold, _)| threshold_json(threshold));
            json!({
                "name": route.name, "algorithm": route.router, "entry": route.entry.index(),
                "models": route.reach.iter().map(ModelId::index).collect::<Vec<_>>(),
                "threshold": threshold, "compares": route.gauge.is_some(),
            })
        }).collect::<Vec<_>>(),
        "models": models.iter().enumerate().map(|(index, (name, model))| {
            let threshold = batch_threshold(info, &planner, ModelId(index as u8));
            one_model(facts, name, index, model, threshold, &names)
        }).collect::<Vec<_>>(),
        "bounds": {
            "rows": (0..ROW_BUCKETS - 1).map(|i| 1u64 << i).collect::<Vec<_>>(),
            "seconds": TIME_BOUNDS.iter().map(|&ns| seconds(ns)).collect::<Vec<_>>(),
        },
    })
}

fn plan(facts: &Facts<'_>, planner: &PlannerStatus, names: &[&str]) -> Value {
    let policy = if planner.planned { &planner.policy } else { &facts.info.policy };
    json!({
        "policy": policy_words(policy, names),
        "automatic": facts.info.planner.is_some(),
        "active": planner.planned,
        "predicted_tokens_per_s": planner.predicted,
        "measured_tokens_per_s": planner.measured,
    })
}

fn one_model(
    facts: &Facts<'_>,
    name: &str,
    index: usize,
    model: &ModelStatus,
    threshold: usize,
    names: &[&str],
) -> Value {
    let others = || names.iter().enumerate().filter(|(to, _)| *to != index);
    let edges: Vec<Value> = others()
        .map(|(to, other)| {
            let dropped = get(&model.drops[to]);
            let kept = get(&model.handoffs[to]).saturating_sub(dropped);
            json!({"to": other, "kept": kept, "dropped": dropped})
        })
        .collect();
    let phases: Map<String, Value> = PHASE_NAMES
        .iter()
        .enumerate()
        .map(|(phase, word)| {
            let (rows, times) = (&model.rows_by[phase], &model.step_times[phase]);
            let body = json!({
                "rows": {"counts": rows.counts().to_vec(), "sum": rows.sum()},
                "seconds": {"counts": times.counts().to_vec(), "sum": seconds(times.sum())},
            });
            ((*word).to_owned(), body)
        })
        .collect();
    json!({
        "name": name, "state": model.state().name(),
        "running": get(&model.running), "waiting": get(&model.ready), "pending": get(&model.pending),
        "committed": facts.traffic.committed[index], "discarded": facts.traffic.discarded[index],
        "launches": get(&model.launches), "steps": get(&model.steps), "failures": get(&model.failures),
        "rows": get(&model.rows), "fed": get(&model.fed), "busy_s": seconds(get(&model.busy)),
        "age_s": seconds(model.age(facts.status.clock())),
        "launch_at": threshold,
        "handoffs": edges,
        "admission_wait": {"counts": model.delays.counts().to_vec(), "sum_s": seconds(model.delays.sum())},
        "phases": phases,
    })
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 * 1e-9
}

fn threshold_json(threshold: Threshold) -> Value {
    match threshold {
        Threshold::Value(value) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        word => word.to_string().into(),
    }
}
