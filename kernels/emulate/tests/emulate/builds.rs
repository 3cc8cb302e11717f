//! The same tests under the race build and the sanitizers, each in a process of its own.

use std::env;
use std::process::Command;

fn again_under(build: &str) {
    if env::var_os("TOKENROUTER_EMU").is_some() {
        // This is one of those processes, or the caller wants just this build.
        return;
    }
    let out = Command::new(env::current_exe().expect("this program"))
        .env("TOKENROUTER_EMU", build)
        .output()
        .expect("this program starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("test bugs::planted_faults_are_caught ... ok"),
        "under {build}:\n{text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn everything_passes_under_the_race_build() {
    again_under("race");
}

#[test]
fn everything_passes_under_the_sanitizers() {
    again_under("asan");
}
