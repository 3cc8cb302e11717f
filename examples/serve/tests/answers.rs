//! The binary answers through the router that it registers, on the command line and over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pair.toml");
const PROMPT: &str = "In January Max has 12 apples. In February Max picks 80 apples. In March Max loses 69 apples. In April Max buys 9 boxes with 3 apples each. How many apples does Max have?";
const ANSWER: &str = "The answer is 50.";

fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tokenrouter-margin"))
}

/// The text of the answer without the marks of its writers, and the summary.
fn generate(flags: &[&str]) -> (String, String) {
    let output = binary()
        .args(["generate", "--config", CONFIG, "--chat", PROMPT])
        .args(flags)
        .output()
        .expect("the binary runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let (text, summary) = out.split_once("written by:").unwrap_or_else(|| panic!("no summary: {out}"));
    (text.replace("[[", "").replace("]]", ""), summary.to_owned())
}

#[test]
fn generate_answers_with_both_models() {
    let (text, summary) = generate(&[]);
    assert!(text.contains(ANSWER), "{text}");
    assert!(!summary.contains(" 0 tokens"), "both models wrote: {summary}");
}

#[test]
fn the_words_are_the_models_alone() {
    for (word, model) in [("never", "small"), ("always", "large")] {
        let answer = |flag, value| generate(&["--max-tokens", "24", flag, value]).0;
        assert_eq!(answer("--threshold", word), answer("--model", model), "{word}");
    }
}

/// A running server; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn serve_answers_over_http() {
    let mut command = binary();
    command.args(["serve", "--config", CONFIG, "--http", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut server = Server(command.spawn().expect("the binary runs"));
    let mut log = BufReader::new(server.0.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let address = log.find_map(|line| Some(line.split_once("http://")?.1.trim().to_owned()));
    let mut socket = TcpStream::connect(address.expect("an address")).expect("the server listens");
    socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    let body = format!(
        r#"{{"model": "pair", "temperature": 0, "messages": [{{"role": "user", "content": "{PROMPT}"}}]}}"#
    );
    let head = "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length:";
    write!(socket, "{head} {}\r\n\r\n{body}", body.len()).expect("the server reads");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("an answer");
    assert!(response.contains("200 OK") && response.contains(ANSWER), "{response}");
    assert!(response.contains("x-token-routing: margin"), "{response}");
}

#[test]
fn the_other_routers_are_still_there() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong.toml");
    let text = std::fs::read_to_string(CONFIG).expect("the configuration").replace("\"margin\"", "\"margn\"");
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
    std::fs::write(&file, text.replace("../models", models)).expect("a file");
    let output = binary().args(["generate", "x", "--config"]).arg(&file).output().expect("the binary runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("did you mean `margin`?"), "{error}");
    assert!(error.contains("r-stitch"), "{error}");
}
