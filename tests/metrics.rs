//! `/metrics` and `/v1/scheduling` of the real server: the numbers agree with what its clients were told.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::{get, post};
use support::metrics::Scrape;
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered, root, skip};

fn server(scheduling: &str) -> ServerProcess {
    let router = format!("name = \"r-stitch\"\nthreshold = 0.03\n{scheduling}");
    ServerProcess::start(&demo_config(&router, ""))
}

#[test]
fn the_numbers_agree_with_the_answers() {
    let server = server("");
    let bodies: Vec<Value> = problems(8)
        .iter()
        .map(|problem| {
            let prompt = rendered(&problem.prompt);
            json!({"prompt": prompt, "max_tokens": 60, "temperature": 0, "token_routing": {"return": "summary"}})
        })
        .collect();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked = bodies.iter().map(|body| scope.spawn(|| post(server.http, "/v1/completions", body)));
        let asked: Vec<_> = asked.collect();
        // A scraper as impatient as any: every page is whole, and no counter runs backwards.
        let mut before = 0.0;
        while !asked.iter().all(|thread| thread.is_finished()) {
            let now = Scrape::new(server.http).get("vllm:generation_tokens_total");
            assert!(now >= before, "{before} and then {now}");
            before = now;
        }
        asked.into_iter().map(|thread| thread.join().expect("an answer").json()).collect()
    });
    let sum = |path: &str| -> f64 {
        answers
            .iter()
            .map(|a| a.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {a}")))
            .sum()
    };
    let page = Scrape::new(server.http);
    let count = answers.len() as f64;
    let ended: f64 = page.family("vllm:request_success_total").iter().map(|(_, value)| value).sum();
    assert_eq!(ended, count);
    assert_eq!(page.get("vllm:generation_tokens_total"), sum("/usage/completion_tokens"));
    assert_eq!(page.get("vllm:prompt_tokens_total"), sum("/usage/prompt_tokens"));
    assert_eq!(page.get("vllm:prefix_cache_hits_total"), sum("/usage/prompt_tokens_details/cached_tokens"));
    for (m, model) in ["small", "large"].iter().enumerate() {
        for (metric, field) in [("committed", "committed"), ("discarded", "discarded")] {
            let name = format!("tokenrouter:{metric}_tokens_total{{model=\"{model}\"}}");
            assert_eq!(page.get(&name), sum(&format!("/token_routing/models/{m}/{field}_tokens")), "{name}");
        }
        let of = |metric: &str| page.get(&format!("tokenrouter:{metric}{{model=\"{model}\"}}"));
        assert!(of("steps_total") > 0.0 && of("steps_total") == of("launches_total"));
        assert!(
            of("batch_rows_total") >= of("launches_total")
                && of("fed_tokens_total") >= of("batch_rows_total")
        );
        assert!(of("busy_seconds_total") > 0.0);
        assert_eq!(of("ready_requests") + of("running_requests") + of("pending_requests"), 0.0);
    }
    let switches = sum("/token_routing/switches");
    let handoffs: f64 = page.family("tokenrouter:handoffs_total").iter().map(|(_, value)| value).sum();
    assert!(handoffs > 0.0 && handoffs == switches, "{handoffs} handoffs, {switches} switches");
    assert_eq!(page.get("vllm:time_to_first_token_seconds_count"), count);
    assert_eq!(page.get("vllm:inter_token_latency_seconds_count"), sum("/usage/completion_tokens") - count);
    assert_eq!(page.get("vllm:e2e_request_latency_seconds_count"), count);
    assert_eq!(page.get("tokenrouter:routed_fraction_count"), count);
    assert_eq!(page.get("vllm:iteration_tokens_total_count"), {
        page.family("tokenrouter:launches_total").iter().map(|(_, value)| value).sum::<f64>()
    });
    assert_eq!(page.get("vllm:num_requests_running") + page.get("vllm:num_requests_waiting"), 0.0);
    assert_eq!(page.get("vllm:kv_cache_usage_perc"), 0.0);
    server.stop();
}

#[test]
fn the_status_endpoint_says_how_steps_are_scheduled() {
    let server = server("[scheduling]\npolicy = \"threshold\"\nthreshold = [1, 3]\nhandoff = \"readmit\"");
    let fresh = get(server.http, "/v1/scheduling").json();
    assert_eq!(fresh["policy"], "threshold: a model launches at small 1, large 3 ready requests");
    assert_eq!(
        (&fresh["models"][0]["name"], &fresh["models"][1]["step_ms"]),
        (&json!("small"), &Value::Null)
    );
    let prompt = rendered(&problems(1)[0].prompt);
    post(server.http, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 80, "temperature": 0}));
    let used = get(server.http, "/v1/scheduling").json();
    for (model, other) in [(0, "large"), (1, "small")] {
        let model = &used["models"][model];
        for field in ["steps", "step_ms", "rows_per_step", "tokens_fed_per_step"] {
            assert!(model[field].as_f64().is_some_and(|n| n > 0.0), "{field} in {used}");
        }
        assert!(model["handoffs_to"][other].as_u64().is_some_and(|n| n > 0), "{used}");
    }
    assert_eq!((&used["requests"]["running"], &used["requests"]["waiting"]), (&json!(0), &json!(0)));
    // The scheduler's own estimates follow, in a snapshot that is taken a few times per second.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let estimates = get(server.http, "/v1/scheduling").json()["models"][1]["estimates"].clone();
        let above_zero = |value: &Value| value.as_f64().is_some_and(|number| number > 0.0);
        if above_zero(&estimates["step_ms_by_rows"]["1"]) && above_zero(&estimates["routing"]["small"]) {
            break;
        }
        assert!(Instant::now() < until, "{estimates} after {used}");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.stop();
}

/// Prometheus' own parser reads the page, and the sums agree after ends of every kind: with and without a stop string, by a
/// client that leaves, alone and routed.
#[test]
fn the_reference_parser_reads_the_page_and_the_sums_agree() {
    let Some(python) = std::env::var_os("TOKENROUTER_CLIENT_PYTHON") else {
        return skip("TOKENROUTER_CLIENT_PYTHON names no Python with tests/clients/requirements.txt");
    };
    let server = server("");
    let prompt = rendered(&problems(1)[0].prompt);
    let more = [
        json!({}),
        json!({"model": "small", "n": 2, "seed": 1, "temperature": 1}),
        json!({"stop": ["a"], "stream": true}),
        json!({"stop": ["."], "max_tokens": 3}),
    ];
    for extra in more {
        let mut body = json!({"prompt": prompt, "max_tokens": 60, "temperature": 0});
        let fields = body.as_object_mut().expect("an object");
        fields.extend(extra.as_object().expect("an object").clone());
        assert_eq!(post(server.http, "/v1/completions", &body).status, 200);
    }
    assert_eq!(post(server.http, "/v1/completions", &json!({"prompt": []})).status, 400);
    let body = json!({"prompt": prompt, "max_tokens": 400, "ignore_eos": true, "stream": true}).to_string();
    let mut gone = support::http::connect(server.http);
    let asked = support::http::request("POST", "/v1/completions", body.as_bytes());
    std::io::Write::write_all(&mut gone, &asked).expect("the server reads");
    std::io::Read::read_exact(&mut gone, &mut [0; 64]).expect("an answer begins");
    drop(gone);
    let until = Instant::now() + Duration::from_secs(60);
    let ended = |page: &Scrape| -> f64 {
        page.family("vllm:request_success_total").iter().map(|(_, value)| value).sum()
    };
    while ended(&Scrape::new(server.http)) < 6.0 {
        assert!(Instant::now() < until, "the client that left is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = std::process::Command::new(python)
        .arg(root().join("tests/clients/metrics_page.py"))
        .arg(format!("http://{}", server.http))
        .output()
        .expect("python runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let page = Scrape::new(server.http);
    assert_eq!(
        page.get("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"4xx\"}"),
        1.0
    );
    assert_eq!(
        page.get("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"}"),
        5.0
    );
    server.stop();
}
