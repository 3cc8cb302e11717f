//! `serve` with flags, variables and files, as far as it goes without serving.

mod support;

use support::process::{binary, run, scratch_dir};
use support::root;

/// Output and errors of a command with variables.
fn with(variables: &[(&str, &str)], args: &[&str]) -> (bool, String, String) {
    let output = binary().args(args).envs(variables.iter().copied()).output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn pair() -> [String; 2] {
    let model =
        |name: &str, folder: &str| format!("{name}={}", root().join("models/demo").join(folder).display());
    [model("small", "slm"), model("large", "llm")]
}

#[test]
fn flags_alone_make_a_deployment_that_checks() {
    let [small, large] = pair();
    let args = ["serve", "--model", &small, "--model", &large, "--router", "r-stitch", "--threshold", "0.05"];
    let more = ["--memory", "64MiB", "--port", "0", "--max-num-seqs", "7", "--api-key", "sk-secret"];
    let all = |last: &'static str| [&args[..], &more[..], &[last]].concat();
    let (ok, out, err) = run(&all("--check"));
    assert!(ok, "{err}");
    for part in ["tokens fit on every model", "r-stitch: threshold 0.05", "the configuration is good"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let variables = [("TOKENROUTER_SERVER_MAX_RUNNING", "9"), ("TOKENROUTER_SERVER_MAX_N", "2")];
    let (ok, out, err) = with(&variables, &all("--print-config"));
    assert!(ok, "{err}");
    for line in [
        "max_running = 7  # --max-num-seqs",
        "max_n = 2  # TOKENROUTER_SERVER_MAX_N",
        "http = \"127.0.0.1:0\"  # --port",
        "threshold = 0.05  # --threshold",
        "max_waiting = 256  # default",
        "# api_keys: 1 set, not shown  # --api-key",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
    assert!(!out.contains("sk-secret") && !err.contains("sk-secret"));
}

#[test]
fn what_was_printed_can_be_served_again() {
    let [small, large] = pair();
    let (ok, out, _) =
        run(&["serve", "--model", &small, "--model", &large, "--router", "me", "--print-config"]);
    assert!(ok);
    let file = scratch_dir("printed").join("pair.toml");
    std::fs::write(&file, out).expect("a file");
    let file = file.display().to_string();
    let (ok, out, err) = run(&[
        "serve",
        "--config",
        &file,
        "--set",
        "router.weights=[0.5, 0.5]",
        "--memory",
        "64MiB",
        "--check",
    ]);
    assert!(ok && out.contains("the configuration is good"), "{out}{err}");
}

#[test]
fn a_check_finds_what_a_start_would_refuse() {
    let [small, large] = pair();
    let both = ["serve", "--check", "--model", &small, "--model", &large];
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--memory", "1MiB", "--router", "me"], &["memory budget", "too small"]),
        (&["--router", "r2r"], &["router.file is missing"]),
        (&["--router", "r-stich"], &["r-stich", "did you mean"]),
        (&["--router", "r-stitch", "--threshold", "often"], &["threshold", "often"]),
        (&["--router", "me", "--set", "server.max_m=1"], &["--set server.max_m", "did you mean \"max_n\""]),
        (
            &["--router", "me", "--max-num-seqs", "many"],
            &["--max-num-seqs", "server.max_running is \"many\""],
        ),
        (&["--router", "me", "--set", "model.large.devices=[0, 1, 2]"], &["model \"large\"", "3"]),
        (&[], &["no [router] section", "--router"]),
    ];
    for (more, parts) in cases {
        let (ok, _, err) = run(&[&both[..], more].concat());
        assert!(!ok && parts.iter().all(|part| err.contains(part)), "{more:?}: {err}");
        assert!(!err.contains("panicked") && err.trim().lines().count() == 1, "{more:?}: {err}");
    }
    // Without a driver, with or without kernels in the binary.
    let (ok, out, err) =
        run(&[&both[..], &["--router", "me", "--set", "model.large.devices=[0, 1]"]].concat());
    assert!(ok, "{out}{err}");
    let cuda = ["--device", "cuda"];
    let (ok, out, err) = run(&[&cuda[..], &both[..], &["--router", "me"]].concat());
    assert!(ok && out.contains("made at the start"), "{out}{err}");
}

#[test]
fn a_repository_comes_from_the_cache_and_is_named_when_it_is_not_there() {
    let cache = scratch_dir("hub");
    let cache_text = cache.display().to_string();
    let args = ["serve", "--check", "--memory", "64MiB", "--model", "one=org/name"];
    let variables = [("HF_HUB_CACHE", cache_text.as_str()), ("HF_HUB_OFFLINE", "1")];
    let (ok, _, err) = with(&variables, &args);
    assert!(!ok && err.contains("model \"one\": org/name") && err.contains("HF_HUB_OFFLINE"), "{err}");

    let commit = "0123456789abcdef0123456789abcdef01234567";
    let place = cache.join("models--org--name");
    let folder = place.join("snapshots").join(commit);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::create_dir_all(place.join("refs")).expect("a folder");
    std::fs::write(place.join("refs/main"), commit).expect("a ref");
    for file in std::fs::read_dir(root().join("models/demo/slm")).expect("the demo") {
        let path = file.expect("an entry").path();
        std::os::unix::fs::symlink(&path, folder.join(path.file_name().expect("a name"))).expect("a link");
    }
    let (ok, out, err) = with(&variables, &args);
    assert!(ok && out.contains("the configuration is good"), "{out}{err}");
}

/// Kubernetes makes such variables for a service of this name.
#[test]
fn variables_of_a_service_called_tokenrouter_do_no_harm() {
    let [small, _] = pair();
    let variables = [
        ("TOKENROUTER_SERVICE_HOST", "10.0.0.7"),
        ("TOKENROUTER_PORT", "tcp://10.0.0.7:8000"),
        ("TOKENROUTER_SERVER_PORT_8000_TCP", "tcp://10.0.0.7:8000"),
        ("TOKENROUTER_SERVER_MAX_M", "1"),
    ];
    let (ok, _, err) = with(&variables, &["serve", "--check", "--model", &small, "--memory", "64MiB"]);
    assert!(ok, "{err}");
    assert_eq!(err.trim().lines().count(), 1, "{err}");
    assert!(err.contains("warning") && err.contains("TOKENROUTER_SERVER_MAX_M"), "{err}");
}

#[test]
fn the_example_of_two_gpus_and_the_reference_are_what_the_binary_knows() {
    let file = root().join("deploy/two-gpus.toml").display().to_string();
    let (ok, out, err) = run(&["serve", "--config", &file, "--print-config"]);
    assert!(ok && out.contains("device = \"cuda\""), "{out}{err}");
    let (ok, out, _) = run(&["config-reference"]);
    let committed = std::fs::read_to_string(root().join("docs/configuration.md")).expect("the reference");
    assert!(ok && out == committed);
}
