//! House rules as a test: who may import whom, file length, a SAFETY line per unsafe block, no leftovers.

use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 600;
const CRATES: [&str; 4] = ["kernels", "scheduler", "engine", "server"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(dir: &Path, ext: &[&str], out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, ext, out);
            }
        } else if path.extension().is_some_and(|e| ext.iter().any(|x| e == *x)) {
            out.push(path);
        }
    }
}

/// Every source file of the house with its path relative to the root.
fn sources(ext: &[&str]) -> Vec<(String, String)> {
    let mut paths = vec![root().join("build.rs")];
    for dir in CRATES.iter().chain(&["tests", "benches", "models", "examples"]) {
        collect(&root().join(dir), ext, &mut paths);
    }
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| ext.iter().any(|x| e == *x)))
        .map(|p| {
            let text = fs::read_to_string(&p).expect("sources are UTF-8");
            (p.strip_prefix(root()).expect("below the root").display().to_string(), text)
        })
        .collect()
}

fn fail_if_any(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn files_stay_short() {
    let long: Vec<String> = sources(&["rs", "py", "cu", "cuh", "hpp"])
        .iter()
        .filter(|(_, text)| text.lines().count() > MAX_LINES)
        .map(|(path, text)| format!("{path}: {} lines, at most {MAX_LINES}", text.lines().count()))
        .collect();
    fail_if_any("files over the length limit", &long);
}

#[test]
fn every_unsafe_has_a_safety_line() {
    let mut found = Vec::new();
    for (path, text) in sources(&["rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let opens = code.contains("unsafe {") || code.contains("unsafe impl");
            if opens && !path.ends_with("tidy.rs") && !has_safety_above(&lines, i) {
                found.push(format!("{path}:{}", i + 1));
            }
        }
    }
    fail_if_any("unsafe without a SAFETY line above it", &found);
}

/// A SAFETY comment on the line itself, or in the comment block that ends just above it.
fn has_safety_above(lines: &[&str], at: usize) -> bool {
    if lines[at].contains("SAFETY:") {
        return true;
    }
    lines[..at]
        .iter()
        .rev()
        .take_while(|l| l.trim_start().starts_with("//") || l.trim_start().starts_with("#["))
        .any(|l| l.contains("SAFETY:"))
        // A statement broken over two lines (`let x =` / `unsafe { .. }`) keeps its comment above the statement.
        || at > 0 && lines[at - 1].trim_end().ends_with('=') && has_safety_above(lines, at - 1)
}

#[test]
fn no_leftovers() {
    // Written in two halves so that this file does not find itself.
    let banned = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("HA", "CK"),
        concat!("dbg", "!("),
        concat!("#[ig", "nore"),
        concat!("allow(dead", "_code"),
        concat!("not implemented", " yet"),
    ];
    let mut found = Vec::new();
    for (path, text) in sources(&["rs", "py"]) {
        for (i, line) in text.lines().enumerate() {
            for word in banned.iter().filter(|w| line.contains(**w)) {
                // Every test binary compiles the shared support module and uses a part of it.
                if !(path == "tests/support/mod.rs" && word.ends_with("_code")) {
                    found.push(format!("{path}:{}: {word}", i + 1));
                }
            }
        }
    }
    fail_if_any("leftovers", &found);
}

#[test]
fn imports_point_one_way() {
    // server -> engine -> kernels; server and engine -> scheduler; scheduler and kernels -> nothing of ours.
    let allowed: [(&str, &[&str]); 4] = [
        ("kernels", &[]),
        ("scheduler", &[]),
        ("engine", &["kernels", "scheduler"]),
        ("server", &["engine", "scheduler"]),
    ];
    let mut found = Vec::new();
    for (member, may_use) in allowed {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).expect("manifest");
        for other in CRATES.iter().filter(|c| **c != member && !may_use.contains(c)) {
            let name = format!("tokenrouter-{other}");
            if manifest.lines().any(|l| l.starts_with(&name)) {
                found.push(format!("{member}/Cargo.toml depends on {name}"));
            }
        }
    }
    fail_if_any("imports against the direction server -> engine -> kernels, engine -> scheduler", &found);
}

#[test]
fn scheduler_is_pure() {
    let manifest = fs::read_to_string(root().join("scheduler/Cargo.toml")).expect("manifest");
    let after = manifest.split("[dependencies]").nth(1).expect("a dependencies table");
    let dependencies: Vec<String> = after
        .lines()
        .take_while(|l| !l.starts_with('['))
        .filter(|l| !l.trim().is_empty())
        .map(str::to_owned)
        .collect();
    fail_if_any("the scheduler crate has no dependencies", &dependencies);
    let mut found = Vec::new();
    for (path, text) in sources(&["rs"]).iter().filter(|(p, _)| p.starts_with("scheduler/src")) {
        for word in ["std::fs", "std::net", "std::thread", "std::time", "std::env", "std::process"] {
            if text.contains(word) {
                found.push(format!("{path}: {word}"));
            }
        }
    }
    fail_if_any("the scheduler does no I/O and knows no clock and no thread", &found);
}

#[test]
fn unsafe_is_forbidden_where_it_is_not_needed() {
    for member in ["scheduler", "server"] {
        let lib = fs::read_to_string(root().join(member).join("src/lib.rs")).expect("lib.rs");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{member}/src/lib.rs must forbid unsafe code");
    }
}

#[test]
fn tests_never_read_outside_the_repository() {
    let word = concat!("/sha", "red/");
    let found: Vec<String> = sources(&["rs", "py", "sh"])
        .iter()
        .filter(|(_, text)| text.contains(word))
        .map(|(path, _)| path.clone())
        .collect();
    fail_if_any("paths outside the repository", &found);
}

#[test]
fn assembly_stays_in_one_header() {
    // Kernels run in the host emulation too, which knows no PTX.
    let found: Vec<String> = sources(&["cu", "cuh"])
        .iter()
        .filter(|(path, text)| path != "kernels/cuda/simt.cuh" && text.contains("asm"))
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate().filter(|(_, l)| {
                l.split("//")
                    .next()
                    .is_some_and(|code| code.contains("asm(") || code.contains("asm volatile"))
            });
            lines.map(|(i, _)| format!("{path}:{}", i + 1)).collect::<Vec<_>>()
        })
        .collect();
    fail_if_any("assembly outside of kernels/cuda/simt.cuh", &found);
}

#[test]
fn every_source_file_is_part_of_a_module_tree() {
    let mut found = Vec::new();
    for member in CRATES {
        let src = root().join(member).join("src");
        let mut files = Vec::new();
        collect(&src, &["rs"], &mut files);
        for file in files {
            let stem = file.file_stem().expect("a name").to_string_lossy().into_owned();
            if ["lib", "main", "mod"].contains(&stem.as_str()) {
                continue;
            }
            let dir = file.parent().expect("a folder");
            let sibling = dir.with_extension("rs");
            let parents = [dir.join("mod.rs"), dir.join("lib.rs"), sibling];
            let declared = parents.iter().filter_map(|p| fs::read_to_string(p).ok()).any(|text| {
                text.lines().any(|l| {
                    let l = l.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
                    l.trim() == format!("mod {stem};")
                })
            });
            if !declared {
                found.push(file.strip_prefix(root()).expect("below the root").display().to_string());
            }
        }
    }
    fail_if_any("files that no module declares", &found);
}
