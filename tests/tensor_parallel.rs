//! A model in parts writes what the whole model writes: the token streams of the sequential reference for every placement
//! of the demo pair on CPU ranks, under several policies, greedy and sampled, with shared prefixes and with preemption.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use support::engine::{Outcome, demo_config, request, route, run_all, smallest, start, stop};
use support::reference::{RefRequest, RefRouter, Reference};
use support::root;
use tokenrouter_engine::{EngineConfig, EngineRequest, SamplingParams};
use tokenrouter_scheduler::router::{ParamValue, Registry};
use tokenrouter_scheduler::{CountTable, Policy, Thresholds};

const NEW: u32 = 40;
const REQUESTS: usize = 8;
/// The devices of the small and of the large model.
const PLACEMENTS: [(&[usize], &[usize]); 7] = [
    (&[0], &[0]),
    (&[0], &[0, 1]),
    (&[0], &[1, 2]),
    (&[0, 1], &[0, 1]),
    (&[0], &[0, 1, 2, 3]),
    (&[2, 0, 3, 1], &[1, 0]),
    (&[5], &[3]),
];

/// Prompts of 3 to 59 tokens that the demo tokenizer knows, without a pattern.
fn ids(prompt: usize) -> Vec<u32> {
    let token = |i: usize| 20 + ((prompt * 7_919 + i * 104_729) % 9_973 % 400) as u32;
    (0..3 + 8 * prompt).map(token).collect()
}

fn params(prompt: usize) -> SamplingParams {
    match prompt / 2 % 2 {
        0 => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        _ => SamplingParams { temperature: 0.9, top_p: 0.95, ..SamplingParams::default() },
    }
}

/// Routed by entropy and at a fixed share in turns; one of the large model alone.
const ROUTERS: [RefRouter; 3] = [RefRouter::RStitch(0.03), RefRouter::Fixed(0.3), RefRouter::Single(1)];

fn routed(prompt: usize) -> usize {
    if prompt == 5 { 2 } else { prompt % 2 }
}

fn asked() -> Vec<EngineRequest> {
    let ask = |i: usize| EngineRequest {
        sampling: params(i),
        seed: 11 + i as u64,
        ..request(i as u64, &ids(i), routed(i) as u16, NEW)
    };
    (0..REQUESTS).map(ask).collect()
}

fn expected() -> Vec<(Vec<u32>, Vec<u8>)> {
    let reference = Reference::demo();
    let answer = |i: usize| {
        let (prompt, seed) = (ids(i), 11 + i as u64);
        let request =
            RefRequest { prompt: &prompt, max_tokens: NEW as usize, sampling: params(i), seed, choice: 0 };
        reference.run(ROUTERS[routed(i)], &request)
    };
    let answers: Vec<_> = (0..REQUESTS).map(answer).collect();
    let by_both = |a: &&(Vec<u32>, Vec<u8>)| [0, 1].iter().all(|writer| a.1.contains(writer));
    assert!(answers.iter().filter(by_both).count() >= 3, "both models write: {answers:?}");
    answers
}

fn config(small: &[usize], large: &[usize]) -> EngineConfig {
    let mut config = demo_config(vec![
        route("entropy", "r-stitch", "threshold", ParamValue::Float(0.03)),
        route("share", "fixed", "fraction", ParamValue::Float(0.3)),
        route("large", "single", "model", ParamValue::Int(1)),
    ]);
    for (model, devices) in config.models.iter_mut().zip([small, large]) {
        model.devices = devices.to_vec();
    }
    config
}

#[track_caller]
fn assert_same(expected: &[(Vec<u32>, Vec<u8>)], got: &HashMap<u64, Outcome>, how: &str) {
    for (i, wanted) in expected.iter().enumerate() {
        let outcome = &got[&(i as u64)];
        assert_eq!((&outcome.tokens, &outcome.writers), (&wanted.0, &wanted.1), "{how}: request {i}");
    }
}

#[test]
fn every_placement_equals_the_reference() {
    let expected = expected();
    for (small, large) in PLACEMENTS {
        let engine = start(&config(small, large), &Registry::builtin());
        let how = format!("{small:?}/{large:?}");
        assert_same(&expected, &run_all(&engine, asked()), &format!("{how}, all at once"));
        for request in asked().into_iter().skip(2).step_by(3) {
            let i = request.client as usize;
            let got = run_all(&engine, vec![request]);
            assert_eq!(got[&(i as u64)].tokens, expected[i].0, "{how}: request {i} alone");
        }
        stop(&engine);
    }
}

#[test]
fn every_policy_equals_the_reference_on_several_ranks() {
    let expected = expected();
    let peers = |b: u32| Thresholds::peers(CountTable::constant(b));
    let policies = [
        Policy::Eager,
        Policy::StepSync,
        Policy::Threshold(peers(3)),
        Policy::Hold { thresholds: peers(2), beside: CountTable::constant(2) },
        Policy::Exclusive(peers(1)),
        Policy::Lookahead { alpha: 3.0 },
    ];
    for policy in policies {
        for (small, large) in [PLACEMENTS[1], PLACEMENTS[3]] {
            let placed = EngineConfig { policy: policy.clone(), ..config(small, large) };
            let engine = start(&placed, &Registry::builtin());
            let got = run_all(&engine, asked());
            assert_same(&expected, &got, &format!("{policy:?} on {small:?}/{large:?}"));
            stop(&engine);
        }
    }
}

/// Chunks of five tokens, pages that prompts share, and a cache that holds one request's lifetime: everybody answers as
/// alone on one rank.
#[test]
fn shared_prefixes_chunks_and_preemption_change_nothing() {
    let common = ids(3);
    let asked: Vec<EngineRequest> = (0..12u64)
        .map(|client| {
            let mut prompt = common.clone();
            prompt.extend(ids(client as usize % 4));
            let limit = 40 + 3 * client as u32;
            EngineRequest { seed: client, ..request(client, &prompt, (client % 2) as u16, limit) }
        })
        .collect();
    let engine = start(&config(&[0], &[0]), &Registry::builtin());
    let alone: HashMap<u64, Outcome> =
        asked.iter().flat_map(|request| run_all(&engine, vec![request.clone()])).collect();
    stop(&engine);
    for (small, large) in [PLACEMENTS[1], PLACEMENTS[4], PLACEMENTS[3]] {
        for crowded in [false, true] {
            let mut placed = config(small, large);
            if crowded {
                placed = EngineConfig { reserve_pages: 0, ..smallest(placed) };
            } else {
                placed.models.iter_mut().for_each(|m| (m.max_step_tokens, m.max_batch_rows) = (5, 4));
            }
            let engine = start(&placed, &Registry::builtin());
            let got = run_all(&engine, asked.clone());
            let how = format!("{small:?}/{large:?}, crowded {crowded}");
            for (client, outcome) in &alone {
                let (found, wanted) = (&got[client], outcome);
                assert_eq!(
                    (&found.tokens, &found.writers),
                    (&wanted.tokens, &wanted.writers),
                    "{how}: {client}"
                );
            }
            assert!(got.values().any(|o| o.usage.cached[0] > 0), "{how}: no prefix was found");
            assert!(!crowded || got.values().any(|o| o.usage.preemptions > 0), "{how}: nobody was preempted");
            stop(&engine);
            let free = engine.status.pages_free.load(Relaxed) as usize;
            assert_eq!(free * 16, engine.info.capacity_tokens, "{how}: all pages came back");
        }
    }
}

/// A router head of the large model's peer scores on the first part, and kept states lie there.
#[test]
fn router_heads_score_on_the_first_part() {
    let head = |name: &str| -> PathBuf { root().join("models/demo/routers").join(name) };
    let with_heads = |small: &[usize]| {
        let mut config = config(small, &[0]);
        config.models[0].heads = vec![head("citer"), head("query")];
        config.routes = vec![
            route("citer", "citer", "threshold", ParamValue::Float(0.9)),
            route("query", "query", "head", ParamValue::Int(1)),
        ];
        config
    };
    let asked: Vec<EngineRequest> = (0..6)
        .map(|i| EngineRequest { seed: i, ..request(i, &ids(i as usize), (i % 2) as u16, NEW) })
        .collect();
    let answers = |small: &[usize]| {
        let engine = start(&with_heads(small), &Registry::builtin());
        let got = run_all(&engine, asked.clone());
        stop(&engine);
        (0..6u64).map(|i| (got[&i].tokens.clone(), got[&i].writers.clone())).collect::<Vec<_>>()
    };
    let whole = answers(&[0]);
    assert!(whole.iter().any(|(_, writers)| writers.contains(&1)), "somebody asks the large model");
    for small in [&[0, 1][..], &[1, 2, 3, 0]] {
        assert_eq!(answers(small), whole, "{small:?}");
    }
}

/// Two models over the same two ranks are one collective group: the scheduler runs one at a time, and plans with that.
#[test]
fn models_that_share_two_ranks_take_turns() {
    let placements: [(&[usize], &[usize], f64); 4] = [
        (&[0, 1], &[0, 1], 2.0),
        (&[3, 1], &[0, 1, 2, 3], 2.0),
        (&[0], &[0, 1], 1.0),
        (&[0, 1], &[1, 2], 1.0),
    ];
    for (small, large, turns) in placements {
        let engine = start(&config(small, large), &Registry::builtin());
        // Only the large model runs, so that nothing is measured of one beside the other.
        run_all(&engine, vec![request(0, &ids(1), 2, 4)]);
        let models = loop {
            let planner = engine.status.planner();
            if !planner.models.is_empty() {
                break planner.models.clone();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let slower: Vec<f64> = models.iter().map(|model| model.slowdown).collect();
        assert_eq!(slower, [turns, turns], "{small:?}/{large:?}");
        stop(&engine);
    }
}

#[test]
fn the_plan_counts_every_part_and_names_the_devices() {
    let info = |small: &[usize], large: &[usize]| {
        let engine = start(&config(small, large), &Registry::builtin());
        let info = engine.info.clone();
        stop(&engine);
        info
    };
    let (whole, cut) = (info(&[0], &[0]), info(&[0], &[0, 1, 2, 3]));
    assert!(cut.plan_table.contains("large on [0, 1, 2, 3]"), "{}", cut.plan_table);
    // Two KV heads stand on four parts, twice each.
    assert!(cut.capacity_tokens < whole.capacity_tokens, "{} {}", cut.plan_table, whole.plan_table);
}

#[test]
fn bad_placements_are_refused_by_name() {
    let cases: [(&[usize], &[&str]); 5] = [
        (&[], &["model \"large\"", "devices is empty"]),
        (&[1, 1], &["model \"large\"", "device 1 twice"]),
        (&[64], &["model \"large\"", "device 64"]),
        (&[0, 1, 2], &["model \"large\"", "config.json", "num_attention_heads: is 4", "3 devices"]),
        (&[0, 1, 2, 3, 4, 5, 6, 7], &["model \"large\"", "num_attention_heads: is 4", "8 devices"]),
    ];
    for (large, parts) in cases {
        let refused = tokenrouter_engine::start(&config(&[0], large), &Registry::builtin(), Box::new(|| ()));
        let error = refused.err().expect("a refusal").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{large:?}: {error}");
    }
}
