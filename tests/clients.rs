//! Clients that we did not write: the official `openai` package and curl, against the real binary.

mod support;

use std::ffi::OsStr;
use std::process::Command;

use support::process::{ServerProcess, demo_config};
use support::scripted::{SURE, Script, pair_config};
use support::tokenizers::{START, byte_bpe};
use support::{root, skip};

fn server(more: &str) -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", more))
}

/// Runs a script of `tests/clients`, which says itself what went wrong.
fn run(program: impl AsRef<OsStr>, script: &str, args: &[&str]) {
    let output = Command::new(program).arg(root().join("tests/clients").join(script)).args(args).output();
    let output = output.expect("the interpreter runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    println!("{text}");
}

/// A Python with the package, or a line that says why the test is skipped.
fn openai(script: &str, args: &[&str]) {
    match std::env::var_os("TOKENROUTER_CLIENT_PYTHON") {
        Some(python) => run(python, script, args),
        None => skip("TOKENROUTER_CLIENT_PYTHON names no Python with tests/clients/requirements.txt"),
    }
}

fn curl(script: &str, args: &[&str]) {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    run("bash", script, args);
}

#[test]
fn the_openai_package_streams_a_chat() {
    let server = server("");
    openai("openai_stream.py", &[&format!("http://{}/v1", server.http)]);
    server.stop();
}

#[test]
fn the_openai_package_sends_and_finds_what_it_does_not_know() {
    let server = server("");
    openai("openai_suite.py", &["extras", &format!("http://{}/v1", server.http)]);
    server.stop();
}

#[test]
fn the_openai_package_is_told_when_to_come_again() {
    let server = server("max_running = 1\nmax_waiting = 1");
    openai("openai_suite.py", &["retries", &format!("http://{}/v1", server.http)]);
    server.stop();
}

/// Behind the token "p" the model has no numbers.
#[test]
fn the_openai_package_sees_a_failure_in_mid_stream_and_does_not_ask_again() {
    let tokenizer = byte_bpe(&[]);
    let start = tokenizer.control(START);
    let mut script = Script::new(&tokenizer);
    script.chain(&[start, tokenizer.id("a"), tokenizer.id("b"), tokenizer.id("p")]);
    script.say(tokenizer.id("p"), tokenizer.id("c"), SURE);
    script.poisoned = vec![tokenizer.id("p")];
    let dir = script.write("poisoned", &tokenizer);
    let server = ServerProcess::start(&pair_config(&dir, &dir, "name = \"single\"\nmodel = \"small\"", ""));
    let url = format!("http://{}/v1", server.http);
    openai("openai_suite.py", &["failures", &url, "--poison", &start.to_string()]);
    server.stop();
}

#[test]
fn curl_streams_a_chat_and_may_be_killed() {
    let server = server("");
    curl("curl_stream.sh", &[&format!("http://{}", server.http), "--kill"]);
    server.stop();
}

#[test]
fn curl_speaks_every_http_it_knows() {
    let server = server("");
    curl("curl_protocol.sh", &[&format!("http://{}", server.http)]);
    server.stop();
}
