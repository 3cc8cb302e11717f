//! `tokenrouter profile` through the binary: what it writes, and who reads it. No time is compared with anything.

mod support;

use std::path::{Path, PathBuf};

use support::process::{demo_config, run, scratch_dir};

const ROUTER: &str = "name = \"r-stitch\"\nthreshold = 0.03";

/// A short measurement of the demo pair, the configuration beside it.
fn measured() -> (PathBuf, String) {
    let dir = scratch_dir("profile");
    std::fs::write(dir.join("pair.toml"), demo_config(ROUTER, "")).expect("a configuration");
    let file = |name: &str| dir.join(name).display().to_string();
    let (config, out) = (file("pair.toml"), file("profile.toml"));
    let short = ["--rounds", "1", "--sample-ms", "1", "--extend", "16", "--rows", "4", "--contexts", "300"];
    let args = ["profile", "--config", &config, "--out", &out, "--context", "64", "--bandwidth-mib", "4"];
    let (ok, report, err) = run(&[&args[..], &short].concat());
    assert!(ok, "{err}");
    assert!(report.contains("small: 1 threads") && report.contains("ms by rows"), "{report}");
    assert!(err.contains("round 1 of 1"), "{err}");
    let text = std::fs::read_to_string(&out).expect("the profile");
    (dir, text)
}

/// `serve --check` of the pair with this profile and these threads of the large model.
fn check(dir: &Path, profile: &str, threads: usize) -> (bool, String, String) {
    let name = format!("check-{threads}.toml");
    std::fs::write(dir.join(format!("profile-{threads}.toml")), profile).expect("a profile");
    let config = demo_config(ROUTER, "") + &format!("[scheduling]\nprofile = \"profile-{threads}.toml\"\n");
    let at = config.rfind("threads = 1").expect("the last model's threads");
    let config = format!("{}threads = {threads}{}", &config[..at], &config[at + "threads = 1".len()..]);
    std::fs::write(dir.join(&name), config).expect("a configuration");
    run(&["serve", "--check", "--config", &dir.join(name).display().to_string()])
}

#[test]
fn the_demo_pair_is_measured_and_the_file_is_read_where_it_is_needed() {
    let (dir, text) = measured();
    let lines_with = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines_with("[[model]]"), 2, "{text}");
    // Both beside one another: one row each, and four of either.
    assert_eq!(
        (lines_with("[[beside]]"), lines_with("other_rows = 1"), lines_with("other_rows = 4")),
        (6, 4, 2),
        "{text}"
    );
    for rows in [1, 2, 3, 4] {
        assert_eq!(lines_with(&format!("{{ rows = {rows},")), 2, "{text}");
    }
    // Chunks of 16 at the usual context and behind the longest.
    assert_eq!((lines_with("{ fed = 16,"), lines_with("far = [")), (4, 2), "{text}");
    for part in ["{ fed = 12,", "{ tokens = 300,", "threads = 1", "print = \"Qwen3ForCausalLM"] {
        assert_eq!(lines_with(part), 2, "{part}: {text}");
    }
    assert_eq!(lines_with("{ rows = 6,"), 0, "{text}");

    // Serving reads it; other threads are refused, and another machine is left out, both by name.
    let (ok, out, err) = check(&dir, &text, 1);
    assert!(ok && out.contains("the configuration is good") && !err.contains("warning"), "{out}{err}");
    let (ok, _, err) = check(&dir, &text, 2);
    assert!(!ok && err.contains("model \"large\" was measured with 1 threads, but it runs with 2"), "{err}");
    let line = text.lines().find(|line| line.starts_with("cpu = ")).expect("the processor");
    let (ok, _, err) = check(&dir, &text.replace(line, "cpu = \"Abacus\""), 1);
    assert!(ok && err.contains("warning") && err.contains("Abacus") && err.contains("left out"), "{err}");
    let (ok, _, err) = check(&dir, &text.replace("version = 1", "version = 99"), 1);
    assert!(!ok && err.contains("version is 99"), "{err}");

    simulated(&dir);
    planned(&dir);
}

#[test]
fn cores_that_are_not_there_are_refused_by_name() {
    let dir = scratch_dir("cores");
    let config = demo_config(ROUTER, "").replacen("threads = 1", "threads = 1\ncores = [1023]", 1);
    let file = dir.join("pair.toml").display().to_string();
    std::fs::write(&file, config).expect("a configuration");
    let (ok, _, err) = run(&["generate", "2 + 3", "--config", &file, "--max-tokens", "2"]);
    assert!(!ok && err.contains("model \"small\": its threads cannot run on cores [1023]"), "{err}");
}

/// The simulator takes the times of models that have none of their own.
fn simulated(dir: &Path) {
    let scenario = "[[model]]\nname = \"small\"\n[[model]]\nname = \"large\"\n[router]\nname = \"matrix\"\n\
                    routing = [[0.65, 0.35], [1, 0]]\ncommit = [[1, 0], [1, 0]]\n[scheduling]\npolicy = \"eager\"\n\
                    [workload]\narrivals = \"closed\"\nclients = 4\nprompt = 16\nanswer = 60\n\
                    [run]\nwarm_up = 100\ntokens = 600\n";
    let file = dir.join("scenario.toml").display().to_string();
    std::fs::write(&file, scenario).expect("a scenario");
    let profile = dir.join("profile.toml").display().to_string();
    let args = ["simulate", &file, "--profile", &profile, "--clients", "2,4", "--handoff", "resume,readmit"];
    let policies = ["--policy", "step-sync", "--policy", "threshold=best", "--policy", "auto"];
    let (ok, out, err) = run(&[&args[..], &policies].concat());
    assert!(ok, "{err}");
    for row in ["step-sync N=2 resume", "step-sync N=4 readmit", "threshold=", "auto N=4 resume"] {
        assert!(out.contains(row), "{row}: {out}");
    }
    assert!(out.contains("2, 4 clients in a closed loop"), "{out}");
    let (ok, _, err) = run(&["simulate", &file]);
    assert!(!ok && err.contains("model \"small\" has no latency_ms"), "{err}");
    std::fs::write(&file, scenario.replace("\"large\"", "\"larger\"")).expect("a scenario");
    let (ok, _, err) = run(&["simulate", &file, "--profile", &profile]);
    assert!(!ok && err.contains("no model \"larger\" (it has: small, large)"), "{err}");
}

/// The chain takes its tables by the size of the batch.
fn planned(dir: &Path) {
    let profile = dir.join("profile.toml").display().to_string();
    let chain = ["--routing", "[[0.65,0.35],[1,0]]", "--commit", "[[1,0],[1,0]]", "--requests", "3"];
    let (ok, out, err) = run(&[&["plan", "--profile", &profile], &chain[..]].concat());
    assert!(ok && out.contains("best B = "), "{out}{err}");
    let one = ["plan", "--profile", &profile, "--routing", "[[1]]", "--commit", "[[1]]", "--requests", "3"];
    let (ok, _, err) = run(&one);
    assert!(!ok && err.contains("has 2 models, and --routing is of 1"), "{err}");
}
