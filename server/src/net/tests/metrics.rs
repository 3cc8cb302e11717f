//! `/metrics` with a scripted engine: what the network thread counts, and what it reads.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::{Client, Harness, get, post};

/// The samples of a page by name and labels, `model_name` left out.
fn scrape(client: &mut Client) -> HashMap<String, f64> {
    client.send(get("/metrics"));
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.replace("{model_name=\"pair\"}", "").replace("model_name=\"pair\",", "");
        assert!(!name.contains("model_name"), "{line}");
        (name, value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    let lines: Vec<_> = answer.body.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
    let samples: HashMap<String, f64> = lines.iter().cloned().collect();
    assert_eq!(samples.len(), lines.len(), "no sample occurs twice");
    samples
}

/// What says something about a server that has done nothing.
fn is_never_zero(name: &str) -> bool {
    let parts =
        ["_info", "process_", "batch_threshold", "router_threshold", "state=\"ready\"", "\"/metrics\""];
    parts.iter().any(|part| name.contains(part))
}

#[test]
fn every_family_has_help_and_type_once_and_starts_at_zero() {
    let server = Harness::new();
    let mut client = server.client();
    client.send(get("/metrics"));
    let body = client.answer().body;
    let mut families: Vec<&str> = Vec::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!families.contains(&name) && help.ends_with('.'), "{line}");
            families.push(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(families.last(), Some(&name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total") && name != "vllm:iteration_tokens_total");
        } else {
            assert!(line.starts_with(families.last().unwrap()), "{line}");
        }
    }
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:iteration_tokens_total",
        "vllm:gpu_cache_usage_perc",
        "vllm:time_per_output_token_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_max_num_generation_tokens",
        "vllm:cache_config_info",
        "http_requests_total",
        "http_request_duration_seconds",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "tokenrouter:committed_tokens_total",
        "tokenrouter:discarded_tokens_total",
        "tokenrouter:handoffs_total",
        "tokenrouter:routed_fraction",
        "tokenrouter:pending_requests",
        "tokenrouter:admission_wait_seconds",
        "tokenrouter:batch_size",
        "tokenrouter:batch_threshold",
        "tokenrouter:step_seconds",
        "tokenrouter:graph_fallback_total",
        "tokenrouter:kv_blocks",
        "tokenrouter:nonfinite_logits_total",
        "tokenrouter:peer_errors_total",
        "tokenrouter:last_step_age_seconds",
    ] {
        assert!(families.contains(&name), "{name}");
    }
    let samples = scrape(&mut client);
    let busy: Vec<_> =
        samples.iter().filter(|(name, value)| !is_never_zero(name) && **value != 0.0).collect();
    assert!(busy.is_empty(), "{busy:?}");
}

#[test]
fn ends_refusals_and_times_are_counted() {
    let server = Harness::new();
    let mut client = server.client();
    assert_eq!(server.complete("{\"prompt\":\"a\",\"n\":2,\"max_tokens\":5}").status, 200);
    assert_eq!(server.complete("{\"prompt\":\"hang-late\",\"stop_after\":1}").status, 200);
    assert_eq!(server.complete("{\"prompt\":\"fail\"}").status, 500);
    assert_eq!(server.complete("{\"prompt\":\"refuse-full\"}").status, 429);
    assert_eq!(server.complete("{\"prompt\":\"refuse-context\"}").status, 400);
    assert_eq!(server.complete("{\"prompt\":").status, 400);
    // A client that leaves is counted too, when the engine has let go of its request.
    let mut gone = server.client();
    gone.send(post("{\"prompt\":\"hang\"}"));
    server.engine.wait_for("submit hang", 2);
    drop(gone);
    server.engine.wait_for("cancel", 1);
    let aborted = "vllm:request_success_total{finished_reason=\"abort\"}";
    let mut samples = scrape(&mut client);
    for _ in 0..1000 {
        if samples[aborted] == 1.0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        samples = scrape(&mut client);
    }
    let expected = [
        (aborted, 1.0),
        ("vllm:request_success_total{finished_reason=\"length\"}", 2.0),
        ("vllm:request_success_total{finished_reason=\"stop\"}", 1.0),
        ("vllm:request_success_total{finished_reason=\"error\"}", 1.0),
        ("tokenrouter:requests_refused_total{reason=\"queue_full\"}", 1.0),
        ("tokenrouter:requests_refused_total{reason=\"invalid\"}", 2.0),
        ("tokenrouter:requests_refused_total{reason=\"error\"}", 0.0),
        ("vllm:time_to_first_token_seconds_count", 3.0),
        ("vllm:inter_token_latency_seconds_count", 8.0),
        ("vllm:e2e_request_latency_seconds_count", 5.0),
        ("vllm:e2e_request_latency_seconds_bucket{le=\"+Inf\"}", 5.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name}");
    }
}

#[test]
fn gauges_show_the_engine_at_the_time_of_the_scrape() {
    let server = Harness::new();
    let mut client = server.client();
    let status = &server.engine.status;
    for (pages, free, cached, used, share) in
        [(16, 16, 4, 0.0, 0.0), (16, 4, 1, 12.0, 0.75), (0, 0, 0, 0.0, 0.0)]
    {
        status.pages_total.store(pages, Relaxed);
        status.pages_free.store(free, Relaxed);
        status.pages_cached.store(cached, Relaxed);
        status.running.store(free, Relaxed);
        status.waiting.store(cached, Relaxed);
        status.models[0].pending.store(cached, Relaxed);
        let samples = scrape(&mut client);
        assert_eq!(samples["vllm:kv_cache_usage_perc"], share);
        let blocks = |state: &str| {
            samples[format!("tokenrouter:kv_blocks{{model=\"small\",state=\"{state}\"}}").as_str()]
        };
        assert_eq!((blocks("used"), blocks("free")), (used, (free - cached) as f64));
        assert_eq!(samples["vllm:num_requests_running"], free as f64);
        assert_eq!(samples["vllm:num_requests_waiting"], cached as f64);
        assert_eq!(samples["tokenrouter:pending_requests{model=\"small\"}"], cached as f64);
    }
}
