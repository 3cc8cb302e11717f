//! L17 and L23: what others do changes nobody's tokens, whether they are good neighbours or bad ones.

use serde_json::{Value, json};

use crate::support::http::post;
use crate::support::process::{ServerProcess, demo_config};
use crate::support::{problems, rendered};

fn server(router: &str) -> ServerProcess {
    ServerProcess::start(&demo_config(router, ""))
}

/// Tokens, and log-probabilities where they were asked for, to the last bit.
fn ids(answer: &Value) -> Value {
    let ids = |choice: &Value| match &choice["logprobs"] {
        Value::Null => choice["token_ids"].clone(),
        said => json!([choice["token_ids"], said]),
    };
    answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(ids).collect()
}

/// Request A alone; two of it at once; beside 1, 3 and 7 others with and without seeds that come and go.
#[test]
fn a_seeded_answer_depended_on_who_else_was_running() {
    for router in ["name = \"r-stitch\"\nthreshold = 0.03", "name = \"me\"\nweights = [0.6, 0.4]"] {
        let server = server(router);
        let prompt = |i: usize| rendered(&problems(i + 1)[i].prompt);
        let a = json!({"prompt": prompt(0), "max_tokens": 60, "temperature": 1.5, "seed": 42, "n": 2,
            "ignore_eos": true, "return_token_ids": true, "presence_penalty": 0.3, "repetition_penalty": 1.1, "logprobs": 3});
        let ask = |body: &Value| {
            let answer = post(server.http, "/v1/completions", body);
            assert_eq!(answer.status, 200, "{}", answer.body);
            ids(&answer.json())
        };
        let alone = ask(&a);
        assert_ne!(alone[0], alone[1], "two choices");
        for others in [1, 3, 7] {
            std::thread::scope(|scope| {
                let noise: Vec<_> = (0..others)
                    .map(|i| {
                        let mut body =
                            json!({"prompt": prompt(i + 1), "max_tokens": 5 + 9 * i, "temperature": 1});
                        if i % 2 == 0 {
                            body["seed"] = json!(42);
                        }
                        scope.spawn(move || (0..4).for_each(|_| drop(ask(&body))))
                    })
                    .collect();
                let copies = [(); 2].map(|()| scope.spawn(|| ask(&a)));
                for copy in copies {
                    assert_eq!(copy.join().expect("an answer"), alone, "beside {others} others");
                }
                noise.into_iter().for_each(|n| n.join().expect("a neighbour"));
                assert_eq!(ask(&a), alone, "after {others} others");
            });
        }
        let mut without = a.clone();
        without["seed"] = Value::Null;
        assert_ne!(ask(&without), ask(&without), "without a seed two answers differ");
        server.stop();
    }
}

/// Ids that are no tokens, as keys of `logit_bias` and elsewhere: refused before anything is queued.
#[test]
fn token_ids_of_a_client_were_used_as_indices() {
    let server = server("name = \"r-stitch\"\nthreshold = 0.03");
    let neighbour = json!({"prompt": rendered(&problems(1)[0].prompt), "max_tokens": 40, "temperature": 0.7,
        "seed": 3, "return_token_ids": true, "ignore_eos": true, "logprobs": 3});
    let ask = || ids(&post(server.http, "/v1/completions", &neighbour).json());
    let alone = ask();
    let keys = [
        "191222",
        "455",
        "4294967296",
        "18446744073709551616",
        "-1",
        "1e3",
        "07",
        "x",
        "",
        " 7",
        "+7",
        "7.0",
    ];
    let mut bad: Vec<Value> = keys.iter().map(|key| json!({"logit_bias": {(*key): -100}})).collect();
    let values = [json!(101), json!(-100.5), Value::Null, json!("1"), json!([1]), json!(true)];
    bad.extend(values.iter().map(|value| json!({"logit_bias": {"7": value}})));
    bad.extend([
        json!({"logit_bias": [7]}),
        json!({"logit_bias": "7"}),
        json!({"stop_token_ids": [455]}),
        json!({"stop_token_ids": [-1]}),
        json!({"prompt": [455]}),
        json!({"prompt": [7, 18446744073709551615u64]}),
    ]);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| (0..8).map(|_| ask()).collect::<Vec<_>>());
        for more in &bad {
            let mut body = json!({"prompt": "Ann", "max_tokens": 2});
            more.as_object().expect("fields").iter().for_each(|(key, value)| body[key] = value.clone());
            let answer = post(server.http, "/v1/completions", &body);
            assert_eq!(answer.status, 400, "{more}: {}", answer.body);
            let param = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(
                more.as_object().expect("fields").keys().any(|key| param.starts_with(key)),
                "{more}: {param}"
            );
        }
        for tokens in beside.join().expect("the neighbour") {
            assert_eq!(tokens, alone);
        }
    });
    // A bias inside the vocabulary does what it says, to this request alone.
    let body = json!({"prompt": "Ann", "max_tokens": 3, "temperature": 0, "logit_bias": {"454": 100},
        "return_token_ids": true});
    assert_eq!(ids(&post(server.http, "/v1/completions", &body).json()), json!([[454, 454, 454]]));
    assert_eq!(ask(), alone);
    server.stop();
}
