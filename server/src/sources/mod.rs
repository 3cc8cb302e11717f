//! Where checkpoints come from: a local folder, or a Hugging Face repository in the local cache, downloaded when it is
//! not there.
//!
//! The cache has the layout of the Python package `huggingface_hub`, and both read what the other has written.

mod cache;
#[cfg(feature = "hub")]
mod download;
mod hub;
#[cfg(feature = "hub")]
mod remote;
#[cfg(all(test, feature = "hub"))]
mod server;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::config::Config;

pub use hub::Hub;

/// The same configuration with a folder for every model that has a `repo`: from the local cache, else downloaded.
///
/// # Errors
/// One line that names the model, the repository, and what is missing or refused.
pub fn resolve(config: &Config) -> Result<Config, String> {
    let mut config = config.clone();
    let hub = Hub::new(&config.hub, &|name| std::env::var(name).ok());
    for model in &mut config.models {
        let Some(repo) = model.repo.as_deref().filter(|_| model.path.as_os_str().is_empty()) else {
            continue;
        };
        let repo = Repo::new(repo, model.revision.as_deref())?;
        model.path = hub.folder(&repo).map_err(|e| format!("model \"{}\": {repo}: {e}", model.name))?;
    }
    Ok(config)
}

/// A repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    name: String,
    revision: String,
}

impl std::fmt::Display for Repo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            MAIN => f.write_str(&self.name),
            revision => write!(f, "{} at {revision}", self.name),
        }
    }
}

/// The revision of a repository that none is named of.
const MAIN: &str = "main";

impl Repo {
    /// Checks the names: they become parts of paths and addresses.
    ///
    /// # Errors
    /// What a name must be.
    pub fn new(name: &str, revision: Option<&str>) -> Result<Self, String> {
        let revision = revision.unwrap_or(MAIN);
        let parts = |text: &str| text.split('/').all(is_word);
        if !is_repo_name(name) {
            return Err(format!("\"{name}\" is no repository; a name like \"Qwen/Qwen3-0.6B\" is needed"));
        }
        if revision.len() > 200 || !parts(revision) {
            return Err(format!("revision \"{revision}\" of {name} is no branch, tag or commit"));
        }
        Ok(Repo { name: name.into(), revision: revision.into() })
    }

    /// The commit, when the revision is one.
    fn commit(&self) -> Option<&str> {
        is_commit(&self.revision).then_some(self.revision.as_str())
    }
}

/// Whether a text has the shape of a repository's name: `org/name`.
pub fn is_repo_name(text: &str) -> bool {
    let mut parts = text.split('/');
    let part = |part: Option<&str>| part.is_some_and(|part| part.len() <= 96 && is_word(part));
    part(parts.next()) && part(parts.next()) && parts.next().is_none()
}

/// A part of a path that is a plain name.
fn is_word(part: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && part.chars().all(word) && !part.starts_with(['-', '.'])
}

/// Forty hexadecimal digits.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Files of a repository beside its weights. The first two are needed.
const FILES: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];
/// How many of [`FILES`] must be there.
const NEEDED: usize = 2;
/// Weights in one file.
const SINGLE: &str = "model.safetensors";
/// Which file has which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// The files that an index names.
///
/// # Errors
/// When it is no index, or names something that is no plain file name.
fn shards(index: &[u8]) -> Result<Vec<String>, String> {
    let bad = |what: &str| format!("{INDEX}: {what}");
    let json: serde_json::Value = serde_json::from_slice(index).map_err(|e| bad(&e.to_string()))?;
    let map =
        json.get("weight_map").and_then(|map| map.as_object()).ok_or_else(|| bad("weight_map is missing"))?;
    let mut files: Vec<String> = Vec::new();
    for file in map.values() {
        let file = file.as_str().filter(|file| is_word(file) && file.ends_with(".safetensors"));
        files.push(
            file.ok_or_else(|| bad("weight_map names something that is no .safetensors file"))?.to_owned(),
        );
    }
    files.sort();
    files.dedup();
    if files.is_empty() { Err(bad("weight_map is empty")) } else { Ok(files) }
}

/// A folder with everything a model needs, or the name of the first file that it lacks.
fn complete(folder: PathBuf) -> Result<PathBuf, String> {
    if let Some(file) = FILES[..NEEDED].iter().find(|file| !folder.join(file).is_file()) {
        return Err((*file).to_owned());
    }
    if let Ok(index) = std::fs::read(folder.join(INDEX)) {
        if let Some(file) = shards(&index)?.into_iter().find(|file| !folder.join(file).is_file()) {
            return Err(file);
        }
    } else if !folder.join(SINGLE).is_file() {
        return Err(SINGLE.to_owned());
    }
    Ok(folder)
}
