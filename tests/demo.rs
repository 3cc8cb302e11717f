//! The first thing that a newcomer runs.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::process::{binary, run, scratch_dir};
use support::{is_right, problems};

/// The number at the end of the built-in prompt's answer, by doing the sums of the evaluation set.
fn built_in_answer(output: &str) -> String {
    let all = problems(usize::MAX);
    let asked =
        all.iter().find(|p| output.contains(&p.prompt)).expect("the prompt is one of the evaluation set");
    asked.answer.clone()
}

#[test]
fn demo_once_shows_an_answer_that_both_models_wrote_and_that_is_right() {
    let (ok, out, err) = run(&["demo", "--once", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"]);
    assert!(ok, "{out}\n{err}");
    assert!(is_right(&out.replace("[[", "").replace("]]", ""), &built_in_answer(&out)), "{out}");
    assert!(out.contains("[[") && out.contains("]]"), "the large model's tokens are marked:\n{out}");
    let summary = out.lines().find(|l| l.starts_with("written by:")).expect("a summary");
    assert!(!summary.contains(" 0 tokens"), "both models wrote tokens: {summary}");
    assert!(out.contains("handoffs"), "{out}");
}

#[test]
fn the_small_model_alone_is_wrong_on_that_prompt() {
    let (_, out, _) = run(&["demo", "--once", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"]);
    let answer = built_in_answer(&out);
    let all = problems(usize::MAX);
    let asked = all.iter().find(|p| out.contains(&p.prompt)).expect("the prompt");
    let generate = |model: &str| {
        let (ok, out, err) = run(&["generate", "--chat", "--model", model, &asked.prompt]);
        assert!(ok, "{err}");
        out.replace("[[", "").replace("]]", "")
    };
    assert!(!is_right(&generate("small"), &answer), "the small model alone gets it wrong");
    assert!(is_right(&generate("demo"), &answer), "the routed pair gets it right");
}

#[test]
fn a_port_in_use_and_a_missing_pair_are_one_clear_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (ok, _, err) = run(&["demo", "--once", "--http", &address, "--tcp", "127.0.0.1:0"]);
    assert!(!ok && err.contains(&address) && err.lines().count() == 1, "{err}");

    let empty = scratch_dir("no-pair").display().to_string();
    let (ok, _, err) = run(&["demo", "--once", "--models", &empty]);
    assert!(!ok && err.contains(&empty) && err.lines().count() == 1, "{err}");
}

#[test]
fn bad_flags_and_bad_files_name_the_fault() {
    let dir = scratch_dir("bad-config");
    let file = dir.join("pair.toml");
    let cases = [
        // A port of its own: on the usual one a demo may be serving.
        (
            "[[model]]\nname = \"a\"\npath = \"nowhere\"\n[router]\nname = \"single\"\n[server]\nhttp = \"127.0.0.1:0\"\n",
            "nowhere",
        ),
        ("[[model]]\nnam = \"a\"\npath = \"x\"\n[router]\nname = \"single\"\n", "did you mean \"name\""),
        ("[[model]]\nname = \"a\"\n", "path"),
        ("this is not toml", "line 1"),
    ];
    for (text, expected) in cases {
        std::fs::write(&file, text).expect("a file");
        let (ok, _, err) = run(&["serve", "--config", &file.display().to_string()]);
        assert!(!ok && err.contains(expected), "{text}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
    let (ok, _, err) = run(&["generate", "--model", "medium", "x"]);
    assert!(!ok && err.contains("medium") && err.contains("small, large"), "{err}");
    let (ok, _, err) = run(&["generate", "--threshold", "often", "x"]);
    assert!(!ok && err.contains("threshold"), "{err}");
    let (ok, _, err) = run(&["generate", "--temperature", "-1", "x"]);
    assert!(!ok && err.contains("temperature"), "{err}");
}

/// The text behind a closed pipe went nowhere, and so did the order to stop: the demo went on for ever.
#[test]
fn a_demo_whose_output_is_closed_ends() {
    let mut child = binary()
        .args(["demo", "--once", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("UTF-8");
    assert!(!child.wait().expect("it ends").success());
    assert!(err.contains("standard output") && !err.contains("panicked"), "{err}");
}

#[test]
fn prompts_that_leave_no_room_are_refused_with_the_numbers() {
    // A word is a token at least, so the prompt has more than 8,000; how many, the error says.
    let (ok, _, err) = run(&["generate", &"Ann has 97 coins. ".repeat(2000)]);
    let numbers: Vec<u32> =
        err.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
    assert!(!ok && numbers.iter().any(|n| *n > 8000) && numbers.contains(&4096), "{err}");
    let (ok, _, err) = run(&["generate", "--max-tokens", "0", "Ann"]);
    assert!(!ok && err.contains("--max-tokens"), "{err}");
    let (ok, _, err) = run(&["generate", ""]);
    assert!(!ok && err.contains("prompt is empty"), "{err}");
}
