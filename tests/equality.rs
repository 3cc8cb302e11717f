//! The main promise: for a seed, the tokens over HTTP are those of the slow sequential reference loop, token for
//! token, at any concurrency, greedy and sampled, for every router.

mod support;

use std::collections::HashMap;

use serde_json::json;
use support::asking::{MAX_TOKENS, Mode, ask, ask_all};
use support::process::{ServerProcess, demo_config};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{problems, rendered};

const PROMPTS: usize = 64;
const CONCURRENCY: [usize; 3] = [1, 4, 16];

fn check(router_section: &str, router: RefRouter) {
    let prompts: Vec<String> = problems(PROMPTS).iter().map(|p| rendered(&p.prompt)).collect();
    let server = ServerProcess::start(&demo_config(router_section, ""));
    let reference = Reference::demo();
    let recomputing = Reference { recompute: true, ..Reference::demo() };
    for mode in [Mode::Greedy, Mode::Sampled] {
        let mut expected: HashMap<usize, (Vec<u32>, Vec<u8>)> = HashMap::new();
        let mut by_peer = 0;
        let recomputed = match mode {
            Mode::Greedy => 0..2,
            Mode::Sampled => 2..4,
        };
        for clients in CONCURRENCY {
            let answers = ask_all(&server, &prompts, clients, |i| mode.fields(i));
            assert_eq!(answers.len(), PROMPTS);
            for (i, asked) in answers {
                let wanted = expected.entry(i).or_insert_with(|| {
                    let seed = 11 + i as u64;
                    let request = RefRequest {
                        prompt: &asked.prompt,
                        max_tokens: MAX_TOKENS,
                        sampling: mode.params(),
                        seed,
                        choice: 0,
                    };
                    let answer = reference.run(router, &request);
                    // Two prompts greedy and two sampled: every token from the whole prefix again.
                    if recomputed.contains(&i) {
                        assert_eq!(answer, recomputing.run(router, &request), "caches change nothing");
                    }
                    answer
                });
                let what = format!("{router:?} {mode:?} prompt {i} at concurrency {clients}");
                assert_eq!(&asked.answer, wanted, "{what}");
                by_peer += asked.answer.1.iter().filter(|w| **w == 1).count();
            }
        }
        assert!(by_peer > 0, "{router:?} {mode:?}: the large model wrote something");
    }
    server.stop();
}

#[test]
fn r_stitch_equals_the_reference() {
    check("name = \"r-stitch\"\nthreshold = 0.03", RefRouter::RStitch(0.03));
}

#[test]
fn fixed_equals_the_reference() {
    check("name = \"fixed\"\nfraction = 0.3", RefRouter::Fixed(0.3));
}

/// The member models answer under their own names, each as if it were alone.
#[test]
fn single_models_equal_the_reference() {
    let server = ServerProcess::start(&demo_config("name = \"single\"\nmodel = \"large\"", ""));
    let reference = Reference::demo();
    for (name, model) in [("small", 0), ("large", 1), ("demo", 1)] {
        for (i, problem) in problems(4).iter().enumerate() {
            let mut fields = Mode::Sampled.fields(i);
            fields["model"] = json!(name);
            let asked = ask(&server, &rendered(&problem.prompt), &fields);
            let request = RefRequest {
                prompt: &asked.prompt,
                max_tokens: MAX_TOKENS,
                sampling: Mode::Sampled.params(),
                seed: 11 + i as u64,
                choice: 0,
            };
            assert_eq!(asked.answer, reference.run(RefRouter::Single(model), &request), "{name} {i}");
        }
    }
    server.stop();
}
