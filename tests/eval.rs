//! `tokenrouter eval` through the binary, on the demo pair and heads with random weights: the rows, and every answer behind
//! them, token for token against the sequential reference.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::heads::{KINDS, Scorer, run_scored, write_random};
use support::process::{self, demo_config, run_bare as run, scratch_dir};
use support::reference::{RefRequest, RefRouter, Reference};
use support::{is_right, problems, rendered};
use tokenrouter_engine::SamplingParams;

const PROBLEMS: usize = 20;
const MAX_TOKENS: usize = 256;

/// One line of `--answers`.
struct Line {
    text: String,
    right: bool,
    tokens: Vec<u32>,
    writers: Vec<u8>,
}

/// Rows, and the answers by (router, threshold).
struct Outcome {
    rows: Vec<Value>,
    answers: HashMap<(String, String), Vec<Line>>,
}

/// A head of every kind, and the flags that name them.
fn heads(dir: &Path) -> (Vec<PathBuf>, Vec<String>) {
    let paths: Vec<PathBuf> = KINDS.iter().map(|kind| dir.join(kind)).collect();
    for (kind, path) in KINDS.iter().zip(&paths) {
        write_random(kind, path, None);
    }
    let flags = paths.iter().flat_map(|p| ["--router-file".to_owned(), p.display().to_string()]).collect();
    (paths, flags)
}

fn eval(count: usize, extra: &[String]) -> Outcome {
    let dir = scratch_dir("eval");
    let (file, count) = (dir.join("answers.jsonl").display().to_string(), count.to_string());
    let mut args = vec!["eval", "--demo", "--problems", &count, "--json", "--answers", &file];
    args.extend(extra.iter().map(String::as_str));
    let (ok, out, err) = run(&args);
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let ids = |v: &Value| v.as_array().expect("a list").iter().map(|n| n.as_u64().expect("an id")).collect();
    let mut answers: HashMap<(String, String), Vec<Line>> = HashMap::new();
    for line in std::fs::read_to_string(&file).expect("the answers").lines() {
        let line: Value = serde_json::from_str(line).expect("a JSON line");
        let key = (line["router"].as_str().expect("a router").to_owned(), line["threshold"].to_string());
        let tokens: Vec<u64> = ids(&line["token_ids"]);
        let writers: Vec<u64> = ids(&line["model_index"]);
        let answers = answers.entry(key).or_default();
        assert_eq!(line["prompt"], answers.len());
        answers.push(Line {
            text: line["text"].as_str().expect("a text").to_owned(),
            right: line["right"].as_bool().expect("a flag"),
            tokens: tokens.iter().map(|n| *n as u32).collect(),
            writers: writers.iter().map(|n| *n as u8).collect(),
        });
    }
    Outcome { rows: value["rows"].as_array().expect("rows").clone(), answers }
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|a| (*a).to_owned()).collect()
}

/// Token ids of the prompts, from the models' own tokenizer.
fn prompts(count: usize) -> Vec<Vec<u32>> {
    let text = tokenrouter_server::text::TextModel::load(&support::root().join("models/demo/slm"))
        .expect("a tokenizer");
    problems(count).iter().map(|p| text.encode(&rendered(&p.prompt), false).expect("ids")).collect()
}

fn reference(reference: &Reference, router: RefRouter, prompt: &[u32], seed: u64) -> (Vec<u32>, Vec<u8>) {
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = RefRequest { prompt, max_tokens: MAX_TOKENS, sampling, seed, choice: 0 };
    reference.run(router, &request)
}

#[test]
fn each_model_alone_gives_the_references_answers_and_accuracy() {
    let outcome = eval(PROBLEMS, &strings(&["--router", "small", "--router", "large"]));
    assert_eq!(outcome.rows.len(), 2);
    let (pair, prompts, problems) = (Reference::demo(), prompts(PROBLEMS), problems(PROBLEMS));
    for (model, name) in ["small", "large"].into_iter().enumerate() {
        let answers = &outcome.answers[&(name.to_owned(), "null".to_owned())];
        let mut right = 0;
        for (i, answer) in answers.iter().enumerate() {
            let (tokens, writers) = reference(&pair, RefRouter::Single(model), &prompts[i], i as u64);
            assert_eq!((&answer.tokens, &answer.writers), (&tokens, &writers), "{name} {i}");
            assert_eq!(
                answer.right,
                is_right(&answer.text, &problems[i].answer),
                "{name} {i}: {}",
                answer.text
            );
            right += u32::from(answer.right);
        }
        let row = &outcome.rows[model];
        assert_eq!((row["router"].as_str(), row["threshold"].is_null()), (Some(name), true));
        assert_eq!(row["accuracy"].as_f64(), Some(f64::from(right) / PROBLEMS as f64), "{row}");
        assert_eq!(row["large_share"].as_f64(), Some(model as f64));
        assert_eq!(row["handoffs_per_answer"], 0.0);
        assert!(row["tokens_per_s"].as_f64().is_some_and(|t| t > 0.0), "{row}");
    }
    let accuracy = |i: usize| outcome.rows[i]["accuracy"].as_f64().expect("a share");
    assert!(accuracy(1) > accuracy(0), "the large model is the better one");
}

#[test]
fn never_and_always_are_the_models_alone_token_for_token() {
    let (_, mut flags) = heads(&scratch_dir("ends"));
    flags.extend(strings(&["--thresholds", "never,always", "--shares", "0,1"]));
    let outcome = eval(5, &flags);
    let alone = |name: &str| &outcome.answers[&(name.to_owned(), "null".to_owned())];
    let routers = ["r2r", "citer", "co-llm", "r-stitch", "me", "query", "fixed"];
    for router in routers {
        let words = if ["me", "query", "fixed"].contains(&router) {
            ["0.0", "1.0"]
        } else {
            ["\"never\"", "\"always\""]
        };
        for (word, model) in words.into_iter().zip(["small", "large"]) {
            let answers = outcome.answers.get(&(router.to_owned(), word.to_owned()));
            let answers =
                answers.unwrap_or_else(|| panic!("{router} {word} of {:?}", outcome.answers.keys()));
            for (i, (answer, alone)) in answers.iter().zip(alone(model)).enumerate() {
                assert_eq!(answer.tokens, alone.tokens, "{router} {word}, problem {i}");
                assert_eq!(answer.writers, alone.writers, "{router} {word}, problem {i}");
            }
        }
    }
}

/// The length of the longest common subsequence, from the whole table.
fn longest_common(a: &[Value], b: &[Value]) -> usize {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let skip = table[i + 1][j].max(table[i][j + 1]);
            table[i][j] = if a[i] == b[j] { table[i + 1][j + 1] + 1 } else { skip };
        }
    }
    table[0][0]
}

#[test]
fn without_answers_the_large_models_own_are_the_measure() {
    let dir = scratch_dir("agreement");
    let path = |name: &str| dir.join(name).display().to_string();
    let (own, log, svg) = (path("own.jsonl"), path("answers.jsonl"), path("eval.svg"));
    let lines = problems(6).into_iter().map(|p| serde_json::json!({"prompt": p.prompt}).to_string() + "\n");
    std::fs::write(&own, lines.collect::<String>()).expect("prompts");
    // The large model is not asked for, and is measured all the same.
    let sweep = ["--router", "small", "--router", "r-stitch", "--thresholds", "never,0.03,always"];
    let files = ["--prompts", &own, "--answers", &log, "--svg", &svg];
    let (ok, out, err) = run(&[&["eval", "--demo", "--json"], &sweep[..], &files].concat());
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let log = std::fs::read_to_string(&log).expect("the answers");
    let answers: Vec<Value> = log.lines().map(|l| serde_json::from_str(l).expect("a JSON line")).collect();
    let of = |router: &Value, threshold: &Value| -> Vec<&Value> {
        answers.iter().filter(|a| a["router"] == *router && a["threshold"] == *threshold).collect()
    };
    let rows = value["rows"].as_array().expect("rows");
    let shown: Vec<String> = rows.iter().map(|r| format!("{} {}", r["router"], r["threshold"])).collect();
    let points = ["\"never\"", "0.03", "\"always\""].map(|t| format!("\"r-stitch\" {t}"));
    let alone = ["\"large\" null", "\"small\" null"].map(str::to_owned);
    assert_eq!(shown, [&alone[..], &points].concat());
    let large = of(&"large".into(), &Value::Null);
    let mut agreed = Vec::new();
    for row in rows {
        let answers = of(&row["router"], &row["threshold"]);
        let (mut sum, mut same) = (0.0, 0);
        for (answer, large) in answers.iter().zip(&large) {
            let ids = |v: &Value| v["token_ids"].as_array().expect("ids").clone();
            let (a, b) = (ids(answer), ids(large));
            let f1 = 2.0 * longest_common(&a, &b) as f64 / (a.len() + b.len()) as f64;
            assert!(answer["agreement"].as_f64().is_some_and(|x| (x - f1).abs() < 1e-12), "{answer}: {f1}");
            assert!(answer["right"].is_null(), "{answer}");
            sum += f1;
            same += u32::from(a == b);
        }
        let agreement = row["agreement"].as_f64().expect("a share");
        assert!((agreement - sum / 6.0).abs() < 1e-12, "{row}: {}", sum / 6.0);
        assert_eq!(row["exact"].as_f64(), Some(f64::from(same) / 6.0), "{row}");
        assert!(row["accuracy"].is_null() && row["right"].is_null() && row["answers"] == 6, "{row}");
        assert!(
            row["cpu_seconds"].is_null() || row["cpu_seconds"].as_f64().is_some_and(|s| s >= 0.0),
            "{row}"
        );
        agreed.push((agreement, row["exact"].as_f64().expect("a share"), row["gap_recovered"].as_f64()));
    }
    // `never` is the small model; R-Stitch agrees more.
    assert_eq!(agreed[0], (1.0, 1.0, Some(1.0)));
    assert_eq!((agreed[1], agreed[1].2), (agreed[2], Some(0.0)));
    assert!(agreed[1].0 < 1.0 && agreed[3].0 > agreed[1].0 && agreed[1].0 > 0.0, "{agreed:?}");
    let svg = std::fs::read_to_string(&svg).expect("the plot");
    assert!(svg.contains("agreement with the large model, %") && !svg.contains("right answers"), "{svg}");
}

#[test]
fn agreement_can_be_asked_for_where_there_are_answers() {
    let flags = ["--problems", "2", "--router", "small", "--quality", "agreement"];
    let (ok, out, err) = run(&[&["eval", "--demo"], &flags[..]].concat());
    assert!(ok, "{err}");
    assert!(out.contains("agree %  exact %") && !out.contains("right %"), "{out}");
    let line = out.lines().find(|l| l.starts_with("large")).expect("the large model");
    assert_eq!(line.split_whitespace().nth(2), Some("100.0"), "{out}");
}

/// The quarter of the small model's tokens that ask first, so that every router really routes.
fn middle(kind: &str, head: &Path) -> f32 {
    let mut args =
        strings(&["calibrate", "--demo", "--problems", "4", "--share", "0.25", "--json", "--tries", "1"]);
    args.extend(strings(&["--router", kind, "--router-file"]));
    args.push(head.display().to_string());
    let (ok, out, err) = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    value["threshold"].as_f64().unwrap_or_else(|| panic!("a number: {value}")) as f32
}

#[test]
fn every_algorithms_greedy_answers_are_those_of_the_sequential_loop() {
    const COUNT: usize = 4;
    let (paths, _) = heads(&scratch_dir("loop"));
    let (pair, prompts) = (Reference::demo(), prompts(COUNT));
    for (kind, path) in KINDS.into_iter().zip(&paths) {
        let threshold = middle(kind, path);
        let text = threshold.to_string();
        let mut flags = strings(&["--router", kind, "--thresholds", &text, "--router-file"]);
        flags.push(path.display().to_string());
        let outcome = eval(COUNT, &flags);
        let asks = |score: f32| match kind {
            "r2r" => score >= threshold,
            "citer" => score < threshold,
            _ => score > threshold,
        };
        let mut scorer = Scorer::new(path);
        let answers = outcome.answers.values().next().expect("answers");
        let mut large = 0;
        for (i, answer) in answers.iter().enumerate() {
            let (tokens, writers) = run_scored(&pair, &mut scorer, asks, &prompts[i], MAX_TOKENS);
            assert_eq!((&answer.tokens, &answer.writers), (&tokens, &writers), "{kind} {text}, problem {i}");
            large += writers.iter().filter(|w| **w == 1).count();
        }
        assert!(large > 0, "{kind} routes nothing at {text}");
    }
    let flags = ["--router", "r-stitch", "--router", "me", "--router", "query", "--router", "fixed"];
    let outcome = eval(COUNT, &strings(&[&flags[..], &["--thresholds", "0.03", "--shares", "0.4"]].concat()));
    let rules = [
        ("r-stitch", "0.03", RefRouter::RStitch(0.03)),
        ("me", "0.4", RefRouter::Mixture([0.6, 0.4])),
        ("query", "0.4", RefRouter::Query(f64::from(0.4_f32))),
        ("fixed", "0.4", RefRouter::Fixed(f64::from(0.4_f32))),
    ];
    for (router, knob, rule) in rules {
        let answers = &outcome.answers[&(router.to_owned(), knob.to_owned())];
        for (i, answer) in answers.iter().enumerate() {
            let (tokens, writers) = reference(&pair, rule, &prompts[i], i as u64);
            assert_eq!((&answer.tokens, &answer.writers), (&tokens, &writers), "{router}, problem {i}");
        }
    }
}

#[test]
fn the_table_and_the_plot_show_every_row() {
    let svg = scratch_dir("plot").join("eval.svg").display().to_string();
    let sweep = ["--thresholds", "0.01,0.1", "--shares", "0.3", "--svg", &svg, "--concurrency", "3"];
    let (ok, out, err) = run(&[&["eval", "--demo", "--problems", "4"], &sweep[..]].concat());
    assert!(ok, "{err}");
    let rows = ["small", "large", "r-stitch", "me", "query", "fixed"];
    for name in rows {
        let lines = out.lines().filter(|l| l.starts_with(name)).count();
        assert_eq!(lines, if name == "r-stitch" { 2 } else { 1 }, "{name}: {out}");
    }
    assert!(out.contains("4 problems, 3 at a time, greedy"), "{out}");
    assert!(!err.contains('\r'), "no progress bar without a terminal: {err:?}");
    let svg = std::fs::read_to_string(&svg).expect("the plot");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in rows.into_iter().chain(["tokens/s", "tokens by the large model, %", "right answers, %"]) {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn three_models_and_a_file_of_ones_own() {
    let dir = scratch_dir("three");
    let models = support::root().join("models/demo");
    let third = format!("[[model]]\nname = \"third\"\npath = {:?}\nthreads = 1\n", models.join("llm"));
    let text = demo_config("name = \"me\"\nweights = [0.5, 0.3, 0.2]", "");
    let text = text.replacen("[router]", &format!("{third}[router]"), 1);
    std::fs::write(dir.join("three.toml"), text).expect("a configuration");
    let lines = "{\"prompt\": \"Max has 12 apples. How many apples does Max have?\", \"answer\": 12, \"score\": 0.9}\n\n\
                 {\"prompt\": \"Ann has 97 coins. How many coins does Ann have?\", \"answer\": \"97\", \"score\": 0.1}\n";
    std::fs::write(dir.join("own.jsonl"), lines).expect("prompts");
    let path = |name: &str| dir.join(name).display().to_string();
    let (config, own) = (path("three.toml"), path("own.jsonl"));
    let args = ["eval", "--config", &config, "--prompts", &own, "--json", "--shares", "0.5"];
    let (ok, out, err) = run(&args);
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let rows = value["rows"].as_array().expect("rows");
    let row = |router: &str, route: &str| {
        let found = rows.iter().find(|r| r["router"] == router && r["route"] == route);
        found.unwrap_or_else(|| panic!("{router} {route} in {out}"))
    };
    for (router, route) in [("small", "small"), ("large", "third"), ("large alone", "large")] {
        assert_eq!(row(router, route)["answers"], 2);
    }
    let mixture = row("me", "demo");
    assert!(mixture["threshold"].is_null(), "{mixture}");
    assert_eq!(mixture["shares"].as_array().map(Vec::len), Some(3));
    assert!(mixture["shares"][2].as_f64().is_some_and(|s| s > 0.0), "{mixture}");
    // By score: one of the two prompts goes to the last model, whatever the seeds.
    let query = row("query", "query");
    assert!(query["shares"][2].as_f64().is_some_and(|s| s > 0.2 && s < 0.8), "{query}");
}

#[test]
fn what_cannot_be_measured_is_refused_by_name() {
    let dir = scratch_dir("refused");
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).expect("a file");
        dir.join(name).display().to_string()
    };
    let citer = dir.join("citer");
    write_random("citer", &citer, None);
    let nan = dir.join("nan");
    write_random("co-llm", &nan, None);
    let weights = nan.join("router.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&weights, bytes).expect("weights");
    let own = write("own.jsonl", "{\"prompt\": \"Max has 12.\"}\n");
    let bad = write("bad.jsonl", "{\"prompt\": \"a\", \"answer\": 1}\n{\"answer\": 2}\n");
    let half = write("half.jsonl", "{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"b\"}\n");
    let empty = write("empty.jsonl", "\n");
    let file = format!("file = {:?}", citer.display().to_string());
    let config = |name: &str, router: &str| write(name, &demo_config(router, ""));
    let wrong_kind = config("kind.toml", &format!("name = \"r2r\"\n{file}"));
    let no_threshold = config("none.toml", &format!("name = \"citer\"\n{file}"));
    let no_reader = config("reader.toml", &format!("name = \"r-stitch\"\n{file}"));
    let both = config("both.toml", &format!("name = \"citer\"\nhead = 0\nthreshold = 0.5\n{file}"));
    let unknown = config("key.toml", &format!("name = \"citer\"\nthreshold = 0.5\ntreshold = 0.5\n{file}"));
    let no_file = config("file.toml", "name = \"r2r\"\nthreshold = 0.5");
    let one = demo_config("name = \"single\"", "");
    let (large, rest) = (one.rfind("[[model]]").expect("two"), one.find("[router]").expect("a router"));
    let single = write("single.toml", &format!("{}{}", &one[..large], &one[rest..]));
    let nan = nan.display().to_string();
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["eval", "--demo", "--problems", "1", "--router", "r2r"], "--router r2r needs a router file"),
        (vec!["eval", "--demo", "--problems", "1", "--router", "r-stich"], "did you mean \"r-stitch\"?"),
        (vec!["eval", "--demo", "--thresholds", "0.1,often"], "--thresholds"),
        (vec!["eval", "--demo", "--thresholds", "1.5"], "from 0 to 1"),
        (vec!["eval", "--demo", "--shares", "2"], "--shares has 2"),
        (
            vec!["eval", "--demo", "--prompts", &own, "--quality", "answer"],
            "prompt 0 has no \"answer\"; --quality agreement",
        ),
        (vec!["eval", "--demo", "--prompts", &half], "prompt 1 has no \"answer\""),
        (vec!["eval", "--demo", "--quality", "agreement", "--check", "exact"], "--check says when"),
        (vec!["eval", "--config", &single, "--prompts", &own], "one model is configured"),
        (vec!["eval", "--demo", "--prompts", &bad], "bad.jsonl, line 2: \"prompt\""),
        (vec!["eval", "--demo", "--prompts", &empty], "no prompt"),
        (vec!["eval", "--demo", "--prompts", "no/such.jsonl"], "no/such.jsonl"),
        (vec!["eval", "--demo", "--router-file", &nan], "defer_row"),
        (vec!["eval", "--demo", "--router-file", "no/such"], "no/such"),
        (vec!["serve", "--config", &wrong_kind], "kind \"citer\", but router \"r2r\""),
        (vec!["serve", "--config", &no_threshold], "has no threshold: neither its section"),
        (vec!["serve", "--config", &no_reader], "reads no router file"),
        (vec!["serve", "--config", &both], "`head` exclude each other"),
        (vec!["serve", "--config", &unknown], "did you mean `threshold`"),
        (vec!["serve", "--config", &no_file], "router.file is missing"),
        (vec!["calibrate", "--demo", "--share", "1.1"], "--share is 1.1"),
        (
            vec!["calibrate", "--demo", "--share", "0.1", "--router", "nobody"],
            "\"nobody\"; this deployment has r-stitch",
        ),
    ];
    for (args, expected) in cases {
        let (ok, out, err) = run(&args);
        let last = err.trim_end().lines().last().unwrap_or_default();
        assert!(!ok && out.is_empty() && last.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn calibrate_reaches_the_share_and_prints_the_line_to_paste() {
    let (paths, _) = heads(&scratch_dir("calibrate"));
    let mut routers: Vec<(&str, Option<String>)> = vec![("r-stitch", None)];
    routers.extend(KINDS.into_iter().zip(&paths).map(|(kind, p)| (kind, Some(p.display().to_string()))));
    for (router, file) in routers {
        let mut args =
            vec!["calibrate", "--demo", "--problems", "6", "--share", "0.2", "--tolerance", "0.02"];
        args.extend(["--router", router]);
        args.extend(file.iter().flat_map(|f| ["--router-file", f]));
        let (ok, out, err) = run(&args);
        assert!(ok && err.contains(&format!("router {router}: threshold ")), "{err}");
        let number: f32 = out
            .trim()
            .strip_prefix("threshold = ")
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("{out}"));
        // What eval measures there is what calibrate said.
        let text = number.to_string();
        let mut flags = strings(&["--router", router, "--thresholds", &text]);
        flags.extend(file.iter().flat_map(|f| ["--router-file".to_owned(), f.clone()]));
        let outcome = eval(6, &flags);
        let share = outcome.rows[0]["large_share"].as_f64().expect("a share");
        assert!((share - 0.2).abs() <= 0.02, "{router} {text}: {share}; {err}");
    }
}

/// The router files beside the demo pair belong to it, and the learned one does what it is there for: nearly every answer
/// right with few tokens by the large model (all 500 problems are in docs/results.md).
#[test]
fn the_demo_pairs_own_routers_load_and_recover_the_gap() {
    let kinds = ["r2r", "citer", "co-llm", "query"];
    let routers: Vec<&str> = ["small", "large"].iter().chain(&kinds).flat_map(|k| ["--router", k]).collect();
    let flags = ["eval", "--demo", "--problems", "40", "--thresholds", "0.15", "--json"];
    let (ok, out, err) = process::run(&[&flags[..], &routers].concat());
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    let row = |router: &str, field: &str| {
        let rows = value["rows"].as_array().expect("rows");
        let row = rows.iter().find(|r| r["router"] == router).expect("a row of every router");
        row[field].as_f64().expect("a number")
    };
    for kind in kinds {
        assert!(row(kind, "accuracy") >= row("small", "accuracy"), "{kind}: {out}");
    }
    let (small, large) = (row("small", "accuracy"), row("large", "accuracy"));
    assert!(small < 0.75 && large > 0.95, "{out}");
    assert!(row("r2r", "accuracy") > small + 0.8 * (large - small), "{out}");
    assert!(row("r2r", "large_share") < 0.1, "{out}");
}
