//! Planning in the running server: it changes when steps run and what the status pages say, never a token.

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::asking::{Asked, Mode, ask_all};
use support::engine::{demo_config as engine_config, request, route, run_all, start, stop};
use support::http::get;
use support::metrics::Scrape;
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered};
use tokenrouter_engine::EngineConfig;
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{PlannerConfig, Policy};

const PROMPTS: usize = 24;
const CLIENTS: usize = 8;

fn server(scheduling: &str) -> ServerProcess {
    let router = format!("name = \"r-stitch\"\nthreshold = 0.03\n[scheduling]\n{scheduling}");
    ServerProcess::start(&demo_config(&router, ""))
}

/// Answers of a crowd, every fourth pinned to the large model.
fn ask(server: &ServerProcess) -> HashMap<usize, Asked> {
    let prompts: Vec<String> = problems(PROMPTS).iter().map(|p| rendered(&p.prompt)).collect();
    let fields = |i: usize| {
        let mut fields = Mode::Sampled.fields(i);
        fields["ignore_eos"] = json!(true);
        if i % 4 == 3 {
            fields["model"] = json!("large");
        }
        fields
    };
    ask_all(server, &prompts, CLIENTS, fields)
}

/// Asks for the status until it satisfies; a minute without it is a failure.
fn status_when(server: &ServerProcess, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let status = get(server.http, "/v1/scheduling").json();
        if holds(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{what}: {status}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn auto_answers_as_lookahead_does_and_says_what_it_plans() {
    let plain = server("policy = \"lookahead\"");
    let expected = ask(&plain);
    let status = get(plain.http, "/v1/scheduling").json();
    assert_eq!(status["plan"], Value::Null, "a fixed policy does not plan");
    plain.stop();

    let auto = server("p99_inter_token_ms = 5000");
    let fresh = get(auto.http, "/v1/scheduling").json();
    assert!(fresh["policy"].as_str().is_some_and(|text| text.starts_with("auto: ")), "{fresh}");
    assert!(fresh["in_force"].as_str().is_some_and(|text| text.starts_with("lookahead: ")), "{fresh}");
    assert_eq!(fresh["plan"]["p99_inter_token_limit_ms"], 5000.0);
    for round in 0..2 {
        let answers = ask(&auto);
        assert_eq!(answers.len(), expected.len());
        for (i, asked) in answers {
            assert_eq!(asked.answer, expected[&i].answer, "round {round}, prompt {i}");
        }
    }
    let status = status_when(&auto, "a round of planning", |status| {
        status["plan"]["rounds"].as_u64().is_some_and(|rounds| rounds > 0)
    });
    assert_eq!(status["plan"]["last_error"], Value::Null, "{status}");
    let small = &status["models"][0]["estimates"];
    let share = |to: &str| small["routing"][to].as_f64().unwrap_or_else(|| panic!("{status}"));
    assert!(share("large") > 0.0 && (share("small") + share("large") - 1.0).abs() < 1e-9, "{status}");
    assert!(small["step_ms_by_rows"]["1"].as_f64().is_some_and(|ms| ms > 0.0), "{status}");

    let page = Scrape::new(auto.http);
    assert!(
        page.get("tokenrouter:plan_rounds_total") >= status["plan"]["rounds"].as_f64().expect("a number")
    );
    assert!(page.get("tokenrouter:plan_active") <= 1.0);
    let to_large = page.get("tokenrouter:routing_probability{from=\"small\",to=\"large\"}");
    assert!(to_large > 0.0 && to_large < 1.0, "{to_large}");
    for model in ["small", "large"] {
        assert!(page.get(&format!("tokenrouter:slowdown{{model=\"{model}\"}}")) >= 1.0);
        assert!(
            page.get(&format!("tokenrouter:estimated_step_seconds{{model=\"{model}\",rows=\"1\"}}")) > 0.0
        );
    }
    auto.stop();
}

#[test]
fn without_traffic_there_is_no_plan() {
    let auto = server("policy = \"auto\"");
    std::thread::sleep(Duration::from_millis(300));
    let status = get(auto.http, "/v1/scheduling").json();
    assert_eq!(
        (&status["plan"]["rounds"], &status["plan"]["active"]),
        (&json!(0), &json!(false)),
        "{status}"
    );
    let page = Scrape::new(auto.http);
    assert_eq!(page.get("tokenrouter:plans_total") + page.get("tokenrouter:plan_rounds_total"), 0.0);
    let shares = page.family("tokenrouter:routing_probability");
    assert!(shares.len() == 4 && shares.iter().all(|(_, share)| *share == 0.0), "{shares:?}");
    auto.stop();
}

/// Step-sync is never the best plan, and here any other is worth the change: so a plan must come into force.
#[test]
fn a_plan_is_installed_and_shown_and_changes_no_token() {
    let routes = vec![route("pair", "fixed", "fraction", ParamValue::Float(0.3))];
    let plain = EngineConfig { policy: Policy::StepSync, ..engine_config(routes) };
    let planner = PlannerConfig { min_gain: -1.0, ..PlannerConfig::default() };
    let planned = EngineConfig { planner: Some(planner), ..plain.clone() };
    let [plain, planned] = [plain, planned].map(|config| start(&config, &Registry::builtin()));
    let ask = |client: u64| {
        let mut asked = request(client, &[20 + client as u32, 40, 60], 0, 200);
        (asked.ignore_eos, asked.seed) = (true, client);
        asked
    };
    let expected = run_all(&plain, (0..8).map(ask).collect());
    let until = Instant::now() + Duration::from_secs(60);
    let mut rounds = 0;
    while planned.status.planner().plans == 0 {
        assert!(Instant::now() < until, "no plan after {rounds} rounds: {:?}", planned.status.planner());
        let got = run_all(&planned, (0..8).map(ask).collect());
        for (client, outcome) in &expected {
            assert_eq!((&outcome.tokens, &outcome.writers), (&got[client].tokens, &got[client].writers));
        }
        rounds += 1;
    }
    let status = planned.status.planner();
    assert!(status.enabled && status.rounds >= status.plans && status.error.is_none(), "{status:?}");
    assert!(status.fallbacks > 0 || status.plan_len >= 8, "{status:?}");
    stop(&plain);
    stop(&planned);
}
