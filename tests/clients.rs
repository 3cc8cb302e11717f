//! Clients that we did not write: the official `openai` package and curl, against the real binary.

mod support;

use std::process::Command;

use support::process::{ServerProcess, demo_config};
use support::{root, skip};

fn server() -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", ""))
}

#[test]
fn the_openai_package_streams_a_chat() {
    let Some(python) = std::env::var_os("TOKENROUTER_CLIENT_PYTHON") else {
        return skip("TOKENROUTER_CLIENT_PYTHON names no Python with tests/clients/requirements.txt");
    };
    let server = server();
    let output = Command::new(python)
        .arg(root().join("tests/clients/openai_stream.py"))
        .arg(format!("http://{}/v1", server.http))
        .output()
        .expect("python runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    server.stop();
}

#[test]
fn curl_streams_a_chat_and_may_be_killed() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip("curl is not installed");
    }
    let server = server();
    let output = Command::new("bash")
        .arg(root().join("tests/clients/curl_stream.sh"))
        .arg(format!("http://{}", server.http))
        .arg("--kill")
        .output()
        .expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    server.stop();
}
