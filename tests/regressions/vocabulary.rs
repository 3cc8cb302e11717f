//! L10: models that pad one vocabulary to different sizes exchange real tokens only.

use serde_json::json;

use crate::support::http::{get, post};
use crate::support::process::ServerProcess;
use crate::support::scripted::pair_config;
use crate::support::story::{Story, Writer};
use crate::support::tokenizers::{END, START};

/// The padding rows of these checkpoints have logits far above all others.
#[test]
fn padding_of_the_vocabulary_was_sampled_and_sent_to_a_model_without_that_row() {
    let story = Story::bytes();
    let plain = story.write();
    let [mut small, mut large] = story.scripts();
    (small.rows, large.rows) = (320, 384);
    let dirs = [small, large].map(|script| script.write("padded", &story.tokenizer));
    for router in ["name = \"r-stitch\"\nthreshold = 0.03", "name = \"fixed\"\nfraction = 0.5"] {
        let mut answers = Vec::new();
        for [small, large] in [&plain, &dirs] {
            let server = ServerProcess::start(&pair_config(small, large, router, ""));
            for (temperature, logit_bias) in [(0.0, json!({})), (0.7, json!({"5": 3}))] {
                let body = json!({"prompt": [story.tokenizer.control(START)], "max_tokens": 60, "seed": 4,
                    "temperature": temperature, "logit_bias": logit_bias, "return_token_ids": true,
                    "ignore_eos": temperature > 0.0, "token_routing": {"return": "tokens"}});
                let answer = post(server.http, "/v1/completions", &body);
                assert_eq!(answer.status, 200, "{}", answer.body);
                let choice = answer.json()["choices"][0].clone();
                answers.push((choice["token_ids"].clone(), choice["token_routing"].clone()));
            }
            // Padding is no token of a client either.
            let edge = story.tokenizer.vocab();
            for body in [
                json!({"prompt": [edge]}),
                json!({"prompt": "a", "logit_bias": {(edge.to_string()): 1}}),
                json!({"prompt": "a", "stop_token_ids": [edge]}),
            ] {
                let answer = post(server.http, "/v1/completions", &body);
                assert_eq!(answer.status, 400, "{body}: {}", answer.body);
            }
            assert_eq!(get(server.http, "/health").status, 200);
            server.stop();
        }
        let (without, with) = answers.split_at(2);
        assert_eq!(without, with, "{router}");
    }
    let (ids, _) = story.answer(Writer::Stitch);
    assert_eq!(ids.last(), Some(&story.tokenizer.control(END)));
}
