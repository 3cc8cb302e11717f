//! Log-probabilities through the engine: those of transformers (`tests/golden`), and the same bits however a token reaches
//! its model: in chunks, beside others, with a warm cache, after preemption, after handoffs, in parts of a model.

mod support;

use std::collections::HashMap;

use safetensors::SafeTensors;
use support::engine::{Outcome, demo_config, request, route, run_all, smallest, start, stop};
use support::root;
use tokenrouter_engine::{DType, EngineConfig, EngineRequest, SamplingParams, TokenLogprobs};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{FinishReason, Handoff};

/// The bound of `tests/golden/README.md` for one log-probability with a cache in f32.
const BOUND: f64 = 2e-4;

/// Ids of a golden sequence, and the log-probabilities `[tokens, vocab]` after each of them.
struct Sequence {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    vocab: usize,
}

impl Sequence {
    fn load(model: &str) -> Vec<Self> {
        let bytes =
            std::fs::read(root().join("tests/golden").join(model).join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let four = |name: String| {
            let tensor = tensors.tensor(&name).unwrap();
            tensor.data().chunks(4).map(|b| <[u8; 4]>::try_from(b).unwrap()).collect::<Vec<_>>()
        };
        let sequence = |n: usize| {
            let ids: Vec<u32> = four(format!("ids.{n}")).into_iter().map(u32::from_le_bytes).collect();
            let logprobs: Vec<f32> =
                four(format!("logprobs.{n}")).into_iter().map(f32::from_le_bytes).collect();
            let vocab = logprobs.len() / ids.len();
            Self { ids, logprobs, vocab }
        };
        (0..3).map(sequence).collect()
    }

    /// What transformers says after position `position`, ids from `real` on masked.
    fn after(&self, position: usize, real: usize) -> Vec<f64> {
        let row = &self.logprobs[position * self.vocab..][..self.vocab];
        let sum: f64 = row[..real].iter().map(|x| f64::from(*x).exp()).sum();
        row[..real].iter().map(|x| f64::from(*x) - sum.ln()).collect()
    }
}

/// One golden model alone.
fn golden_config(model: &str, real_vocab: usize, max_step_tokens: usize) -> EngineConfig {
    let mut config = demo_config(vec![route("only", "single", "model", ParamValue::Int(0))]);
    config.models.truncate(1);
    config.models[0].dir = root().join("tests/golden").join(model);
    config.models[0].max_step_tokens = max_step_tokens;
    config.models[0].max_batch_rows = 3;
    EngineConfig { real_vocab, kv_dtype: DType::F32, ..config }
}

fn scored(client: u64, prompt: &[u32], max_new_tokens: u32, top: u8) -> EngineRequest {
    EngineRequest {
        logprobs: Some(top),
        prompt_logprobs: true,
        ignore_eos: true,
        ..request(client, prompt, 0, max_new_tokens)
    }
}

fn run_one(config: &EngineConfig, asked: EngineRequest) -> Outcome {
    let engine = start(config, &Registry::builtin());
    let client = asked.client;
    let outcome = run_all(&engine, vec![asked]).remove(&client).unwrap();
    stop(&engine);
    outcome
}

/// Compares with what transformers says: the token's own, and the values of the list, which descend.
fn check(got: &TokenLogprobs, token: u32, want: &[f64], top: usize, what: &str) {
    assert!(got.logprob.is_finite() && got.logprob <= 0.0, "{what}");
    let off = |a: f32, b: f64| (f64::from(a) - b).abs();
    assert!(off(got.logprob, want[token as usize]) <= BOUND, "{what}: {got:?} for {}", want[token as usize]);
    assert_eq!(got.top.len(), top, "{what}");
    let mut sorted = want.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    for (place, (id, logprob)) in got.top.iter().enumerate() {
        assert!(
            off(*logprob, sorted[place]) <= BOUND && off(*logprob, want[*id as usize]) <= BOUND,
            "{what}"
        );
        if place > 0 {
            let (other, before) = got.top[place - 1];
            assert!(before > *logprob || before == *logprob && other < *id, "{what}: {:?}", got.top);
        }
    }
    if let Some(own) = got.top.iter().find(|(id, _)| *id == token) {
        assert_eq!(own.1, got.logprob, "{what}");
    }
}

#[test]
fn prompts_and_answers_are_scored_as_transformers_does() {
    for (model, masked) in
        [("qwen3-tied", 0), ("llama-bias-f32", 5), ("qwen2-f16", 0), ("llama-gqa8-llama3", 1)]
    {
        for (n, sequence) in Sequence::load(model).iter().enumerate() {
            let real = sequence.vocab - masked;
            let top = [0, 3, 20][n];
            let config = golden_config(model, real, [256, 256, 7][n]);
            let got = run_one(&config, scored(n as u64, &sequence.ids, 1, top));
            assert_eq!(got.prompt.len(), sequence.ids.len() - 1);
            for (at, entry) in (1..).zip(&got.prompt) {
                let token = sequence.ids[at];
                if token as usize >= real {
                    assert_eq!(entry.logprob, -9999.0, "a masked id in the prompt");
                    continue;
                }
                let what = format!("{model} {n} token {at}");
                check(entry, token, &sequence.after(at - 1, real), usize::from(top), &what);
            }
            let last = sequence.after(sequence.ids.len() - 1, real);
            check(&got.logprobs[0], got.tokens[0], &last, usize::from(top), model);
        }
    }
}

/// The same bits: compared as such, since a NaN equals nothing.
fn bits(entries: &[TokenLogprobs]) -> Vec<(u32, Vec<(u32, u32)>)> {
    let of = |e: &TokenLogprobs| (e.logprob.to_bits(), e.top.iter().map(|t| (t.0, t.1.to_bits())).collect());
    entries.iter().map(of).collect()
}

fn assert_same(expected: &Outcome, got: &Outcome, what: &str) {
    assert_eq!((&expected.tokens, &expected.writers), (&got.tokens, &got.writers), "{what}");
    assert_eq!(bits(&expected.prompt), bits(&got.prompt), "{what}: prompt");
    assert_eq!(bits(&expected.logprobs), bits(&got.logprobs), "{what}: answer");
}

#[test]
fn chunks_neighbours_and_a_warm_cache_change_no_bit() {
    let sequence = &Sequence::load("qwen3-tied")[2];
    let ids = &sequence.ids[..71];
    let expected = run_one(
        &EngineConfig { prefix_cache: false, ..golden_config("qwen3-tied", 96, 256) },
        scored(1, ids, 6, 5),
    );
    assert_eq!((expected.prompt.len(), expected.logprobs.len()), (70, 6));
    for step in [1, 2, 16, 33, 256] {
        let engine = start(&golden_config("qwen3-tied", 96, step), &Registry::builtin());
        for round in 0..3 {
            // Neighbours with other parameters: unscored, biased, sampled, beginning alike, scoring themselves.
            let mut asked = vec![
                scored(1, ids, 6, 5),
                EngineRequest { ignore_eos: true, ..request(2, &ids[..50], 0, 9) },
                scored(3, &ids[..40], 3, 1),
                EngineRequest {
                    sampling: SamplingParams {
                        logit_bias: vec![(7, -100.0), (95, 50.0), (4_000_000, 9.0)],
                        repetition_penalty: 1.5,
                        ..SamplingParams::default()
                    },
                    logprobs: Some(20),
                    ignore_eos: true,
                    ..request(4, &ids[..1], 0, 9)
                },
            ];
            if round == 1 {
                asked.rotate_left(2);
            }
            let got = run_all(&engine, asked);
            assert_same(&expected, &got[&1], &format!("steps of {step}, round {round}"));
            assert_eq!(bits(&got[&3].prompt).len(), 39);
            let own: Vec<u32> = expected.prompt[..39].iter().map(|e| e.logprob.to_bits()).collect();
            assert_eq!(got[&3].prompt.iter().map(|e| e.logprob.to_bits()).collect::<Vec<_>>(), own);
            assert!(got[&2].prompt.is_empty() && got[&2].logprobs.is_empty(), "it did not ask");
            assert!(got[&4].prompt.is_empty() && got[&4].logprobs.len() == 9);
            assert_eq!(got[&1].usage.cached[0], 0, "a scored prompt is computed");
            assert!(round == 0 || got[&2].usage.cached[0] > 0, "and found by others");
        }
        stop(&engine);
    }
}

#[test]
fn a_continuation_has_the_scores_of_its_tokens_as_they_were_written() {
    let ids = &Sequence::load("llama-bias-f32")[1].ids[..20];
    let config = golden_config("llama-bias-f32", 96, 256);
    let penalised = SamplingParams { temperature: 0.8, presence_penalty: 0.5, ..SamplingParams::default() };
    let written = run_one(&config, EngineRequest { sampling: penalised, ..scored(1, ids, 12, 4) });
    let whole: Vec<u32> = ids.iter().chain(&written.tokens).copied().collect();
    let scored_later = run_one(&config, scored(2, &whole, 0, 4));
    assert_eq!(bits(&scored_later.prompt[19..]), bits(&written.logprobs), "raw, whatever the penalties");
    let sum = |entries: &[TokenLogprobs]| entries.iter().map(|e| f64::from(e.logprob)).sum::<f64>();
    let separate = sum(&scored_later.prompt) - sum(&run_one(&config, scored(3, ids, 0, 0)).prompt);
    assert!((sum(&written.logprobs) - separate).abs() < 1e-9);
}

#[test]
fn scoring_only_writes_nothing_and_ends_with_length() {
    let config = golden_config("qwen3-tied", 96, 16);
    let engine = start(&config, &Registry::builtin());
    for (client, len) in [1usize, 2, 16, 17, 33, 80].into_iter().enumerate() {
        let ids = &Sequence::load("qwen3-tied")[2].ids[..len];
        let got = run_all(&engine, vec![scored(client as u64, ids, 0, 2)]).remove(&(client as u64)).unwrap();
        assert_eq!((got.tokens.len(), got.prompt.len(), got.reason), (0, len - 1, FinishReason::Length));
        assert_eq!((got.usage.completion_tokens, got.usage.committed[0]), (0, 0));
        assert_eq!(got.usage.prompt_tokens as usize, len);
    }
    stop(&engine);
}

/// Hands over at about every second token, with drops and returns.
fn pair(handoff: Handoff) -> EngineConfig {
    let routes = vec![
        route("pair", "r-stitch", "threshold", ParamValue::Float(0.03)),
        route("half", "fixed", "fraction", ParamValue::Float(0.5)),
        route("small", "single", "model", ParamValue::Int(0)),
        route("large", "single", "model", ParamValue::Int(1)),
    ];
    EngineConfig { handoff, ..demo_config(routes) }
}

/// Tokens that the demo tokenizer knows, without a pattern.
fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 20 + (seed * 7_919 + i * 104_729) % 9_973 % 400).collect()
}

fn on_route(asked: EngineRequest, route: u16) -> EngineRequest {
    EngineRequest { route: tokenrouter_scheduler::RouteId(route), ..asked }
}

#[test]
fn each_token_has_the_value_of_the_model_that_wrote_it() {
    for handoff in [Handoff::Resume, Handoff::Readmit] {
        let engine = start(&pair(handoff), &Registry::builtin());
        let mut both = 0;
        for client in 0..4u32 {
            let prompt = tokens(client, 5 + 11 * client as usize);
            let asked = on_route(scored(u64::from(client), &prompt, 24, 3), (client % 2) as u16);
            let routed = run_all(&engine, vec![asked]).remove(&u64::from(client)).unwrap();
            let whole: Vec<u32> = prompt.iter().chain(&routed.tokens).copied().collect();
            let by = [2, 3].map(|route| {
                run_all(&engine, vec![on_route(scored(9, &whole, 0, 3), route)]).remove(&9).unwrap().prompt
            });
            let first = prompt.len() - 1;
            assert_eq!(bits(&routed.prompt), bits(&by[0][..first]), "the entry model scores the prompt");
            for (i, writer) in routed.writers.iter().enumerate() {
                let expected = bits(&by[usize::from(*writer)][first + i..][..1]);
                assert_eq!(bits(&routed.logprobs[i..=i]), expected, "request {client} token {i}");
            }
            both += usize::from([0, 1].iter().all(|model| routed.writers.contains(model)));
        }
        assert!(both >= 2, "both models write");
        stop(&engine);
    }
}

#[test]
fn preemption_and_handoffs_lose_and_double_no_score() {
    let asked: Vec<EngineRequest> = (0..14u32)
        .map(|client| {
            let prompt = tokens(client / 2, 3 + 5 * client as usize);
            let asked = scored(u64::from(client), &prompt, 50 + 2 * client, 2);
            on_route(EngineRequest { prompt_logprobs: client % 4 != 3, ..asked }, (client % 3) as u16)
        })
        .collect();
    let engine = start(&pair(Handoff::Resume), &Registry::builtin());
    let alone: HashMap<u64, Outcome> =
        asked.iter().flat_map(|one| run_all(&engine, vec![one.clone()])).collect();
    stop(&engine);
    for (handoff, step) in [(Handoff::Resume, 24), (Handoff::Resume, 256), (Handoff::Readmit, 24)] {
        let mut config = EngineConfig { reserve_pages: 0, ..pair(handoff) };
        config.models.iter_mut().for_each(|model| model.max_step_tokens = step);
        config.models.iter_mut().for_each(|model| model.max_batch_rows = 8);
        let engine = start(&smallest(config), &Registry::builtin());
        assert_eq!(engine.info.capacity_tokens, 256);
        let got = run_all(&engine, asked.clone());
        for (client, expected) in &alone {
            assert_same(expected, &got[client], &format!("{handoff:?}, steps of {step}, request {client}"));
        }
        assert!(got.values().any(|o| o.usage.preemptions > 0), "nobody was preempted");
        stop(&engine);
    }
}

#[test]
fn a_model_in_parts_says_what_the_whole_model_says() {
    let asked = |client| on_route(scored(client, &tokens(3, 40), 12, 4), 0);
    let whole = run_one(&pair(Handoff::Resume), asked(1));
    let mut config = pair(Handoff::Resume);
    config.models[0].devices = vec![0, 1];
    config.models[1].devices = vec![1, 0];
    // More positions than rows of logits: in pieces.
    config.models.iter_mut().for_each(|model| model.max_batch_rows = 3);
    assert_same(&whole, &run_one(&config, asked(1)), "in parts");
}
