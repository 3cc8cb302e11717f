//! A policy changes when steps run, never what they say: the token streams of `equality.rs` under every policy, with
//! requests routed and pinned to either model side by side. So does a handoff as a new request: it costs work only.

mod support;

use std::collections::HashMap;

use serde_json::json;
use support::asking::{MAX_TOKENS, Mode, ask_all};
use support::engine::{demo_config as pair, request, route as named, run_all, start, stop};
use support::process::{ServerProcess, demo_config};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{problems, rendered};
use tokenrouter_engine::{EngineConfig, EngineRequest};
use tokenrouter_scheduler::Handoff;
use tokenrouter_scheduler::router::{ParamValue, Registry};

const PROMPTS: usize = 12;
const CLIENTS: usize = 8;

/// The `[scheduling]` section of every policy, sensible and absurd.
const POLICIES: [&str; 11] = [
    "policy = \"auto\"",
    "policy = \"lookahead\"",
    "policy = \"lookahead\"\nalpha = 3.0",
    "policy = \"lookahead\"\nhandoff = \"readmit\"",
    "policy = \"eager\"",
    "policy = \"threshold\"\nthreshold = [1, [1, 2, 2, 3, 3, 4, 4, 5]]",
    "policy = \"threshold\"\nthreshold = [4000, 4000]",
    "policy = \"threshold+hold\"\nthreshold = 4\nbeside = 2",
    "policy = \"exclusive\"\nthreshold = 3",
    "policy = \"model-sync\"",
    "policy = \"step-sync\"",
];

/// Every fourth prompt is pinned to the large model, every fourth to the small one, the others are routed.
fn route(prompt: usize, routed: RefRouter) -> (&'static str, RefRouter) {
    match prompt % 4 {
        1 => ("large", RefRouter::Single(1)),
        3 => ("small", RefRouter::Single(0)),
        _ => ("demo", routed),
    }
}

fn check(router_section: &str, routed: RefRouter) {
    let prompts: Vec<String> = problems(PROMPTS).iter().map(|p| rendered(&p.prompt)).collect();
    let reference = Reference::demo();
    let mode = Mode::Sampled;
    let mut expected: HashMap<usize, (Vec<u32>, Vec<u8>)> = HashMap::new();
    for policy in POLICIES {
        let server =
            ServerProcess::start(&demo_config(&format!("{router_section}\n[scheduling]\n{policy}"), ""));
        let fields = |i: usize| {
            let mut fields = mode.fields(i);
            fields["model"] = json!(route(i, routed).0);
            fields
        };
        let answers = ask_all(&server, &prompts, CLIENTS, fields);
        assert_eq!(answers.len(), PROMPTS, "{policy}");
        for (i, asked) in answers {
            let wanted = expected.entry(i).or_insert_with(|| {
                let request = RefRequest {
                    prompt: &asked.prompt,
                    max_tokens: MAX_TOKENS,
                    sampling: mode.params(),
                    seed: 11 + i as u64,
                    choice: 0,
                };
                reference.run(route(i, routed).1, &request)
            });
            assert_eq!(&asked.answer, wanted, "{policy}, prompt {i}");
        }
        server.stop();
    }
    let by_both = |i: &usize| [0, 1].iter().all(|writer| expected[i].1.contains(writer));
    assert!((0..PROMPTS).filter(by_both).count() >= 3, "both models wrote");
}

#[test]
fn r_stitch_equals_the_reference_under_every_policy() {
    check("name = \"r-stitch\"\nthreshold = 0.03", RefRouter::RStitch(0.03));
}

#[test]
fn fixed_equals_the_reference_under_every_policy() {
    check("name = \"fixed\"\nfraction = 0.3", RefRouter::Fixed(0.3));
}

/// Prompts of 20 to 80 tokens that the demo tokenizer knows, without a pattern.
fn ids(prompt: usize) -> Vec<u32> {
    let token = |i: usize| 20 + ((prompt * 7_919 + i * 104_729) % 9_973 % 400) as u32;
    (0..20 + 5 * prompt).map(token).collect()
}

/// All requests at once; alternately by entropy and at a fixed share.
fn in_process(handoff: Handoff, prefix_cache: bool) -> HashMap<u64, support::engine::Outcome> {
    let routes = vec![
        named("entropy", "r-stitch", "threshold", ParamValue::Float(0.03)),
        named("share", "fixed", "fraction", ParamValue::Float(0.3)),
    ];
    let config = EngineConfig { handoff, prefix_cache, ..pair(routes) };
    let engine = start(&config, &Registry::builtin());
    let asked = |i: usize| EngineRequest {
        sampling: Mode::Sampled.params(),
        seed: 11 + i as u64,
        ..request(i as u64, &ids(i), (i % 2) as u16, 60)
    };
    let answers = run_all(&engine, (0..PROMPTS).map(asked).collect());
    stop(&engine);
    answers
}

#[test]
fn a_handoff_as_a_new_request_equals_the_reference() {
    let resumed = in_process(Handoff::Resume, true);
    let reference = Reference::demo();
    for prefix_cache in [true, false] {
        let readmitted = in_process(Handoff::Readmit, prefix_cache);
        for i in 0..PROMPTS {
            let router = [RefRouter::RStitch(0.03), RefRouter::Fixed(0.3)][i % 2];
            let asked = RefRequest {
                prompt: &ids(i),
                max_tokens: 60,
                sampling: Mode::Sampled.params(),
                seed: 11 + i as u64,
                choice: 0,
            };
            let (was, is) = (&resumed[&(i as u64)], &readmitted[&(i as u64)]);
            let streams = [was, is].map(|o| (o.tokens.clone(), o.writers.clone()));
            let expected = reference.run(router, &asked);
            assert_eq!(streams, [expected.clone(), expected], "prompt {i}, prefix cache {prefix_cache}");
            let account =
                |o: &support::engine::Outcome| (o.usage.committed, o.usage.discarded, o.usage.handoffs);
            assert_eq!(account(is), account(was), "prompt {i}");
            // What lies beyond the full pages is fed again at every return, and without the cache everything is.
            assert!(is.usage.handoffs < 2 || is.usage.prefill[0] > was.usage.prefill[0], "prompt {i}");
        }
        let moved: u32 = readmitted.values().map(|o| o.usage.handoffs).sum();
        assert!(moved >= PROMPTS as u32 * 4, "{moved} handoffs");
    }
}
