//! Query-level routing by a head that reads the whole prompt: every answer is that of one model alone, and which one does not
//! depend, to the last bit of the score, on chunks, batches, shared prefixes or preemption.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::engine::{Outcome, demo_config, request, run_all, smallest, start, stop};
use support::heads::{Scorer, write_random};
use support::process::{bare_demo, run, scratch_dir};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{problems, rendered};
use tokenrouter_engine::{EngineConfig, EngineRequest, RouteConfig, SamplingParams};
use tokenrouter_scheduler::Threshold;
use tokenrouter_scheduler::router::{ParamValue, Registry};

fn head() -> PathBuf {
    let dir = scratch_dir("query-head").join("query");
    write_random("query", &dir, Some(0.5));
    dir
}

/// The demo pair behind the head; steps of the small model hold this many tokens.
fn config(head: &Path, max_step_tokens: usize) -> EngineConfig {
    let route = RouteConfig {
        name: "pair".into(),
        router: "query".into(),
        params: BTreeMap::from([("head".into(), ParamValue::Int(0))]),
    };
    let mut config = demo_config(vec![route]);
    config.models[0].heads = vec![head.to_path_buf()];
    config.models[0].max_step_tokens = max_step_tokens;
    config.models[0].max_batch_rows = config.models[0].max_batch_rows.min(max_step_tokens);
    config
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

/// Prompts of one token to some pages, many with a beginning in common.
fn prompts() -> Vec<Vec<u32>> {
    let common = tokens(7, 64);
    let prompt = |i: usize| {
        let mut prompt = common[..(11 * i) % 65].to_vec();
        prompt.extend(tokens(100 + i as u32, 1 + (7 * i) % 23));
        prompt
    };
    (0..12).map(prompt).collect()
}

/// Each prompt twice: with its score as the threshold, which it reaches, and with the next number above, which it misses.
fn asked(prompts: &[Vec<u32>], scores: &[f32], max_new_tokens: u32) -> Vec<EngineRequest> {
    let ask = |client: usize| {
        let (i, misses) = (client / 2, client % 2 == 1);
        let mut asked = request(client as u64, &prompts[i], 0, max_new_tokens);
        let threshold = if misses { scores[i].next_up() } else { scores[i] };
        asked.threshold = Some(Threshold::Value(threshold));
        asked.ignore_eos = true;
        asked.seed = client as u64;
        asked
    };
    (0..2 * prompts.len()).map(ask).collect()
}

fn assert_as_alone(expected: &[[Vec<u32>; 2]], got: &HashMap<u64, Outcome>, how: &str) {
    assert_eq!(got.len(), 2 * expected.len());
    for (client, outcome) in got {
        let (i, model) = (*client as usize / 2, usize::from(*client % 2 == 0));
        assert!(
            outcome.writers.iter().all(|w| usize::from(*w) == model),
            "{how}: prompt {i} at model {:?}, not {model}",
            outcome.writers.first()
        );
        assert_eq!(outcome.tokens, expected[i][model], "{how}: prompt {i} by model {model}");
        assert_eq!(outcome.usage.discarded[0], model as u32, "{how}: prompt {i}");
    }
}

#[test]
fn the_choice_is_that_of_the_sequential_loop_to_the_last_bit_of_the_score() {
    const NEW: usize = 24;
    let head = head();
    let (prompts, pair, mut scorer) = (prompts(), Reference::demo(), Scorer::new(&head));
    let scores: Vec<f32> = prompts.iter().map(|p| scorer.prompt_score(p)).collect();
    assert!(scores.iter().all(|s| (0.01..0.99).contains(s)), "{scores:?}");
    assert!(scores.iter().any(|s| (s - scores[0]).abs() > 0.01), "the prompt matters: {scores:?}");
    let pair = Reference { eos: Vec::new(), ..pair };
    let by = |prompt: &[u32], model| {
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let request = RefRequest { prompt, max_tokens: NEW, sampling, seed: 0, choice: 0 };
        pair.run(RefRouter::Single(model), &request).0
    };
    let expected: Vec<[Vec<u32>; 2]> = prompts.iter().map(|p| [by(p, 0), by(p, 1)]).collect();
    let asked = asked(&prompts, &scores, NEW as u32);
    let (mut found, mut preempted) = (0, 0);
    for (step, prefix_cache, crowded) in
        [(256, false, false), (256, true, false), (5, false, false), (5, true, false), (9, true, true)]
    {
        let how = format!("steps of {step} tokens, prefixes {prefix_cache}, crowded {crowded}");
        let roomy = EngineConfig { prefix_cache, ..config(&head, step) };
        let engine = start(
            &if crowded { EngineConfig { reserve_pages: 0, ..smallest(roomy) } } else { roomy },
            &Registry::builtin(),
        );
        for round in ["cold", "warm"] {
            let got = run_all(&engine, asked.clone());
            assert_as_alone(&expected, &got, &format!("{how}, {round}"));
            found += got.values().map(|o| o.usage.cached[0]).sum::<u32>();
            preempted += got.values().map(|o| o.usage.preemptions).sum::<u32>();
        }
        for request in &asked[..4] {
            let got = run_all(&engine, vec![request.clone()]);
            let (i, model) = (request.client as usize / 2, usize::from(request.client % 2 == 0));
            assert_eq!(got[&request.client].tokens, expected[i][model], "{how}, alone");
        }
        stop(&engine);
    }
    assert!(found > 500 && preempted > 0, "{found} prompt tokens were shared, {preempted} preemptions");
}

#[test]
fn eval_shows_the_head_beside_the_draw_and_words_are_the_models_alone() {
    const COUNT: usize = 12;
    let (head, demo) = (head(), bare_demo());
    let text = tokenrouter_server::text::TextModel::load(&demo.join("slm")).expect("a tokenizer");
    let mut scorer = Scorer::new(&head);
    let scores: Vec<f32> = problems(COUNT)
        .iter()
        .map(|p| scorer.prompt_score(&text.encode(&rendered(&p.prompt), false).expect("ids")))
        .collect();
    let mut sorted = scores.clone();
    sorted.sort_by(f32::total_cmp);
    let middle = sorted[COUNT / 2];
    let answers = scratch_dir("query-eval").join("answers.jsonl");
    let (count, thresholds) = (COUNT.to_string(), format!("never,{middle},always"));
    let path = |p: &Path| p.display().to_string();
    let (demo, head, file) = (path(&demo), path(&head), path(&answers));
    let common = ["--demo", "--models", &demo, "--problems", &count, "--router-file", &head, "--json"];
    let flags = ["--thresholds", &thresholds, "--shares", "0.5", "--answers", &file];
    let routers = ["small", "large", "query", "query-random"];
    let asked: Vec<&str> = routers.iter().flat_map(|r| ["--router", r]).collect();
    let (ok, out, err) = run(&[&["eval"], &common[..], &flags, &asked].concat());
    assert!(ok, "{err}");
    let rows: Value = serde_json::from_str(&out).expect("JSON");
    let names: Vec<&str> =
        rows["rows"].as_array().expect("rows").iter().filter_map(|r| r["router"].as_str()).collect();
    assert_eq!(names, ["small", "large", "query", "query", "query", "query-random"]);
    let mut by_row: HashMap<String, Vec<(Value, Value)>> = HashMap::new();
    for line in std::fs::read_to_string(&answers).expect("the answers").lines() {
        let line: Value = serde_json::from_str(line).expect("a JSON line");
        let key = format!("{} {}", line["router"].as_str().expect("a router"), line["threshold"]);
        by_row.entry(key).or_default().push((line["token_ids"].clone(), line["model_index"].clone()));
    }
    let (small, large) = (&by_row["small null"], &by_row["large null"]);
    assert_ne!(small, large);
    assert_eq!(&by_row["query \"never\""], small);
    assert_eq!(&by_row["query \"always\""], large);
    let routed = by_row.iter().find(|(key, _)| key.starts_with("query 0.")).expect("the number's row").1;
    for (i, answer) in routed.iter().enumerate() {
        assert_eq!(answer, if scores[i] >= middle { &large[i] } else { &small[i] }, "problem {i}");
    }
    let one_of_both = |i: usize, answer| answer == &small[i] || answer == &large[i];
    assert!(by_row["query-random 0.5"].iter().enumerate().all(|(i, a)| one_of_both(i, a)));

    // Half of the requests is about half of the tokens, and what was found is said.
    let search = ["--router", "query", "--share", "0.5", "--tolerance", "0.15"];
    let (ok, out, err) = run(&[&["calibrate"], &common[..], &search].concat());
    assert!(ok, "{err}");
    let found: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(found["positions"], COUNT, "one comparison for each prompt: {found}");
    assert!(found["reached"].as_f64().is_some_and(|r| (r - 0.5).abs() <= 0.15), "{found}");
}
