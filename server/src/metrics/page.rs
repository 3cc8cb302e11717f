//! Every family of the page, in order.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tokenrouter_engine::status::FED_BUCKETS;
use tokenrouter_engine::{EngineInfo, EngineStatus, ModelStatus};
use tokenrouter_scheduler::{PAGE_TOKENS, PlannerStatus};

use super::histogram::Histogram;
use super::text::Page;
use super::traffic::{REASONS, REFUSALS, Traffic};

/// Upper bounds of the engine's buckets by fed tokens.
const FED: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const _: () = assert!(FED.len() + 1 == FED_BUCKETS, "one bound per bucket but the last");

/// The page. `name` is the served name of the deployment.
pub(crate) fn page(name: &str, info: &EngineInfo, status: &EngineStatus, traffic: &Traffic) -> Vec<u8> {
    let mut page = Page::new(name);
    let models: Vec<(&str, &ModelStatus)> =
        info.models.iter().map(|model| model.name.as_str()).zip(&status.models).collect();
    requests(&mut page, status, traffic, &models);
    times(&mut page, traffic);
    cache(&mut page, status, traffic);
    per_model(&mut page, traffic, &models);
    scheduling(&mut page, status, &models);
    let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
    plan(&mut page, &status.planner(), &names);
    page.gauge("tokenrouter:build_info", "Always 1; the version is a label.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.into_bytes()
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Relaxed)
}

fn requests(page: &mut Page, status: &EngineStatus, traffic: &Traffic, models: &[(&str, &ModelStatus)]) {
    page.gauge("vllm:num_requests_running", "Admitted requests: ready, in a batch, or away at a peer.")
        .sample(&[], get(&status.running));
    page.gauge("vllm:num_requests_waiting", "Requests waiting for admission.")
        .sample(&[], get(&status.waiting));
    page.counter("vllm:request_success_total", "Requests that ended, by reason.");
    for (reason, count) in REASONS.iter().zip(traffic.finished) {
        page.sample(&[("finished_reason", reason)], count);
    }
    page.counter("tokenrouter:requests_refused_total", "Requests that were not taken up, by reason.");
    for (reason, count) in REFUSALS.iter().zip(traffic.refused) {
        page.sample(&[("reason", reason)], count);
    }
    page.counter("vllm:prompt_tokens_total", "Tokens of the prompts of ended requests.")
        .sample(&[], traffic.prompt_tokens);
    let committed: u64 = models.iter().map(|(_, model)| get(&model.committed)).sum();
    page.counter("vllm:generation_tokens_total", "Tokens written into answers.").sample(&[], committed);
}

fn times(page: &mut Page, traffic: &Traffic) {
    page.histogram(
        "vllm:time_to_first_token_seconds",
        "From a request's arrival to its first token.",
        &traffic.first_token,
    );
    page.histogram(
        "vllm:inter_token_latency_seconds",
        "Between two tokens of a request.",
        &traffic.inter_token,
    );
    page.histogram(
        "vllm:e2e_request_latency_seconds",
        "From a request's arrival to its end.",
        &traffic.whole,
    );
    page.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", &traffic.prompt_len);
    page.histogram("vllm:request_generation_tokens", "Tokens of an answer.", &traffic.answer_len);
    page.histogram(
        "tokenrouter:routed_fraction",
        "Share of an answer that other models than its first one wrote.",
        &traffic.routed,
    );
}

fn cache(page: &mut Page, status: &EngineStatus, traffic: &Traffic) {
    let (free, cached, total) =
        (get(&status.pages_free), get(&status.pages_cached), get(&status.pages_total));
    // Read one after the other while the engine goes on: they may not add up for a moment.
    let used = total.saturating_sub(free);
    let share = used as f64 / total.max(1) as f64;
    for name in ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] {
        page.gauge(name, "Share of the joint KV pages that requests hold, 0 to 1.").float(&[], share);
    }
    page.gauge("tokenrouter:kv_pages", "Pages of the joint KV pool by state.")
        .sample(&[("state", "free")], free.saturating_sub(cached))
        .sample(&[("state", "used")], used)
        .sample(&[("state", "cached")], cached);
    let (size, count) = (PAGE_TOKENS.to_string(), total.to_string());
    page.gauge("vllm:cache_config_info", "Always 1; the shape of the KV cache is in the labels.")
        .sample(&[("block_size", &size), ("num_gpu_blocks", &count)], 1);
    page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the entry model's cache.")
        .sample(&[], traffic.prompt_tokens);
    page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the entry model's cache.")
        .sample(&[], traffic.entry_hits);
    page.counter("vllm:num_preemptions_total", "Requests that gave their pages up and waited again.")
        .sample(&[], get(&status.preemptions));
}

fn per_model(page: &mut Page, traffic: &Traffic, models: &[(&str, &ModelStatus)]) {
    type Read = fn(&ModelStatus) -> &AtomicU64;
    let gauges: [(&'static str, &str, Read); 3] = [
        ("tokenrouter:ready_requests", "Requests in a model's queue.", |m| &m.ready),
        ("tokenrouter:running_requests", "Requests in a model's batch in flight.", |m| &m.running),
        ("tokenrouter:pending_requests", "Requests that have visited a model and are away at a peer.", |m| {
            &m.pending
        }),
    ];
    for (name, help, read) in gauges {
        page.gauge(name, help);
        models.iter().for_each(|(model, status)| {
            page.sample(&[("model", model)], get(read(status)));
        });
    }
    let counters: [(&'static str, &str, Read); 6] = [
        ("tokenrouter:committed_tokens_total", "Tokens a model wrote into answers.", |m| &m.committed),
        ("tokenrouter:launches_total", "Steps launched.", |m| &m.launches),
        ("tokenrouter:steps_total", "Steps that came back.", |m| &m.steps),
        ("tokenrouter:step_failures_total", "Steps that failed as a whole.", |m| &m.failures),
        (
            "tokenrouter:batch_rows_total",
            "Rows of the steps launched: divided by launches, the batch size.",
            |m| &m.rows,
        ),
        ("tokenrouter:fed_tokens_total", "Tokens fed by the steps launched.", |m| &m.fed),
    ];
    for (name, help, read) in counters {
        page.counter(name, help);
        models.iter().for_each(|(model, status)| {
            page.sample(&[("model", model)], get(read(status)));
        });
    }
    page.counter("tokenrouter:busy_seconds_total", "Time a model had a step in flight.");
    for (model, status) in models {
        page.float(&[("model", model)], get(&status.busy) as f64 * 1e-9);
    }
    page.counter(
        "tokenrouter:discarded_tokens_total",
        "Candidates dropped by the router, of ended requests.",
    );
    for ((model, _), count) in models.iter().zip(traffic.discarded) {
        page.sample(&[("model", model)], count);
    }
    page.counter(
        "tokenrouter:cached_tokens_total",
        "Prompt tokens a model found in its cache, of ended requests.",
    );
    for ((model, _), count) in models.iter().zip(traffic.cached) {
        page.sample(&[("model", model)], count);
    }
}

fn scheduling(page: &mut Page, status: &EngineStatus, models: &[(&str, &ModelStatus)]) {
    page.counter("tokenrouter:handoffs_total", "Requests handed from one model to another.");
    for (from, (from_name, model)) in models.iter().enumerate() {
        for (to, (to_name, _)) in models.iter().enumerate().filter(|(to, _)| *to != from) {
            page.sample(&[("from", from_name), ("to", to_name)], get(&model.handoffs[to]));
        }
    }
    page.counter("tokenrouter:guard_launches_total", "Launches only because a request had waited too long.")
        .sample(&[], get(&status.guard_launches));
    let fed: u64 = models.iter().map(|(_, model)| get(&model.fed)).sum();
    let buckets =
        (0..=FED.len()).map(|bucket| models.iter().map(|(_, model)| get(&model.by_fed[bucket])).sum());
    let sizes = Histogram::with(FED, buckets, fed as f64);
    page.histogram("vllm:iteration_tokens_total", "Tokens fed by a step, over all models.", &sizes);
}

/// The planner's view. What is not known yet has no sample.
fn plan(page: &mut Page, planner: &PlannerStatus, names: &[&str]) {
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
    let rates: [(&'static str, &str, Option<f64>); 2] = [
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
    ];
    for (name, help, rate) in rates {
        page.gauge(name, help);
        rate.into_iter().for_each(|rate| {
            page.float(&[], rate);
        });
    }
    estimates(page, planner, names);
}

fn estimates(page: &mut Page, planner: &PlannerStatus, names: &[&str]) {
    let models = || names.iter().zip(&planner.models);
    page.gauge(
        "tokenrouter:routing_probability",
        "Estimated share of a model's requests that go to each model.",
    );
    for (from, model) in models().filter(|(_, model)| model.decisions > 0) {
        for (to, share) in names.iter().zip(&model.routing) {
            page.float(&[("from", from), ("to", to)], *share);
        }
    }
    page.gauge(
        "tokenrouter:step_seconds",
        "Estimated time of a step of so many rows while no other model runs.",
    );
    for (name, model) in models() {
        for (rows, time) in &model.latency {
            page.float(&[("model", name), ("rows", &rows.to_string())], *time as f64 * 1e-9);
        }
    }
    page.gauge("tokenrouter:slowdown", "Estimated factor on a model's step time while others run.");
    for (name, model) in models().filter(|(_, model)| model.steps > 0) {
        page.float(&[("model", name)], model.slowdown);
    }
}
