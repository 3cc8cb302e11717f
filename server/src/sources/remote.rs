//! What the server of a hub is asked, over HTTP.

use std::io::Read;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::hub::Hub;
use super::{Repo, is_commit};

/// Redirects followed at most.
const MOST_REDIRECTS: usize = 5;
/// Largest answer that is read as a whole: a list of files.
const MOST_JSON: u64 = 16 << 20;

/// A connection to a hub.
pub(super) struct Remote<'a> {
    agent: Agent,
    hub: &'a Hub,
}

/// A request that failed.
#[derive(Debug)]
pub(super) enum RemoteError {
    /// It may work when it is tried again.
    Passing(String),
    /// It will not.
    Final(String),
}

impl RemoteError {
    /// In words.
    pub(super) fn text(self) -> String {
        match self {
            RemoteError::Passing(text) | RemoteError::Final(text) => text,
        }
    }
}

/// What a hub says about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// What the blob is called: the SHA-256 of a large file, the git hash of a small one.
    pub(super) etag: String,
    /// Its bytes, when the server says so.
    pub(super) size: Option<u64>,
}

impl<'a> Remote<'a> {
    pub(super) fn new(hub: &'a Hub) -> Self {
        let seconds = Duration::from_secs;
        let config = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_connect(Some(seconds(15)))
            .timeout_recv_response(Some(seconds(60)))
            // A connection that stands still is given up, and the file goes on where it was.
            .timeout_per_read(Some(seconds(60)))
            .user_agent(concat!("tokenrouter/", env!("CARGO_PKG_VERSION")))
            .build();
        Remote { agent: config.into(), hub }
    }

    /// The commit of a revision, and the names of its files.
    pub(super) fn list(&self, repo: &Repo) -> Result<(String, Vec<String>), RemoteError> {
        let revision = repo.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.hub.endpoint, repo.name);
        let response = self.get(&url, false, None)?;
        let mut body = response.into_body().into_reader().take(MOST_JSON);
        let mut text = Vec::new();
        body.read_to_end(&mut text).map_err(|e| RemoteError::Passing(format!("{url}: {e}")))?;
        let wrong = |what: &str| RemoteError::Final(format!("{url} answers without {what}"));
        let json: Value = serde_json::from_slice(&text).map_err(|_| wrong("JSON"))?;
        let commit = json.get("sha").and_then(Value::as_str).filter(|commit| is_commit(commit));
        let files = json.get("siblings").and_then(Value::as_array).ok_or_else(|| wrong("a list of files"))?;
        let names =
            files.iter().filter_map(|file| Some(file.get("rfilename")?.as_str()?.to_owned())).collect();
        Ok((commit.ok_or_else(|| wrong("a commit"))?.to_owned(), names))
    }

    /// The name of a file's blob and its size. Of a large file they stand on the hub's own answer, which redirects to the
    /// bytes.
    pub(super) fn info(&self, repo: &Repo, commit: &str, file: &str) -> Result<FileInfo, RemoteError> {
        let url = self.address(repo, commit, file);
        let response = self.follow(&url, true, None, true)?;
        let headers = response.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let etag = text("x-linked-etag").or(text("etag")).unwrap_or_default();
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        // It becomes the name of a file.
        let plain = !etag.is_empty()
            && etag.len() <= 128
            && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !plain {
            return Err(RemoteError::Final(format!("{url} answers without a usable etag")));
        }
        let own = || if response.status().is_redirection() { None } else { text("content-length") };
        let size = text("x-linked-size").or_else(own).and_then(|size| size.parse().ok());
        Ok(FileInfo { etag: etag.to_owned(), size })
    }

    /// The bytes of a file from `start` on. The answer may begin at 0 all the same (status 200, not 206).
    pub(super) fn bytes(
        &self,
        repo: &Repo,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<Response<Body>, RemoteError> {
        let range = (start > 0).then(|| format!("bytes={start}-"));
        self.get(&self.address(repo, commit, file), false, range.as_deref())
    }

    fn address(&self, repo: &Repo, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.hub.endpoint, repo.name)
    }

    fn get(&self, url: &str, head: bool, range: Option<&str>) -> Result<Response<Body>, RemoteError> {
        self.follow(url, head, range, false)
    }

    /// Follows redirects; with `same_host`, only those that stay there. The token goes to the first host alone.
    fn follow(
        &self,
        first: &str,
        head: bool,
        range: Option<&str>,
        same_host: bool,
    ) -> Result<Response<Body>, RemoteError> {
        let mut url = first.to_owned();
        for _ in 0..=MOST_REDIRECTS {
            let mut request = if head { self.agent.head(&url) } else { self.agent.get(&url) };
            if let Some(token) = self.hub.token.as_ref().filter(|_| origin(&url) == origin(first)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            let response = request.call().map_err(|e| RemoteError::Passing(format!("{first}: {e}")))?;
            let target = response.headers().get("location").filter(|_| response.status().is_redirection());
            let Some(target) = target.and_then(|target| target.to_str().ok()) else {
                return checked(first, response, self.hub.token.is_some());
            };
            let next = join(&url, target);
            if same_host && origin(&next) != origin(first) {
                return Ok(response);
            }
            url = next;
        }
        Err(RemoteError::Final(format!("{first}: more than {MOST_REDIRECTS} redirects")))
    }
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<(String, String)> {
    let uri: Uri = url.parse().ok()?;
    Some((uri.scheme_str()?.to_ascii_lowercase(), uri.authority()?.as_str().to_ascii_lowercase()))
}

/// The target of a redirect, which may be a path alone.
fn join(base: &str, target: &str) -> String {
    match (target.starts_with('/') && !target.starts_with("//"), origin(base)) {
        (true, Some((scheme, host))) => format!("{scheme}://{host}{target}"),
        _ => target.to_owned(),
    }
}

/// Turns a refusal into words.
fn checked(url: &str, response: Response<Body>, with_token: bool) -> Result<Response<Body>, RemoteError> {
    let status = response.status();
    if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(response);
    }
    let why = header(response.headers(), "x-error-code");
    let token = if with_token { "the token in use may not read it" } else { "HF_TOKEN can name a token" };
    let text = match (status.as_u16(), why) {
        (401 | 403, "GatedRepo") => {
            format!("access must be granted on the hub's page of the repository first; {token}")
        }
        (404, "RevisionNotFound") => "there is no such revision".into(),
        (404, "EntryNotFound") => format!("{url} is not there"),
        // The hub does not tell strangers whether a repository exists.
        (401, _) | (404, "RepoNotFound") => {
            format!("there is no such repository, or it is private ({token})")
        }
        (403, _) => format!("{url} is forbidden; {token}"),
        (404, _) => format!("{url} is not there"),
        (code, _) => format!("{url} answers {code}"),
    };
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return Err(RemoteError::Passing(text));
    }
    Err(RemoteError::Final(text))
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
