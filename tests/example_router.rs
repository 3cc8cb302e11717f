//! The router of `examples/` stays what it is there to show: outside this workspace, on the scheduler crate alone, with
//! the dependency versions that this workspace was tested with. Its own tests run in CI, from its own workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Name, version and checksum of everything in a lock file.
fn packages(lock: &str) -> BTreeSet<String> {
    let field = |entry: &str, key: &str| {
        let line = entry.lines().find_map(|l| l.strip_prefix(&format!("{key} = ")));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let of = |entry: &str| format!("{} {}", field(entry, "name"), field(entry, "version"));
    let entries = lock.split("[[package]]\n").skip(1);
    entries.map(|entry| format!("{} {}", of(entry), field(entry, "checksum"))).collect()
}

/// The lines of a section of a manifest.
fn section(manifest: &str, name: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|l| *l != format!("[{name}]")).skip(1);
    lines.take_while(|l| !l.starts_with('[')).filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

#[test]
fn its_lock_file_has_the_versions_of_this_workspace() {
    let (ours, theirs) = (packages(&read("Cargo.lock")), packages(&read("examples/Cargo.lock")));
    let mine = ["margin-router 0.1.0 ", "tokenrouter-margin 0.1.0 "].map(str::to_owned);
    let others: Vec<&String> = theirs.difference(&ours).filter(|p| !mine.contains(p)).collect();
    assert!(theirs.len() > 50, "packages were read: {theirs:?}");
    assert!(
        others.is_empty(),
        "cp Cargo.lock examples/ && cargo metadata --offline --manifest-path examples/Cargo.toml: {others:?}"
    );
}

#[test]
fn the_library_depends_on_the_scheduler_alone() {
    let dependencies = section(&read("examples/margin/Cargo.toml"), "dependencies");
    assert_eq!(dependencies, [r#"tokenrouter-scheduler = { path = "../../scheduler" }"#]);
    assert!(!read("Cargo.toml").contains("examples"), "it is no member");
    assert!(read("examples/Cargo.toml").contains("[workspace]"));
}

#[test]
fn the_binary_is_ten_lines() {
    let main = read("examples/serve/src/main.rs");
    assert!(main.lines().count() <= 10, "{main}");
}
