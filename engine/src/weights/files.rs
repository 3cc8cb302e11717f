//! Which files make up a checkpoint (bug-log L11): the index's files exactly, or one file, or a
//! complete set of numbered shards; and which file holds which tensor, each exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::map::MappedFile;
use crate::config::read_object;
use crate::error::LoadError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All mapped files of a checkpoint, and the file of each tensor.
pub(super) struct Checkpoint {
    files: Vec<MappedFile>,
    owner: BTreeMap<String, usize>,
    /// What a missing tensor is reported against: the index, the single file, or the folder.
    pub(super) listing: PathBuf,
}

impl Checkpoint {
    /// Finds and maps the files of `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self, LoadError> {
        let index = dir.join(INDEX);
        if index.exists() {
            return Self::from_index(dir, &index);
        }
        let single = dir.join(SINGLE);
        if single.exists() {
            return Self::collect(vec![MappedFile::open(&single)?], single);
        }
        let files = numbered_shards(dir)?.iter().map(|p| MappedFile::open(p)).collect::<Result<_, _>>()?;
        Self::collect(files, dir.to_path_buf())
    }

    fn from_index(dir: &Path, index: &Path) -> Result<Self, LoadError> {
        let weight_map = read_weight_map(index)?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        let missing: Vec<&str> = names.iter().filter(|n| !dir.join(n).exists()).map(|n| n.as_str()).collect();
        if !missing.is_empty() {
            let problem = format!("names files that are not there: {}", missing.join(", "));
            return Err(LoadError::field(index, "weight_map", problem));
        }
        let files: Vec<MappedFile> =
            names.iter().map(|n| MappedFile::open(&dir.join(n))).collect::<Result<_, _>>()?;
        let checkpoint = Self::collect(files, index.to_path_buf())?;
        for (tensor, file) in &weight_map {
            let held = checkpoint.owner.get(tensor).map(|i| &checkpoint.files[*i].path);
            if held != Some(&dir.join(file)) {
                let problem = format!("should be in {file} but is not there");
                return Err(LoadError::field(index, tensor, problem));
            }
        }
        for (tensor, i) in &checkpoint.owner {
            if !weight_map.contains_key(tensor) {
                let problem = format!("is in {} but not in weight_map", checkpoint.files[*i].path.display());
                return Err(LoadError::field(index, tensor, problem));
            }
        }
        Ok(checkpoint)
    }

    fn collect(files: Vec<MappedFile>, listing: PathBuf) -> Result<Self, LoadError> {
        let mut owner = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.tensors.keys() {
                if let Some(before) = owner.insert(name.clone(), i) {
                    let first: &MappedFile = &files[before];
                    let problem =
                        format!("is also in {}: each tensor may be there once", first.path.display());
                    return Err(LoadError::field(&file.path, name, problem));
                }
            }
        }
        Ok(Self { files, owner, listing })
    }

    /// The file that holds a tensor.
    pub(super) fn file(&self, tensor: &str) -> Option<&MappedFile> {
        self.owner.get(tensor).map(|i| &self.files[*i])
    }

    /// All tensor names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.owner.keys().map(String::as_str)
    }
}

fn read_weight_map(index: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let map = read_object(index)?;
    let Some(Value::Object(entries)) = map.get("weight_map") else {
        return Err(LoadError::field(index, "weight_map", "is absent or not an object of tensor: file"));
    };
    if entries.is_empty() {
        return Err(LoadError::field(index, "weight_map", "is empty"));
    }
    let mut out = BTreeMap::new();
    for (tensor, file) in entries {
        // Only plain names: an index must not reach outside its folder.
        let plain = file.as_str().filter(|f| Path::new(f).file_name().is_some_and(|n| n == *f));
        let Some(file) = plain else {
            let problem = format!("is {file}, the name of a file in the same folder is needed");
            return Err(LoadError::field(index, format!("weight_map.{tensor}"), problem));
        };
        out.insert(tensor.clone(), file.to_owned());
    }
    Ok(out)
}

/// `model-00001-of-00003.safetensors` and its fellows, all of them.
fn numbered_shards(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let entries =
        std::fs::read_dir(dir).map_err(|e| LoadError::file(dir, format!("cannot be listed: {e}")))?;
    let mut found = BTreeMap::new();
    let mut pickled = false;
    for entry in entries {
        let entry = entry.map_err(|e| LoadError::file(dir, format!("cannot be listed: {e}")))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        pickled |= name.starts_with("pytorch_model");
        if let Some(numbers) = shard_numbers(name) {
            found.insert(numbers, entry.path());
        }
    }
    let Some(total) = found.keys().map(|(_, total)| *total).next() else {
        let hint = if pickled { " (only pytorch_model files; convert them to safetensors)" } else { "" };
        return Err(LoadError::file(
            dir,
            format!("holds no {SINGLE}, no {INDEX} and no numbered shards{hint}"),
        ));
    };
    if let Some((_, other)) = found.keys().find(|(_, t)| *t != total) {
        let problem =
            format!("holds shards of two checkpoints, of {total} and of {other} files, and no {INDEX}");
        return Err(LoadError::file(dir, problem));
    }
    let missing: Vec<String> =
        (1..=total).filter(|n| !found.contains_key(&(*n, total))).map(|n| n.to_string()).take(8).collect();
    if !missing.is_empty() || found.len() != total as usize {
        let problem = format!("holds {} of {total} shards, missing: {}", found.len(), missing.join(", "));
        return Err(LoadError::file(dir, problem));
    }
    Ok(found.into_values().collect())
}

/// `(number, total)` of a shard's file name.
fn shard_numbers(name: &str) -> Option<(u32, u32)> {
    let (number, total) = name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    Some((number.parse().ok()?, total.parse().ok()?))
}
