//! Shared pages, growth and preemption through the engine, with real models: the tokens are those of an engine that
//! shares nothing and has room for all.

mod support;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use support::engine::{Outcome, demo_config, request, route, run_all, smallest, start, stop};
use tokenrouter_engine::{EngineConfig, EngineRequest, SamplingParams};
use tokenrouter_scheduler::FinishReason;
use tokenrouter_scheduler::router::{ParamValue, Registry};

/// Hands over at about every second token, with drops and returns.
fn config(prefix_cache: bool) -> EngineConfig {
    let routes = vec![
        route("pair", "r-stitch", "threshold", ParamValue::Float(0.03)),
        route("half", "fixed", "fraction", ParamValue::Float(0.5)),
    ];
    EngineConfig { prefix_cache, ..demo_config(routes) }
}

/// Tokens that the demo tokenizer knows, without a pattern.
fn tokens(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        20 + (state >> 16) % 400
    };
    (0..len).map(|_| next()).collect()
}

/// Half of them sampled with penalties, which read the whole history.
fn ask(client: u64, prompt: &[u32], max_new_tokens: u32) -> EngineRequest {
    let mut asked = request(client, prompt, (client % 2) as u16, max_new_tokens);
    asked.ignore_eos = true;
    asked.seed = client;
    if client % 4 >= 2 {
        asked.sampling = SamplingParams {
            temperature: 0.9,
            repetition_penalty: 1.3,
            presence_penalty: 0.2,
            ..SamplingParams::default()
        };
    }
    asked
}

/// Runs the requests one after the other.
fn run_each(config: &EngineConfig, requests: &[EngineRequest]) -> HashMap<u64, Outcome> {
    let engine = start(config, &Registry::builtin());
    let done = requests.iter().flat_map(|r| run_all(&engine, vec![r.clone()])).collect();
    stop(&engine);
    done
}

fn assert_same(expected: &HashMap<u64, Outcome>, got: &HashMap<u64, Outcome>, how: &str) {
    assert_eq!(expected.len(), got.len());
    for (client, expected) in expected {
        let got = &got[client];
        assert_eq!(
            (&expected.tokens, &expected.writers),
            (&got.tokens, &got.writers),
            "{how}: request {client}"
        );
        assert_eq!(got.reason, FinishReason::Length);
    }
}

#[test]
fn cold_warm_and_off_give_the_same_tokens_at_every_length() {
    let prompts: Vec<Vec<u32>> = (1..=70).map(|len| tokens(len as u32, len)).collect();
    let asked: Vec<EngineRequest> = (0..).zip(&prompts).map(|(client, p)| ask(client, p, 6)).collect();
    let off = run_each(&config(false), &asked);
    assert!(off.values().all(|o| o.usage.cached == [0; 8]));

    let engine = start(&config(true), &Registry::builtin());
    let cold = run_all(&engine, asked.clone());
    assert_same(&off, &cold, "cold");
    let warm = run_all(&engine, asked);
    assert_same(&off, &warm, "warm");
    for (client, outcome) in &warm {
        let hit = *client as u32 / 16 * 16;
        assert_eq!(outcome.usage.cached[0], hit, "a prompt of {} tokens", client + 1);
    }
    assert!(warm.values().any(|o| o.usage.handoffs > 0 && o.usage.cached[1] > 0), "the peer found its own");
    stop(&engine);
}

#[test]
fn prompts_that_agree_for_a_while_share_as_far_and_answer_as_alone() {
    let common = tokens(7, 64);
    let asked: Vec<EngineRequest> = (0..24)
        .map(|client| {
            let mut prompt = common[..(3 * client as usize) % 65].to_vec();
            prompt.extend(tokens(100 + client as u32, 1 + client as usize % 9));
            ask(client, &prompt, 8)
        })
        .collect();
    let off = run_each(&config(false), &asked);
    let engine = start(&config(true), &Registry::builtin());
    // All at once: rows read in a step what other rows of it write.
    let together = run_all(&engine, asked);
    assert_same(&off, &together, "together");
    assert!(together.values().any(|o| o.usage.cached[0] > 0));
    stop(&engine);
}

#[test]
fn the_turns_of_a_conversation_find_the_turns_before() {
    let mut prompts = vec![tokens(9, 21)];
    let plain = start(&config(false), &Registry::builtin());
    let cached = start(&config(true), &Registry::builtin());
    let mut found = [0; 2];
    for turn in 0..6 {
        for client in [4, 5, 6, 7] {
            let asked = ask(client, &prompts[turn], 19);
            let expected = run_all(&plain, vec![asked.clone()]);
            let got = run_all(&cached, vec![asked]);
            assert_same(&expected, &got, &format!("turn {turn}"));
            let outcome = &got[&client];
            if client == 4 {
                found = [0, 1].map(|m| found[m] + outcome.usage.cached[m]);
                let mut next = prompts[turn].clone();
                next.extend(&outcome.tokens);
                next.extend(tokens(turn as u32, 5));
                prompts.push(next);
            }
        }
    }
    assert!(found[0] > 250, "the entry model found {found:?} tokens");
    stop(&plain);
    stop(&cached);
}

#[test]
fn in_a_pool_that_is_too_small_for_all_everybody_answers_as_alone() {
    let asked: Vec<EngineRequest> = (0..16)
        .map(|client| {
            ask(client, &tokens(client as u32 / 2, 3 + 2 * client as usize), 60 + 2 * client as u32)
        })
        .collect();
    let alone = run_each(&config(false), &asked);
    for prefix_cache in [false, true] {
        let small = EngineConfig { reserve_pages: 0, ..smallest(config(prefix_cache)) };
        let engine = start(&small, &Registry::builtin());
        assert_eq!(engine.info.capacity_tokens, 256);
        let crowded = run_all(&engine, asked.clone());
        assert_same(&alone, &crowded, "crowded");
        assert!(crowded.values().any(|o| o.usage.preemptions > 0), "nobody was preempted");
        stop(&engine);
        assert_eq!(engine.status.pages_free.load(Relaxed), 16, "all pages came back");
    }
}
