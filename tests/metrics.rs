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

/// Writers one by one from `spans`.
fn expanded(spans: &Value) -> Vec<u64> {
    let run = |run: &Value| {
        let (model, tokens) = (run[0].as_u64().expect("a model"), run[1].as_u64().expect("a count"));
        std::iter::repeat_n(model, tokens as usize)
    };
    spans.as_array().expect("runs").iter().flat_map(run).collect()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().map_or(Vec::new(), |list| list.iter().map(|n| n.as_u64().expect("a number")).collect())
}

#[test]
fn who_wrote_what_adds_up_in_one_piece_and_in_a_stream() {
    let server = server("");
    let prompt = rendered(&problems(2)[1].prompt);
    let body = json!({"prompt": prompt, "max_tokens": 90, "temperature": 0, "return_token_ids": true,
        "token_routing": {"return": "tokens"}});
    let asked = Instant::now();
    let whole = post(server.http, "/v1/completions", &body).json();
    let spent = asked.elapsed().as_secs_f64() * 1e3;
    let (choice, routing) = (&whole["choices"][0], &whole["token_routing"]);
    let writers = numbers(&choice["token_routing"]["model_index"]);
    assert_eq!(writers.len(), numbers(&choice["token_ids"]).len());
    assert_eq!(writers, expanded(&choice["token_routing"]["spans"]));
    assert_eq!(Some(writers.len() as u64), whole["usage"]["completion_tokens"].as_u64());
    let sum = |field: &str| -> f64 {
        routing["models"]
            .as_array()
            .expect("models")
            .iter()
            .map(|m| m[field].as_f64().expect("a number"))
            .sum()
    };
    for (m, model) in routing["models"].as_array().expect("models").iter().enumerate() {
        let wrote = writers.iter().filter(|w| **w == m as u64).count() as u64;
        assert_eq!(model["committed_tokens"].as_u64(), Some(wrote), "{routing}");
        // Every row that sampled gave a candidate, and every token was fed or found.
        let candidates = wrote + model["discarded_tokens"].as_u64().expect("a number");
        let sampled =
            model["fed_tokens"].as_u64().expect("a number") - model["prefill_tokens"].as_u64().expect("one");
        assert_eq!(candidates, sampled, "{routing}");
        assert!(
            model["compute_ms"].as_f64() > Some(0.0) && model["pending_ms"].as_f64() > Some(0.0),
            "{routing}"
        );
    }
    let routed = writers.iter().filter(|w| **w != 0).count() as f64;
    assert_eq!(routing["routed_tokens"].as_f64(), Some(routed));
    assert_eq!(routing["routed_fraction"].as_f64(), Some(routed / writers.len() as f64));
    let engine = sum("queue_ms") + sum("compute_ms") + routing["waiting_ms"].as_f64().expect("a number");
    assert!(engine > 0.0 && engine <= spent, "{engine} of {spent}: {routing}");
    assert_eq!((&routing["threshold"], &routing["threshold_from"]), (&json!(0.03), &json!("config")));
    assert!(routing.get("cost").is_none() && routing.get("degraded").is_none());

    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = post(server.http, "/v1/completions", &streamed).events();
    let pieces = |field: &str| -> Vec<u64> {
        let piece = |event: &Value| numbers(&event["choices"][0]["token_routing"][field]);
        events.iter().flat_map(piece).collect()
    };
    assert_eq!(pieces("model_index"), writers);
    let spans: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["token_routing"]["spans"]).collect();
    let told: Vec<_> = spans.iter().filter(|spans| spans.is_array()).collect();
    assert!(told.len() == 1 && expanded(told[0]) == writers, "{told:?}");
    let last = events.last().expect("events");
    for field in ["routed_tokens", "routed_fraction", "switches"] {
        assert_eq!(last["token_routing"][field], routing[field], "{field}");
    }
    server.stop();
}

#[test]
fn prices_make_a_cost() {
    let priced = demo_config("name = \"r-stitch\"\nthreshold = 0.03", "")
        .replace("threads = 1", "threads = 1\nprice = 2.5");
    let server = ServerProcess::start(&priced);
    let body = json!({"prompt": rendered(&problems(1)[0].prompt), "max_tokens": 20, "temperature": 0,
        "token_routing": {"return": "summary"}});
    let routing = post(server.http, "/v1/completions", &body).json()["token_routing"].clone();
    let fed: f64 =
        routing["models"].as_array().expect("models").iter().filter_map(|m| m["fed_tokens"].as_f64()).sum();
    let total = routing["cost"]["total"].as_f64().expect("a cost");
    assert!((total - fed * 2.5e-6).abs() < 1e-12, "{routing}");
    server.stop();
}

#[test]
fn the_log_has_a_line_per_request_and_per_model_while_there_is_work() {
    let lines = "[log]\nformat = \"json\"\nthroughput_every_s = 0.05\nprompts = true";
    let server = ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", lines));
    let prompt = rendered(&problems(1)[0].prompt);
    let body = json!({"prompt": prompt, "max_tokens": 60, "temperature": 0});
    let answer = post(server.http, "/v1/completions", &body).json();
    // Long enough for a line after the end, and for several that must not come.
    std::thread::sleep(Duration::from_millis(400));
    let log = server.stop();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let of =
        |message: &str| -> Vec<&Value> { lines.iter().filter(|line| line["message"] == message).collect() };
    let requests = of("request");
    assert_eq!(requests.len(), 1, "{log}");
    assert_eq!(requests[0]["completion_tokens"], answer["usage"]["completion_tokens"]);
    assert_eq!(of("prompt")[0]["text"], prompt);
    let shown = of("answer")[0]["text"].as_str().expect("text").to_owned();
    assert!(shown.starts_with(answer["choices"][0]["text"].as_str().expect("text")), "{shown}");
    let watched = of("throughput");
    let large = watched.iter().filter(|line| line["model"] == "large").count();
    assert!(!watched.is_empty() && watched.len() == 2 * large, "one line for each model: {log}");
    let ended = requests[0]["time"].as_str().expect("a time");
    let after = watched.iter().filter(|line| line["time"].as_str() > Some(ended)).count();
    assert!(after <= 2, "silent when idle: {log}");
}
