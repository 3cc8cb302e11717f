//! The page, and the families that are about requests, the cache and the process.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tokenrouter_engine::{EngineInfo, EngineStatus, ModelStatus};
use tokenrouter_scheduler::PAGE_TOKENS;

use super::http::CLASSES;
use super::process::Process;
use super::text::Page;
use super::traffic::{REASONS, REFUSALS, Traffic};
use super::{models, plan};

/// What the page is made of.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// Served name of the deployment.
    pub(crate) name: &'a str,
    /// Start of the process in Unix seconds.
    pub(crate) started: u64,
    pub(crate) info: &'a EngineInfo,
    pub(crate) status: &'a EngineStatus,
    pub(crate) traffic: &'a Traffic,
}

impl<'a> Facts<'a> {
    /// The models by name.
    pub(super) fn models(&self) -> Vec<(&'a str, &'a ModelStatus)> {
        let names = self.info.models.iter().map(|model| model.name.as_str());
        names.zip(&self.status.models).collect()
    }
}

/// The page.
pub(crate) fn page(facts: &Facts<'_>) -> Vec<u8> {
    let mut page = Page::new(facts.name);
    let models = facts.models();
    requests(&mut page, facts);
    times(&mut page, facts.traffic);
    cache(&mut page, facts, &models);
    models::per_model(&mut page, facts, &models);
    models::steps(&mut page, &models);
    models::edges(&mut page, facts.traffic, &models);
    page.counter("tokenrouter:guard_launches_total", "Launches only because a request had waited too long.")
        .sample(&[], get(&facts.status.guard_launches));
    plan::plan(&mut page, facts.info, &facts.status.planner());
    http(&mut page, facts.traffic);
    process(&mut page, facts.started);
    page.gauge("tokenrouter:build_info", "Always 1; the version is a label.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.into_bytes()
}

pub(super) fn get(value: &AtomicU64) -> u64 {
    value.load(Relaxed)
}

fn requests(page: &mut Page, facts: &Facts<'_>) {
    let Facts { status, traffic, .. } = *facts;
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
    page.counter("vllm:generation_tokens_total", "Tokens of answers.")
        .sample(&[], traffic.generation_tokens());
}

fn times(page: &mut Page, traffic: &Traffic) {
    let first = &traffic.first_token;
    page.histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", first);
    for name in ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"] {
        page.histogram(name, "Between two tokens of a request.", &traffic.inter_token);
    }
    let families = [
        ("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", &traffic.whole),
        (
            "vllm:request_queue_time_seconds",
            "From a request's place in the queue to admission.",
            &traffic.queue,
        ),
        ("vllm:request_prefill_time_seconds", "From admission to the first token.", &traffic.prefill),
        ("vllm:request_decode_time_seconds", "From the first token to the end.", &traffic.decode),
        ("vllm:request_inference_time_seconds", "From admission to the end.", &traffic.inference),
        ("vllm:request_prompt_tokens", "Tokens of a prompt.", &traffic.prompt_len),
        ("vllm:request_generation_tokens", "Tokens of an answer.", &traffic.answer_len),
        ("vllm:request_max_num_generation_tokens", "Most tokens asked for.", &traffic.most_tokens),
        (
            "tokenrouter:routed_fraction",
            "Share of an answer that other models than its first one wrote.",
            &traffic.routed,
        ),
    ];
    for (name, help, histogram) in families {
        page.histogram(name, help, histogram);
    }
}

fn cache(page: &mut Page, facts: &Facts<'_>, models: &[(&str, &ModelStatus)]) {
    let Facts { status, traffic, .. } = *facts;
    let (free, cached, total) =
        (get(&status.pages_free), get(&status.pages_cached), get(&status.pages_total));
    // Read one after the other while the engine goes on: they may not add up for a moment.
    let used = total.saturating_sub(free);
    let share = used as f64 / total.max(1) as f64;
    for name in ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"] {
        page.gauge(name, "Largest share of a model's KV blocks that requests hold, 0 to 1.")
            .float(&[], share);
    }
    page.gauge("tokenrouter:kv_blocks", "KV blocks by state. A page is one block in every model's cache.");
    for (model, _) in models {
        for (state, count) in [("free", free.saturating_sub(cached)), ("used", used), ("cached", cached)] {
            page.sample(&[("model", model), ("state", state)], count);
        }
    }
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

fn http(page: &mut Page, traffic: &Traffic) {
    let counts = traffic.http.counts();
    page.counter("http_requests_total", "HTTP requests answered, by route template.");
    for ((handler, method), (counts, _)) in counts.iter() {
        for (class, count) in CLASSES.iter().zip(counts) {
            page.sample(&[("handler", handler), ("method", method), ("status", class)], count);
        }
    }
    page.histograms(
        "http_request_duration_seconds",
        "From an HTTP request's head to the last byte of its answer.",
    );
    for ((handler, method), (_, times)) in counts.iter() {
        page.one(&[("handler", handler), ("method", method)], times);
    }
}

fn process(page: &mut Page, started: u64) {
    let process = Process::look();
    page.gauge("process_resident_memory_bytes", "Memory in RAM.").sample(&[], process.resident_bytes);
    page.gauge("process_virtual_memory_bytes", "Address space.").sample(&[], process.virtual_bytes);
    page.gauge("process_open_fds", "Open file descriptors.").sample(&[], process.open_fds);
    page.gauge("process_max_fds", "Most open file descriptors.").sample(&[], process.max_fds);
    page.counter("process_cpu_seconds_total", "CPU time of all threads, user and system.")
        .float(&[], process.cpu_seconds);
    page.gauge("process_start_time_seconds", "Start, in Unix seconds.").sample(&[], started);
}
