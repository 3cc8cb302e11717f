//! What is said where no GPU can be used: by the program, and by the host code under a pretend driver that is too old,
//! sees nothing, or has no NCCL beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tokenrouter_emulate::{STUB_IMAGE, Settings, library_folder, skip};
use tokenrouter_kernels::cuda::{Communicator, CudaError, Device, Kernels};

use crate::seam::begin;

/// Names what the child below shall try.
const CHILD: &str = "TOKENROUTER_DEVICE_CHILD";

fn tokenrouter(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenrouter"));
    command.args(args);
    command
}

/// One sentence on standard error, nothing served.
fn sentence(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success());
    assert!(out.stdout.is_empty(), "nothing is served: {}", String::from_utf8_lossy(&out.stdout));
    assert!(text.starts_with("tokenrouter: ") && text.lines().count() == 1, "{text}");
    text
}

/// One sentence, an exit code, and no models opened.
#[test]
fn cuda_without_a_gpu_is_refused_in_a_sentence() {
    let text = sentence(&tokenrouter(&["demo", "--once", "--device", "cuda"]).output().unwrap());
    assert!(text.contains("--device cpu"), "the way out is named: {text}");
    if !cfg!(feature = "cuda") {
        assert!(text.contains("build it with --features cuda"), "{text}");
    }
}

#[test]
fn unknown_devices_are_refused_by_name() {
    let out = tokenrouter(&["--device", "tpu", "demo"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("tpu") && text.contains("cuda"), "{text}");
}

/// With the kernels in it, the program itself under the pretend driver.
#[test]
fn the_program_refuses_drivers_and_gpus_that_cannot_work() {
    if !cfg!(feature = "cuda") {
        return;
    }
    let folder = match library_folder() {
        Ok(folder) => folder,
        Err(why) => return skip(&why),
    };
    for (variable, value, words) in [
        ("TOKENROUTER_EMU_DRIVER", "11040", "the driver supports CUDA 11.4"),
        ("TOKENROUTER_EMU_CAPABILITY", "75", "compute capability 7.5; the kernels need 8.0"),
        ("TOKENROUTER_EMU_DEVICES", "0", "the driver sees no GPU"),
    ] {
        let mut command = tokenrouter(&["demo", "--once", "--device", "cuda"]);
        let out = command.env("LD_LIBRARY_PATH", &folder).env(variable, value).output().unwrap();
        let text = sentence(&out);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn an_old_driver_is_refused_with_both_versions_and_the_way_out() {
    let Some(emu) = begin(Settings::default()) else { return };
    emu.set_driver_version(11_040);
    for error in [Device::count().err(), Device::open(0).err()] {
        let text = error.expect("too old").to_string();
        assert!(text.contains("CUDA 11.4") && text.contains("12."), "{text}");
        assert!(text.contains("CUDA_HOME"), "{text}");
    }
}

#[test]
fn gpus_without_the_instructions_are_refused_by_name() {
    let Some(emu) = begin(Settings { devices: 2, ..Settings::default() }) else { return };
    emu.set_device(1, 0, 75);
    assert!(Device::open(0).is_ok());
    let text = Device::open(1).err().expect("too old").to_string();
    assert!(text.contains("CUDA device 1 (") && text.contains("7.5; the kernels need 8.0"), "{text}");
    let text = Device::open(2).err().expect("no such device").to_string();
    assert!(text.contains("no CUDA device 2: there are 2"), "{text}");
}

#[test]
fn a_driver_that_sees_no_gpu_is_said_so() {
    let Some(_emu) = begin(Settings { devices: 0, ..Settings::default() }) else { return };
    assert_eq!(Device::count(), Ok(0));
    let text = Device::open(0).err().expect("no device").to_string();
    assert!(text.contains("the driver sees no GPU") && text.contains("--device cpu"), "{text}");
}

#[test]
fn a_binary_without_kernels_says_how_to_build_them() {
    let Some(_emu) = begin(Settings::default()) else { return };
    let device = Device::open(0).unwrap();
    assert_eq!(Kernels::load(&device, &[]).err(), Some(CudaError::NoImage));
    assert!(CudaError::NoImage.to_string().contains("--features cuda"));
    assert!(Kernels::load(&device, &[&STUB_IMAGE]).is_ok());
    let text = Kernels::load(&device, &[b"no image at all, but long enough"]).err().unwrap().to_string();
    assert!(text.contains("loading the CUDA kernels: CUDA_ERROR_INVALID_IMAGE"), "{text}");
}

/// A folder with nothing but the driver, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tokenrouter-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts this program again for one attempt, where libraries are looked for in `folder`; what it printed.
fn child(attempt: &str, folder: &Path) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "refusals::in_a_child", "--nocapture"])
        .env(CHILD, attempt)
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text.lines().find_map(|l| l.split_once("child: ")).map(|(_, said)| said.to_owned()).expect(&text)
}

/// Does nothing unless [`child`] started it.
#[test]
fn in_a_child() {
    let said = match std::env::var(CHILD).as_deref() {
        Ok("driver") => Device::count().map(|n| format!("{n} devices")),
        Ok("nccl") => Device::open(0).and_then(|_| Communicator::unique_id()).map(|_| "an id".into()),
        _ => return,
    };
    println!("child: {}", said.unwrap_or_else(|e| e.to_string()));
}

#[test]
fn a_machine_without_a_driver_is_said_so() {
    let empty = Folder::new("no-driver");
    let said = child("driver", &empty.0);
    if said.ends_with("devices") {
        return skip("this machine has a driver");
    }
    assert!(said.contains("no CUDA driver (libcuda.so.1)") && said.contains("--device cpu"), "{said}");
}

#[test]
fn a_missing_nccl_library_is_named_with_the_link_that_helps() {
    let libraries = match library_folder() {
        Ok(folder) => folder,
        Err(why) => return skip(&why),
    };
    assert_eq!(child("nccl", &libraries), "an id");
    let folder = Folder::new("no-nccl");
    std::os::unix::fs::symlink(libraries.join("libcuda.so.1"), folder.0.join("libcuda.so.1")).unwrap();
    let said = child("nccl", &folder.0);
    if said == "an id" {
        return skip("this machine has NCCL");
    }
    for words in ["no NCCL library", "libnccl.so.2", "LD_LIBRARY_PATH"] {
        assert!(said.contains(words), "{said}");
    }
}
