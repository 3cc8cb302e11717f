//! Which cache, which server, which token: the configuration first, then the variables of `huggingface_hub`.

use std::path::{Path, PathBuf};

use super::Repo;
use super::cache::Cache;
use crate::config::HubSection;

/// The settings of `huggingface_hub`, and the local cache.
#[derive(Clone)]
pub struct Hub {
    pub(super) cache: Cache,
    /// No slash at the end.
    pub(super) endpoint: String,
    #[cfg(feature = "hub")]
    pub(super) token: Option<String>,
    /// Why nothing is downloaded, when that is so.
    offline: Option<&'static str>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The section, and where it says nothing, the variables.
    pub fn new(section: &HubSection, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let cache_home = || {
            let base = set("XDG_CACHE_HOME").map(PathBuf::from);
            base.or_else(|| Some(Path::new(&set("HOME")?).join(".cache")))
        };
        let home = set("HF_HOME").map(PathBuf::from).or_else(|| Some(cache_home()?.join("huggingface")));
        let home = home.unwrap_or_else(|| PathBuf::from("huggingface"));
        let cache = section.cache.clone();
        let cache =
            cache.or_else(|| set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from));
        let endpoint = section.endpoint.clone().or_else(|| set("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".into());
        let yes = |name: &str| {
            set(name)
                .is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.trim().to_ascii_uppercase().as_str()))
        };
        let offline = match section.download {
            false => Some("hub.download is false"),
            true if yes("HF_HUB_OFFLINE") => Some("HF_HUB_OFFLINE is set"),
            true => None,
        };
        Hub {
            cache: Cache::new(cache.unwrap_or_else(|| home.join("hub"))),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            #[cfg(feature = "hub")]
            token: token(&home, &set),
            offline,
        }
    }

    /// The folder of a repository: a complete snapshot of the cache as it is; else what is missing is downloaded.
    ///
    /// # Errors
    /// What is missing and why it was not fetched.
    pub fn folder(&self, repo: &Repo) -> Result<PathBuf, String> {
        let missing = match self.cache.find(repo) {
            Ok(folder) => return Ok(folder),
            Err(missing) => missing,
        };
        match self.offline {
            Some(why) => Err(format!("{missing}, and nothing is downloaded: {why}")),
            None => self.fetch(repo, &missing),
        }
    }

    #[cfg(feature = "hub")]
    fn fetch(&self, repo: &Repo, _missing: &str) -> Result<PathBuf, String> {
        super::download::fetch(self, repo)
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self, _repo: &Repo, missing: &str) -> Result<PathBuf, String> {
        Err(format!("{missing}, and this binary was built without the feature `hub`, which downloads"))
    }
}

/// The token of the user: from a variable, else from the file that `huggingface_hub` keeps.
#[cfg(feature = "hub")]
fn token(home: &Path, set: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let file = set("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
    let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
    let token = token.or_else(|| std::fs::read_to_string(file).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}
