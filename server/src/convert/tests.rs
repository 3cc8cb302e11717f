//! Torch files that are right, wrong and hostile.

mod containers;
mod files;
mod hostile;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ConvertArgs;

/// The golden files of router heads.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/heads")
}

/// A folder of its own, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("tokenrouter-convert-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, data).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A folder left behind in the system's temporary place harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Arguments that convert `input` for the golden model into `out/router`.
fn args(input: PathBuf, out: &TempDir) -> ConvertArgs {
    ConvertArgs {
        input,
        model: Some(golden().join("model")),
        out: out.0.join("router"),
        threshold: None,
        defer_id: None,
        force: false,
    }
}

/// A container with stored entries, as plain as the format allows.
fn container(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let header = out.len() as u32;
        let sizes = [(data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        out.extend_from_slice(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        out.extend_from_slice(&sizes);
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(data);
        directory.extend_from_slice(b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend_from_slice(&sizes);
        directory.extend_from_slice(&(name.len() as u16).to_le_bytes());
        directory.extend_from_slice(&[0; 12]);
        directory.extend_from_slice(&header.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let at = out.len() as u32;
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    let count = (entries.len() as u16).to_le_bytes();
    out.extend_from_slice(&[count, count].concat());
    out.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    out.extend_from_slice(&at.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out
}

/// A torch file with this pickle and these storages.
fn torch_file(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let names: Vec<String> = storages.iter().map(|(key, _)| format!("x/data/{key}")).collect();
    let mut entries = vec![("x/data.pkl", pickle), ("x/byteorder", &b"little"[..])];
    entries.extend(names.iter().map(String::as_str).zip(storages.iter().map(|(_, data)| *data)));
    container(&entries)
}
