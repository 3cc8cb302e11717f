//! Compiles the SIMT runtime, the pretend driver and the kernels with g++ into `libcuda.so.1`, once per build:
//! plain, race (every load and store checked) and asan (address and undefined-behaviour sanitizers).
//!
//! Objects are kept between runs and compiled again only when their source or a header is newer, so that an edit
//! of one kernel costs three small compilations. Without a C++ compiler nothing is built, and the crate says so.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, thread};

/// One flavour of the library.
struct Variant {
    name: &'static str,
    /// Flags for the kernel files.
    kernels: &'static [&'static str],
    /// A flag for the runtime files that look at it; the others are compiled once for all variants.
    runtime: Option<&'static str>,
    link: &'static [&'static str],
}

const VARIANTS: [Variant; 3] = [
    Variant { name: "plain", kernels: &["-O2"], runtime: None, link: &[] },
    // The compiler calls __tsan_read4(p) and the like before every access; race.cpp defines them, libtsan stays out.
    Variant {
        name: "race",
        kernels: &["-O2", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"],
        runtime: Some("-DEMU_RACE"),
        link: &[],
    },
    // ubsan.cpp defines the handlers of the undefined-behaviour sanitizer; the address sanitizer is the real one.
    Variant {
        name: "asan",
        kernels: &[
            "-O1",
            "-fsanitize=address,undefined",
            "-fsanitize-recover=address,undefined",
            "-fno-sanitize=vptr",
            "-fno-omit-frame-pointer",
        ],
        runtime: Some("-DEMU_ASAN"),
        link: &["-fsanitize=address"],
    },
];

/// Contraction off and no -march: results are the same on every machine.
const COMMON: [&str; 10] = [
    "-std=c++17",
    "-fPIC",
    "-g1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
];

struct Job {
    source: PathBuf,
    object: PathBuf,
    flags: Vec<String>,
}

fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    found.retain(|p| p.extension() == Some(OsStr::new(ext)));
    found.sort();
    found
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// The dependency file of the last compilation (`-MMD`) names every header; any newer one means: compile again.
fn up_to_date(job: &Job) -> bool {
    let Some(built) = modified(&job.object) else { return false };
    let Ok(flags) = fs::read_to_string(job.object.with_extension("flags")) else { return false };
    let Ok(dependencies) = fs::read_to_string(job.object.with_extension("d")) else { return false };
    flags == job.flags.join(" ")
        && dependencies
            .split_whitespace()
            .filter(|w| *w != "\\" && !w.ends_with(':'))
            .all(|f| modified(Path::new(f)).is_some_and(|t| t <= built))
}

fn compile(compiler: &str, job: &Job) -> Result<(), String> {
    let out = Command::new(compiler)
        .args(&job.flags)
        .arg("-MMD")
        .args(["-xc++", "-c"])
        .arg(&job.source)
        .arg("-o")
        .arg(&job.object)
        .output()
        .map_err(|e| format!("{compiler}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        return Err(format!("{} does not compile for the emulation:\n{text}", job.source.display()));
    }
    for line in text.lines().filter(|l| l.contains("warning:")) {
        println!("cargo:warning={line}");
    }
    fs::write(job.object.with_extension("flags"), job.flags.join(" ")).map_err(|e| e.to_string())
}

/// Compiles what is out of date, `jobs` at a time. True when anything was.
fn compile_all(compiler: &str, jobs: &[Job], at_once: usize) -> bool {
    let stale: Vec<&Job> = jobs.iter().filter(|j| !up_to_date(j)).collect();
    for chunk in stale.chunks(at_once.max(1)) {
        let results: Vec<Result<(), String>> = thread::scope(|scope| {
            let handles: Vec<_> = chunk.iter().map(|j| scope.spawn(move || compile(compiler, j))).collect();
            handles
                .into_iter()
                .map(|h| h.join().unwrap_or_else(|_| Err("a compiler thread panicked".into())))
                .collect()
        });
        if let Some(error) = results.into_iter().find_map(Result::err) {
            panic!("{error}");
        }
    }
    !stale.is_empty()
}

fn run_linker(compiler: &str, soname: &str, library: &Path, arguments: &[String]) {
    let out = Command::new(compiler)
        .arg("-shared")
        .arg(format!("-Wl,-soname,{soname}"))
        .args(["-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--no-as-needed"])
        .args(arguments)
        .arg("-o")
        .arg(library)
        .output();
    match out {
        Ok(o) if o.status.success() => {}
        Ok(o) => panic!("linking {}:\n{}", library.display(), String::from_utf8_lossy(&o.stderr)),
        Err(e) => panic!("{compiler}: {e}"),
    }
}

/// `libcuda.so.1`, and beside it an empty `libnccl.so` that needs it: cudarc looks both up by name, and a library that
/// is already loaded under that SONAME answers, whatever is installed.
fn link(compiler: &str, objects: &[PathBuf], flags: &[&str], library: &Path) {
    let mut arguments: Vec<String> = objects.iter().map(|o| o.display().to_string()).collect();
    arguments.extend(flags.iter().map(|f| (*f).to_string()));
    arguments.extend(["-ldl", "-lpthread", "-lm"].map(String::from));
    run_linker(compiler, "libcuda.so", library, &arguments);
    let shim = library.with_file_name("libnccl.so");
    run_linker(compiler, "libnccl.so", &shim, &[library.display().to_string()]);
}

/// A folder for linkers, with the names that the cuda-sys crate links: the pretend driver, and empty libraries in place
/// of the CUDA runtime and cuBLAS, of which nothing is called.
fn link_folder(compiler: &str, library: &Path, folder: &Path) {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).expect("OUT_DIR is writable");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library, folder.join(name)).expect("OUT_DIR is writable");
    }
    let nccl = library.with_file_name("libnccl.so");
    std::os::unix::fs::symlink(nccl, folder.join("libnccl.so")).expect("OUT_DIR is writable");
    for name in ["libcudart.so", "libcublas.so"] {
        run_linker(compiler, name, &folder.join(name), &["-xc".into(), "/dev/null".into()]);
    }
}

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let cuda = here.join("../cuda");
    for dir in ["src", "include", "testdata", "build.rs"] {
        println!("cargo:rerun-if-changed={}", here.join(dir).display());
    }
    // A folder that is not there yet would make cargo run this script every time.
    let watched = if cuda.exists() { cuda.clone() } else { here.join("..") };
    println!("cargo:rerun-if-changed={}", watched.display());
    println!("cargo:rerun-if-env-changed=CXX");
    println!("cargo:rustc-env=TOKENROUTER_EMU_LIBRARIES={}", out.display());

    let compiler = env::var("CXX").unwrap_or_else(|_| "g++".into());
    let usable = Command::new(&compiler).arg("--version").output().is_ok_and(|o| o.status.success());
    let missing =
        if usable { String::new() } else { format!("no C++ compiler ({compiler}) when this was built") };
    println!("cargo:rustc-env=TOKENROUTER_EMU_MISSING={missing}");
    if !usable {
        return;
    }
    let at_once = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let includes = [format!("-I{}", here.join("include").display()), format!("-I{}", cuda.display())];
    let mut runtime = files(&here.join("src/sim"), "cpp");
    runtime.extend(files(&here.join("src/driver"), "cpp"));
    let sets = [("kernels", files(&cuda, "cu")), ("selftest", files(&here.join("testdata"), "cu"))];

    let common = out.join("common");
    fs::create_dir_all(&common).expect("OUT_DIR is writable");

    for variant in &VARIANTS {
        let dir = out.join(variant.name);
        fs::create_dir_all(&dir).expect("OUT_DIR is writable");
        let job = |source: &PathBuf, dir: &Path, prefix: &str, extra: &[&str]| {
            let stem = source.file_stem().unwrap_or_default().to_string_lossy();
            let mut flags: Vec<String> = COMMON.iter().map(|f| (*f).to_string()).collect();
            flags.extend(includes.iter().cloned());
            flags.extend(extra.iter().map(|f| (*f).to_string()));
            Job { source: source.clone(), object: dir.join(format!("{prefix}-{stem}.o")), flags }
        };
        let flag = variant.runtime.map(|f| f.trim_start_matches("-D"));
        let base: Vec<Job> = runtime
            .iter()
            .map(|f| {
                let text = fs::read_to_string(f).unwrap_or_default();
                match flag.filter(|name| text.contains(name)) {
                    Some(name) => job(f, &dir, "runtime", &["-O2", &format!("-D{name}")]),
                    None => job(f, &common, "runtime", &["-O2"]),
                }
            })
            .collect();
        let fresh = compile_all(&compiler, &base, at_once);
        for (set, sources) in &sets {
            let jobs: Vec<Job> = sources.iter().map(|f| job(f, &dir, set, variant.kernels)).collect();
            let changed = compile_all(&compiler, &jobs, at_once);
            let folder = dir.join(set);
            let library = folder.join("libcuda.so.1");
            let objects: Vec<PathBuf> = base.iter().chain(&jobs).map(|j| j.object.clone()).collect();
            // A kernel file that went away leaves the list, so the list itself is remembered.
            let list = format!("{objects:?}");
            let same = fs::read_to_string(dir.join(format!("{set}.list"))).is_ok_and(|l| l == list);
            let newest = objects.iter().filter_map(|o| modified(o)).max();
            let linked = modified(&library).filter(|l| newest.is_some_and(|n| *l >= n));
            if fresh || changed || !same || linked.is_none() {
                fs::create_dir_all(&folder).expect("OUT_DIR is writable");
                link(&compiler, &objects, variant.link, &library);
                fs::write(dir.join(format!("{set}.list")), list).expect("OUT_DIR is writable");
            }
        }
    }
    if !out.join("link/libcublas.so").exists() {
        link_folder(&compiler, &out.join("plain/kernels/libcuda.so.1"), &out.join("link"));
    }
}
