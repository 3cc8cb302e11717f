//! What was measured, for programs. Fields that the simulator has too (`tokenrouter simulate --json`) have its names.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::arrivals::Load;
use super::outcome::{Repeat, Row};
use super::predict;
use super::presets::Preset;
use super::run::{Bench, Source};
use super::scrape::{ModelSide, ServerSide};
use super::stats::Buckets;
use super::sweep::Setting;
use crate::simulate::summary;

/// The JSON object.
pub(super) fn json(bench: &Bench<'_>, preset: Option<&Preset>) -> String {
    let runs: Vec<Value> =
        bench.settings.iter().zip(&bench.rows).map(|(s, row)| run(bench, s, row)).collect();
    let scenario = match &bench.source {
        Source::Running(target) => format!("http://{}{}", target.site.address, target.site.prefix),
        Source::Pairs(pairs) => pairs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let mut models: Vec<String> = Vec::new();
    for side in bench.rows.iter().flat_map(|row| &row.repeats).filter_map(|r| r.server.as_ref()) {
        for model in side.models.iter().filter(|m| !models.contains(&m.name)).collect::<Vec<_>>() {
            models.push(model.name.clone());
        }
    }
    let value = json!({
        "scenario": scenario,
        "seed": bench.args.seed,
        "models": models,
        "runs": runs,
        "version": env!("CARGO_PKG_VERSION"),
        "preset": preset.map(|p| p.name),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "repeats": bench.repeats,
        "limits": {
            "tokens": bench.limits.tokens, "requests": bench.limits.requests, "seconds": bench.limits.seconds,
        },
        "max_foreign_cpu_percent": bench.args.max_foreign_cpu,
        "notes": bench.notes,
        "failure": bench.failure,
    });
    format!("{value}\n")
}

fn run(bench: &Bench<'_>, setting: &Setting, row: &Row) -> Value {
    let kept = row.kept();
    let seconds: f64 = kept.iter().map(|r| r.window.seconds).sum();
    let tokens: u64 = kept.iter().map(|r| r.window.tokens).sum();
    let answers = || kept.iter().flat_map(|r| &r.window.answers);
    let sum = |of: fn(&super::drive::Done) -> Option<u64>| answers().filter_map(of).sum::<u64>();
    let sides = kept.iter().filter_map(|r| r.server.as_ref());
    let server = sides.fold(None, |sum: Option<ServerSide>, side| {
        Some(sum.map_or_else(|| side.clone(), |sum| sum.and(side)))
    });
    let route = bench.routes.get(setting.pair).and_then(|routes| routes.get(setting.route));
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        out.insert(key.to_owned(), value);
    };
    put("policy", policy(bench, setting));
    put("handoff", handoff(bench, setting));
    put("setting", bench.label(setting).into());
    put("pair", setting.pair.into());
    put("router", route.map(|r| r.name.as_str()).into());
    put("threshold", route.and_then(|r| r.threshold.clone()).into());
    put("devices", json!(setting.choice.change.devices));
    put("workload", setting.kind.name().into());
    match setting.load {
        Load::Closed(clients) => put("clients", clients.into()),
        Load::Poisson(rate) => put("rate_per_s", rate.into()),
    }
    put("tokens_per_s", ratio(tokens as f64, seconds));
    put("requests_per_s", ratio(answers().count() as f64, seconds));
    put("seconds", seconds.into());
    put("tokens", tokens.into());
    put("completed", answers().count().into());
    let faults = row.faults();
    let refused: u64 = faults.iter().filter(|(kind, ..)| kind == "status 429").map(|(_, n, _)| n).sum();
    put("failed", (faults.iter().map(|(_, n, _)| n).sum::<u64>() - refused).into());
    put("refused", refused.into());
    put("first_token_ms", summary(&row.pooled(|w| &w.first)));
    put("inter_token_ms", summary(&row.pooled(|w| &w.between)));
    put("end_to_end_ms", summary(&row.answer_times()));
    put("prompt_tokens", sum(|d| d.answer.prompt_tokens).into());
    put("cached_tokens", sum(|d| d.answer.cached_tokens).into());
    put(
        "answer_tokens_mean",
        ratio(sum(|d| Some(u64::from(d.answer.tokens))) as f64, answers().count() as f64),
    );
    put("late", kept.iter().map(|r| r.window.late).sum::<u64>().into());
    if let Some(server) = &server {
        put("admission_ms", server.admission.json(1e3));
        put("wait_ms", server.wait().json(1e3));
        put("handoffs", server.handoffs().into());
        put("preemptions", server.preemptions.into());
        put("guard_launches", server.guard_launches.into());
        put("large_share", server.large_share().into());
        put("models", server.models.iter().map(|m| model(m, seconds)).collect());
    }
    if let Some(accounts) = accounts(row) {
        put("account", accounts.json());
    }
    if let Some(predicted) = predict::tokens_per_s(setting, row) {
        put("predicted_tokens_per_s", predicted.into());
    }
    put(
        "faults",
        faults.iter().map(|(kind, n, first)| json!({"kind": kind, "count": n, "first": first})).collect(),
    );
    put("discarded", row.discarded().into());
    put("cut", row.cut().into());
    put("doubtful", row.is_doubtful().into());
    put("spread", Value::Object(row.spreads()));
    put("repeats", row.repeats.iter().map(repeat).collect());
    Value::Object(out)
}

fn repeat(repeat: &Repeat) -> Value {
    json!({
        "tokens_per_s": repeat.tokens_per_s(), "tokens": repeat.window.tokens, "seconds": repeat.window.seconds,
        "completed": repeat.window.answers.len(), "failed": repeat.window.faults.len(),
        "cpu_seconds": repeat.server_cpu(), "client_cpu_seconds": repeat.used.own,
        "foreign_cpu_share": repeat.foreign, "discarded": repeat.discarded, "cut": repeat.window.cut.is_some(),
    })
}

fn policy(bench: &Bench<'_>, setting: &Setting) -> Value {
    if let Some(policy) = &setting.choice.change.policy {
        return policy.as_str().into();
    }
    match &bench.source {
        Source::Pairs(pairs) => pairs.get(setting.pair).map(|p| p.config.scheduling.policy.as_str()).into(),
        Source::Running(_) => Value::Null,
    }
}

fn handoff(bench: &Bench<'_>, setting: &Setting) -> Value {
    if let Some(handoff) = &setting.choice.change.handoff {
        return handoff.as_str().into();
    }
    match &bench.source {
        Source::Pairs(pairs) => pairs.get(setting.pair).map(|p| p.config.scheduling.handoff.as_str()).into(),
        Source::Running(_) => Value::Null,
    }
}

fn model(model: &ModelSide, seconds: f64) -> Value {
    json!({
        "name": model.name,
        "utilisation": ratio(model.busy, seconds),
        "launches": model.launches,
        "failed_steps": model.failed_steps,
        "rows": model.rows,
        "mean_batch": model.mean_batch(),
        "batches_up_to": histogram(&model.batch),
        "fed_tokens": model.fed,
        "step_ms": model.step.json(1e3),
        "wait_ms": model.wait.json(1e3),
        "committed": model.committed,
        "discarded": model.discarded,
        "cached_tokens": model.cached,
    })
}

/// How many values are in each bucket, by its upper bound.
fn histogram(buckets: &Buckets) -> Value {
    let mut below = 0.0;
    let mut out = Map::new();
    for (bound, count) in &buckets.upto {
        if *count > below {
            let name = if bound.is_finite() { bound.to_string() } else { "more".into() };
            out.insert(name, (count - below).into());
        }
        below = *count;
    }
    Value::Object(out)
}

fn ratio(a: f64, b: f64) -> Value {
    if b > 0.0 { (a / b).into() } else { Value::Null }
}

/// The accounts of whole answers, added up. Milliseconds.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) models: Vec<Account>,
    /// Without pages.
    pub(super) waiting_ms: f64,
    /// From question to end, as the client sees it.
    pub(super) answer_ms: f64,
}

/// One model's part.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) steps: f64,
    pub(super) queue_ms: f64,
    pub(super) compute_ms: f64,
}

impl Accounts {
    /// What the engine accounts for.
    pub(super) fn known_ms(&self) -> f64 {
        self.waiting_ms + self.models.iter().map(|m| m.queue_ms + m.compute_ms).sum::<f64>()
    }

    fn json(&self) -> Value {
        let model = |m: &Account| json!({"name": m.name, "forward_steps": m.steps, "queue_ms": m.queue_ms, "compute_ms": m.compute_ms});
        json!({
            "models": self.models.iter().map(model).collect::<Vec<_>>(), "waiting_ms": self.waiting_ms,
            "answer_ms": self.answer_ms, "outside_engine_ms": self.answer_ms - self.known_ms(),
        })
    }
}

/// Those of the answers that bring our server's summary; none without any.
pub(super) fn accounts(row: &Row) -> Option<Accounts> {
    let mut all: Option<Accounts> = None;
    for done in row.kept().into_iter().flat_map(|r| &r.window.answers) {
        let Some(models) = done.answer.routing["models"].as_array() else { continue };
        let all = all.get_or_insert_default();
        all.answer_ms += 1e3 * Duration::as_secs_f64(&done.time);
        all.waiting_ms += done.answer.routing["waiting_ms"].as_f64().unwrap_or(0.0);
        all.models.resize_with(models.len().max(all.models.len()), Account::default);
        for (sum, model) in all.models.iter_mut().zip(models) {
            let number = |key: &str| model[key].as_f64().unwrap_or(0.0);
            sum.name = model["name"].as_str().unwrap_or("").to_owned();
            sum.steps += number("forward_steps");
            sum.queue_ms += number("queue_ms");
            sum.compute_ms += number("compute_ms");
        }
    }
    all
}
