//! From a hub into the cache: only the files that serving needs, each resumed where it stopped, checked, and put in its
//! place whole.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::hub::Hub;
use super::remote::{FileInfo, Remote, RemoteError};
use super::{FILES, INDEX, NEEDED, Repo, SINGLE, complete, shards};
use crate::progress::Progress;

/// Failures in a row without a new byte, after which a download is given up.
const TRIES: u32 = 4;
/// The pause before the second try; it doubles. Tests do not wait.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
const MEBI: u64 = 1 << 20;

/// Downloads what a snapshot lacks.
///
/// # Errors
/// What was refused, missing, cut or damaged, and where.
pub(super) fn fetch(hub: &Hub, repo: &Repo) -> Result<PathBuf, String> {
    let remote = Remote::new(hub);
    let (commit, listed) = again(|| remote.list(repo))?;
    let has = |name: &str| listed.iter().any(|file| file == name);
    if let Some(missing) = FILES[..NEEDED].iter().find(|file| !has(file)) {
        return Err(format!("the repository has no {missing}"));
    }
    let place = hub.cache.repo(repo);
    let folder = place.join("snapshots").join(&commit);
    let one = |file: &str| Fetch { hub, remote: &remote, repo, commit: &commit, folder: &folder, file }.run();
    FILES.iter().filter(|file| has(file)).try_for_each(|file| one(file))?;
    let weights = match (has(INDEX), has(SINGLE)) {
        (true, _) => {
            one(INDEX)?;
            let index = folder.join(INDEX);
            shards(&fs::read(&index).map_err(|e| at(&index, &e))?)?
        }
        (false, true) => vec![SINGLE.to_owned()],
        (false, false) => return Err(format!("the repository has neither {SINGLE} nor {INDEX}")),
    };
    weights.iter().try_for_each(|file| one(file))?;
    // Last: a branch is only known here when its snapshot is whole.
    if repo.commit().is_none() {
        write_ref(&place.join("refs").join(&repo.revision), &commit)?;
    }
    complete(folder.clone()).map_err(|file| format!("{} lacks {file}", folder.display()))
}

/// One file on its way.
struct Fetch<'a> {
    hub: &'a Hub,
    remote: &'a Remote<'a>,
    repo: &'a Repo,
    commit: &'a str,
    /// The snapshot.
    folder: &'a Path,
    file: &'a str,
}

impl Fetch<'_> {
    fn run(&self) -> Result<(), String> {
        let link = self.folder.join(self.file);
        if link.is_file() {
            return Ok(());
        }
        let info = again(|| self.remote.info(self.repo, self.commit, self.file))?;
        let blobs = self.hub.cache.repo(self.repo).join("blobs");
        let blob = blobs.join(&info.etag);
        make(&blobs)?;
        // Whoever comes second finds the blob finished, or goes on with what the first one left.
        let _held = lock(&self.hub.cache.lock(self.repo, &info.etag))?;
        if !blob.is_file() {
            let partial = blobs.join(format!("{}.incomplete", info.etag));
            let resumed = fs::metadata(&partial).is_ok_and(|data| data.len() > 0);
            // What was here may have been the beginning of something else: then once more, from the start.
            self.checked(&partial, &info)
                .or_else(|e| if resumed { self.checked(&partial, &info) } else { Err(e) })?;
            fs::rename(&partial, &blob).map_err(|e| at(&blob, &e))?;
        }
        make(self.folder)?;
        point(&link, &Path::new("../../blobs").join(&info.etag))
    }

    /// Fills the partial file; what is damaged is removed, since it would stay so for ever.
    fn checked(&self, partial: &Path, info: &FileInfo) -> Result<(), String> {
        self.download(partial, info)?;
        check(partial, info).inspect_err(|_| {
            let _ = fs::remove_file(partial);
        })
    }

    /// Fills the partial file. Cut connections are taken up again where they stopped, as long as bytes come.
    fn download(&self, partial: &Path, info: &FileInfo) -> Result<(), String> {
        let open = OpenOptions::new().create(true).append(true).read(true).open(partial);
        let mut file = open.map_err(|e| at(partial, &e))?;
        let mut progress = Progress::new();
        let (mut failures, mut best) = (0, 0);
        loop {
            let before = file.metadata().map_err(|e| at(partial, &e))?.len();
            if info.size == Some(before) && before > 0 {
                break;
            }
            match self.take(&mut file, partial, before, info, &mut progress) {
                Ok(()) => break,
                Err(RemoteError::Final(text)) => {
                    progress.clear();
                    return Err(text);
                }
                Err(RemoteError::Passing(text)) => {
                    let now = file.metadata().map_err(|e| at(partial, &e))?.len();
                    best = before.max(best);
                    failures = if now > best { 0 } else { failures + 1 };
                    if failures == TRIES {
                        progress.clear();
                        let all = info.size.map_or(String::new(), |size| format!(" of {size}"));
                        return Err(format!(
                            "{text}, after {now}{all} bytes (they are kept, and the next start goes on from there)"
                        ));
                    }
                    std::thread::sleep(PAUSE * 2u32.pow(failures.saturating_sub(1)));
                }
            }
        }
        progress.clear();
        file.sync_all().map_err(|e| at(partial, &e))
    }

    fn take(
        &self,
        file: &mut File,
        partial: &Path,
        start: u64,
        info: &FileInfo,
        progress: &mut Progress,
    ) -> Result<(), RemoteError> {
        let broken = |e: &std::io::Error| RemoteError::Final(at(partial, e));
        let response = self.remote.bytes(self.repo, self.commit, self.file, start)?;
        let mut done = start;
        if response.status().as_u16() != 206 {
            // The server begins again, or has nothing beyond `start` (416): what is here is worth nothing.
            file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(|e| broken(&e))?;
            done = 0;
            if response.status().as_u16() == 416 {
                return Err(RemoteError::Passing(format!(
                    "{} is shorter than what was here of it",
                    self.file
                )));
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let count =
                body.read(&mut buffer).map_err(|e| RemoteError::Passing(format!("{}: {e}", self.file)))?;
            if count == 0 {
                break;
            }
            file.write_all(&buffer[..count]).map_err(|e| broken(&e))?;
            done += count as u64;
            if let Some(size) = info.size {
                let label = format!("MiB of {} {}", self.repo, self.file);
                progress.show(&label, (done / MEBI) as usize, size.div_ceil(MEBI) as usize);
            }
        }
        match info.size {
            Some(size) if done < size => {
                Err(RemoteError::Passing(format!("{}: the connection ended too early", self.file)))
            }
            _ => Ok(()),
        }
    }
}

/// Tries again what may work then.
fn again<T>(mut act: impl FnMut() -> Result<T, RemoteError>) -> Result<T, String> {
    let mut tried = 1;
    loop {
        match act() {
            Err(RemoteError::Passing(_)) if tried < TRIES => std::thread::sleep(PAUSE * 2u32.pow(tried - 1)),
            outcome => return outcome.map_err(RemoteError::text),
        }
        tried += 1;
    }
}

/// The size, and the hash that the etag is: SHA-256 of a large file, git's hash of a small one.
fn check(partial: &Path, info: &FileInfo) -> Result<(), String> {
    let mut file = File::open(partial).map_err(|e| at(partial, &e))?;
    let size = file.metadata().map_err(|e| at(partial, &e))?.len();
    if let Some(wanted) = info.size.filter(|wanted| *wanted != size) {
        return Err(format!(
            "{} bytes have arrived where {wanted} were announced; they were thrown away",
            size
        ));
    }
    let hex = info.etag.bytes().all(|b| b.is_ascii_hexdigit());
    let found = match info.etag.len() {
        64 if hex => hash(Sha256::new(), &mut file),
        40 if hex => hash(Sha1::new_with_prefix(format!("blob {size}\0")), &mut file),
        // Another server's own kind of name.
        _ => return Ok(()),
    };
    match found.map_err(|e| at(partial, &e))? {
        found if found.eq_ignore_ascii_case(&info.etag) => Ok(()),
        found => Err(format!("the bytes have the hash {found}, not {}; they were thrown away", info.etag)),
    }
}

fn hash(mut digest: impl Digest, file: &mut File) -> std::io::Result<String> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Waits for the lock; it goes when the file is closed.
fn lock(path: &Path) -> Result<File, String> {
    path.parent().map_or(Ok(()), make)?;
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(|e| at(path, &e))?;
    file.lock().map_err(|e| at(path, &e))?;
    Ok(file)
}

/// Makes the snapshot's link, over a broken one if there is one.
fn point(link: &Path, target: &Path) -> Result<(), String> {
    let fresh = link.with_file_name(format!(
        "{}.{}.link",
        link.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id()
    ));
    let made = std::os::unix::fs::symlink(target, &fresh).and_then(|()| fs::rename(&fresh, link));
    made.map_err(|e| at(link, &e))
}

fn write_ref(path: &Path, commit: &str) -> Result<(), String> {
    path.parent().map_or(Ok(()), make)?;
    fs::write(path, commit).map_err(|e| at(path, &e))
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| at(folder, &e))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
