//! Build script of the kernels crate (`build = "../build.rs"` in kernels/Cargo.toml).
//!
//! Without the feature `cuda` it does nothing. With it, nvcc compiles each `kernels/cuda/*.cu` to one fat binary (code
//! for sm_80 and sm_90, PTX for later devices), and a table of them lands in the crate. Register spills become
//! warnings. It says plainly what it did: the text lands in `tokenrouter_kernels::BUILD_REPORT`, which
//! `tokenrouter --version` prints.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

/// Contraction off: a fused multiply-add happens where the source says so and nowhere else.
const FLAGS: [&str; 14] = [
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "-lineinfo",
    "-Werror=all-warnings",
    "-fatbin",
    "-Xptxas",
    "-v",
    "-gencode",
    "arch=compute_80,code=sm_80",
    "-gencode",
    "arch=compute_90,code=sm_90",
    "-gencode",
    "arch=compute_90,code=compute_90",
];

/// What helps when there is no nvcc.
const NO_NVCC: &str = "the feature `cuda` needs nvcc, and there is none in NVCC, CUDA_HOME, CUDA_PATH, PATH, the active or \
    the project's virtual environment, or /usr/local/cuda. It comes from PyPI, without root and without a GPU: \
    python3 -m venv .venv && .venv/bin/pip install \"cuda-toolkit[nvcc,cccl]==13.0.3.0\"";

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={}", here.join("../build.rs").display());
    let target = env::var("TARGET").unwrap_or_else(|_| "this target".into());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        report(&format!("cuda feature off, no CUDA kernels compiled; CPU kernels for {target}"));
        return;
    }
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed={}", here.join("cuda").display());
    let root = here.join("..");
    let Some(nvcc) = find_nvcc(&root) else { panic!("{NO_NVCC}") };
    let (major, minor) = version_of(&nvcc);
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let images = compile_all(&nvcc, &here.join("cuda"), &out);
    fs::write(out.join("cuda_images.rs"), table(&images, major, minor)).expect("OUT_DIR is writable");
    let count = images.len();
    report(&format!(
        "{count} CUDA kernel files for sm_80 and sm_90 by nvcc {major}.{minor}; CPU kernels for {target}"
    ));
}

fn report(text: &str) {
    println!("cargo:rustc-env=TOKENROUTER_BUILD_REPORT={text}");
}

/// The first nvcc in the order of [`NO_NVCC`].
fn find_nvcc(root: &Path) -> Option<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(nvcc) = variable("NVCC") {
        return Some(nvcc);
    }
    let mut folders: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).collect();
    folders.iter_mut().for_each(|f| f.push("bin"));
    folders.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    for venv in variable("VIRTUAL_ENV").into_iter().chain([root.join(".venv")]) {
        folders.extend(toolkits_of(&venv));
    }
    folders.push(PathBuf::from("/usr/local/cuda/bin"));
    folders.into_iter().map(|f| f.join("nvcc")).find(|f| f.is_file())
}

/// Where PyPI's packages put a toolkit: `lib/python3.*/site-packages/nvidia/cu*/bin` of a virtual environment.
fn toolkits_of(venv: &Path) -> Vec<PathBuf> {
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    entries(venv.join("lib"))
        .flat_map(|python| entries(python.join("site-packages/nvidia")))
        .map(|toolkit| toolkit.join("bin"))
        .collect()
}

/// "release 13.0" of `nvcc --version`.
fn version_of(nvcc: &Path) -> (i32, i32) {
    let out = Command::new(nvcc).arg("--version").output();
    let text = match out {
        Ok(out) => String::from_utf8_lossy(&out.stdout).into_owned(),
        Err(e) => panic!("{} does not start: {e}", nvcc.display()),
    };
    let version = text.split("release ").nth(1).and_then(|rest| {
        let mut parts = rest.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    version.unwrap_or_else(|| panic!("{} names no version: {text}", nvcc.display()))
}

fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.retain(|p| p.extension() == Some(OsStr::new(ext)));
    found.sort();
    found
}

/// Compiles every kernel file whose image is out of date, two at a time: nvcc is several processes itself.
fn compile_all(nvcc: &Path, cuda: &Path, out: &Path) -> Vec<PathBuf> {
    let headers = files(cuda, "cuh");
    let jobs: Vec<(PathBuf, PathBuf)> = files(cuda, "cu")
        .into_iter()
        .map(|source| {
            let image = out.join(source.file_name().expect("a file has a name")).with_extension("fatbin");
            (source, image)
        })
        .collect();
    let command = format!("{} {FLAGS:?}", nvcc.display());
    let same = fs::read_to_string(out.join("nvcc.txt")).is_ok_and(|before| before == command);
    let stale: Vec<_> = jobs.iter().filter(|(s, i)| !same || outdated(s, &headers, i)).collect();
    let at_once = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).clamp(1, 2);
    for chunk in stale.chunks(at_once) {
        thread::scope(|scope| {
            for (source, image) in chunk {
                scope.spawn(move || compile(nvcc, source, image));
            }
        });
    }
    fs::write(out.join("nvcc.txt"), command).expect("OUT_DIR is writable");
    jobs.into_iter().map(|(_, image)| image).collect()
}

/// Whether the image is missing, or older than its source or any header.
fn outdated(source: &Path, headers: &[PathBuf], image: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let Some(built) = time(image) else { return true };
    headers.iter().map(PathBuf::as_path).chain([source]).any(|p| time(p).is_none_or(|t| t > built))
}

fn compile(nvcc: &Path, source: &Path, image: &Path) {
    let out = Command::new(nvcc).args(FLAGS).arg("-o").arg(image).arg(source).output();
    let out = out.unwrap_or_else(|e| panic!("{} does not start: {e}", nvcc.display()));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "nvcc on {}:\n{text}", source.display());
    let mut function = "";
    for line in text.lines() {
        if let Some(rest) = line.split("Function properties for ").nth(1) {
            function = rest;
        }
        if line.contains("bytes spill stores") && !line.contains(" 0 bytes spill stores, 0 bytes spill loads")
        {
            println!("cargo:warning={}, {function}:{line}", source.display());
        }
    }
}

/// Rust source with the images and the version of their compiler.
fn table(images: &[PathBuf], major: i32, minor: i32) -> String {
    let mut text = format!("pub(super) const VERSION: (i32, i32) = ({major}, {minor});\n");
    let mut names = String::new();
    for (i, image) in images.iter().enumerate() {
        let size = fs::metadata(image).map_or(0, |m| m.len());
        let path = image.display().to_string();
        let _ =
            writeln!(text, "static IMAGE_{i}: &Aligned<[u8; {size}]> = &Aligned(*include_bytes!({path:?}));");
        let _ = write!(names, "&IMAGE_{i}.0, ");
    }
    let _ = writeln!(text, "pub(super) static IMAGES: [&[u8]; {}] = [{names}];", images.len());
    text
}
