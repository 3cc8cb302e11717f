//! A policy changes when steps run, never what they say: the token streams of `equality.rs` under every policy, with
//! requests routed and pinned to either model side by side.

mod support;

use std::collections::HashMap;

use serde_json::json;
use support::asking::{MAX_TOKENS, Mode, ask_all};
use support::process::{ServerProcess, demo_config};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{problems, rendered};

const PROMPTS: usize = 12;
const CLIENTS: usize = 8;

/// The `[scheduling]` section of every policy, sensible and absurd.
const POLICIES: [&str; 9] = [
    "policy = \"lookahead\"",
    "policy = \"lookahead\"\nalpha = 3.0",
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
