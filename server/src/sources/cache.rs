//! The layout of the cache:
//!
//! ```text
//! models--Qwen--Qwen3-0.6B/refs/main                      the commit that the branch was at
//!                          snapshots/<commit>/config.json  a symbolic link to ../../blobs/<etag>
//!                          blobs/<etag>                    the bytes; <etag>.incomplete while they arrive
//! .locks/models--Qwen--Qwen3-0.6B/<etag>.lock              held by the process that writes that blob
//! ```

use std::path::{Path, PathBuf};

use super::{Repo, complete, is_commit};

/// A cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(super) fn new(root: PathBuf) -> Self {
        Cache { root }
    }

    /// The folder of a repository.
    pub(super) fn repo(&self, repo: &Repo) -> PathBuf {
        self.root.join(repo_folder(repo))
    }

    /// The lock of a blob.
    #[cfg(feature = "hub")]
    pub(super) fn lock(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.root.join(".locks").join(repo_folder(repo)).join(format!("{etag}.lock"))
    }

    /// The snapshot of a revision, if everything is there.
    ///
    /// # Errors
    /// What is missing and where.
    pub(super) fn find(&self, repo: &Repo) -> Result<PathBuf, String> {
        let place = self.repo(repo);
        let commit = match repo.commit() {
            Some(commit) => commit.to_owned(),
            None => {
                let missing = || format!("it is not in the cache {}", self.root.display());
                let text = std::fs::read_to_string(place.join("refs").join(&repo.revision))
                    .map_err(|_| missing())?;
                let commit = text.trim();
                if !is_commit(commit) {
                    return Err(format!(
                        "{} holds no commit",
                        place.join("refs").join(&repo.revision).display()
                    ));
                }
                commit.to_owned()
            }
        };
        let folder = place.join("snapshots").join(commit);
        if !folder.is_dir() {
            return Err(format!("it is not in the cache {}", self.root.display()));
        }
        complete(folder.clone()).map_err(|file| format!("{} lacks {file}", folder.display()))
    }
}

fn repo_folder(repo: &Repo) -> PathBuf {
    Path::new(&format!("models--{}", repo.name.replace('/', "--"))).to_path_buf()
}
