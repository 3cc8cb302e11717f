//! The planner's view: what is in force, what was promised, what is measured. What is not known yet is 0.

use tokenrouter_engine::EngineInfo;
use tokenrouter_scheduler::{ModelId, PlannerStatus, Policy, Threshold};

use super::text::Page;

/// All families of it.
pub(super) fn plan(page: &mut Page, info: &EngineInfo, planner: &PlannerStatus) {
    let names: Vec<&str> = info.models.iter().map(|model| model.name.as_str()).collect();
    page.gauge("tokenrouter:plan_active", "Whether steps are launched by a plan: 1 or 0.")
        .sample(&[], u8::from(planner.planned));
    page.counter("tokenrouter:plan_rounds_total", "Rounds of planning.").sample(&[], planner.rounds);
    page.counter("tokenrouter:plans_total", "Rounds of planning that changed the policy.")
        .sample(&[], planner.plans);
    page.counter(
        "tokenrouter:plan_fallbacks_total",
        "Plans given up because they did not keep their promise.",
    )
    .sample(&[], planner.fallbacks);
    for (name, help, rate) in [
        (
            "tokenrouter:plan_predicted_tokens_per_second",
            "Forecast for the policy in force and the requests that run.",
            planner.predicted,
        ),
        (
            "tokenrouter:plan_measured_tokens_per_second",
            "Measured over the last full window without prompts.",
            planner.measured,
        ),
    ] {
        page.gauge(name, help).float(&[], rate.unwrap_or(0.0));
    }
    thresholds(page, info, planner, &names);
    estimates(page, planner, &names);
}

/// The ready requests at which a model launches under the policy in force, for the requests that run now.
pub(crate) fn batch_threshold(info: &EngineInfo, planner: &PlannerStatus, model: ModelId) -> usize {
    let policy = if planner.planned { &planner.policy } else { &info.policy };
    match policy {
        Policy::Threshold(b) | Policy::Exclusive(b) | Policy::Hold { thresholds: b, .. } => {
            b.at(model, planner.requests)
        }
        Policy::StepSync | Policy::Eager | Policy::Lookahead { .. } => 1,
    }
}

fn thresholds(page: &mut Page, info: &EngineInfo, planner: &PlannerStatus, names: &[&str]) {
    page.gauge(
        "tokenrouter:batch_threshold",
        "Ready requests at which a model launches, under the policy in force and the requests that run.",
    );
    for (name, model) in names.iter().zip(0u8..) {
        page.sample(&[("model", name)], batch_threshold(info, planner, ModelId(model)));
    }
    page.gauge(
        "tokenrouter:router_threshold",
        "The threshold of requests that bring none, of routes that have one; always and never are infinite.",
    );
    for route in &info.routes {
        if let Some((threshold, _)) = route.terms.threshold {
            page.float(&[("route", &route.name)], number(threshold));
        }
    }
}

fn number(threshold: Threshold) -> f64 {
    match threshold {
        // As people write it, not the digits of its f64 value.
        Threshold::Value(value) => value.to_string().parse().unwrap_or(f64::from(value)),
        Threshold::Always => f64::NEG_INFINITY,
        Threshold::Never => f64::INFINITY,
    }
}

fn estimates(page: &mut Page, planner: &PlannerStatus, names: &[&str]) {
    let of = |model: usize| planner.models.get(model);
    page.gauge(
        "tokenrouter:routing_probability",
        "Estimated share of a model's requests that go to each model.",
    );
    for (m, from) in names.iter().enumerate() {
        for (t, to) in names.iter().enumerate() {
            let known = of(m).filter(|model| model.decisions > 0);
            let share = known.and_then(|model| model.routing.get(t).copied()).unwrap_or(0.0);
            page.float(&[("from", from), ("to", to)], share);
        }
    }
    page.gauge(
        "tokenrouter:estimated_step_seconds",
        "Estimated time of a step of so many rows while no other model runs.",
    );
    for (m, name) in names.iter().enumerate() {
        let known = of(m).map_or(&[][..], |model| &model.latency);
        let one = if known.is_empty() { &[(1, 0)][..] } else { known };
        for (rows, time) in one {
            page.float(&[("model", name), ("rows", &rows.to_string())], *time as f64 * 1e-9);
        }
    }
    page.gauge("tokenrouter:slowdown", "Estimated factor on a model's step time while others run.");
    for (m, name) in names.iter().enumerate() {
        let known = of(m).filter(|model| model.steps > 0);
        page.float(&[("model", name)], known.map_or(0.0, |model| model.slowdown));
    }
}
