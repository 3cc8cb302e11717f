//! A hub in a test: files of one repository, large ones behind a redirect to another port, and faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub does wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Status, `x-error-code`: of every answer.
    pub(super) refuse: Option<(u16, &'static str)>,
    /// Ends the body of a large file after so many bytes, this many times.
    pub(super) cut: (usize, usize),
    /// Announces so many bytes more than there are.
    pub(super) more: usize,
    /// Sends other bytes than those that the etag was made of.
    pub(super) damage: bool,
    /// Answers a range with the whole file.
    pub(super) no_ranges: bool,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) range: Option<String>,
    pub(super) token: Option<String>,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Faults,
    seen: Vec<Seen>,
}

/// A hub on a free port, and the port of its large files.
#[derive(Clone)]
pub(super) struct TestHub {
    at: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl TestHub {
    pub(super) fn start(files: &[(&str, Vec<u8>)], faults: Faults) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let state = Arc::new(Mutex::new(State { files, faults, seen: Vec::new() }));
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (hub, large) = (listen(), listen());
        let address = |listener: &TcpListener| listener.local_addr().expect("bound");
        let (at, large_at) = (address(&hub), address(&large));
        for (listener, is_hub) in [(hub, true), (large, false)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || answer(&stream, &state, is_hub, large_at));
                }
            });
        }
        TestHub { at, state }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.at)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).seen.clone()
    }

    pub(super) fn set(&self, faults: Faults) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).faults = faults;
    }
}

/// What the hub calls a file's blob.
pub(super) fn etag(name: &str, bytes: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    if is_large(name) {
        hex(&Sha256::digest(bytes))
    } else {
        hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn answer(stream: &TcpStream, state: &Mutex<State>, is_hub: bool, large_at: SocketAddr) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let mut words = first.split(' ');
    let (method, path) =
        (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut seen = Seen { method, path, range: None, token: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => seen.range = Some(value.into()),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                seen.token = Some(value.into())
            }
            _ => {}
        }
    }
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.seen.push(seen.clone());
    let (head, body) = respond(&mut state, &seen, is_hub, large_at);
    drop(state);
    let mut stream = stream;
    let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes());
    if seen.method != "HEAD" {
        let _ = stream.write_all(&body);
    }
}

/// Status and headers, and the body.
fn respond(state: &mut State, seen: &Seen, is_hub: bool, large_at: SocketAddr) -> (String, Vec<u8>) {
    let faults = state.faults.clone();
    if let Some((status, code)) = faults.refuse {
        return (format!("{status} No\r\nX-Error-Code: {code}\r\nContent-Length: 0"), Vec::new());
    }
    if seen.path.starts_with("/api/models/org/name/revision/") {
        let files: Vec<_> = state.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let body =
            serde_json::json!({"id": "org/name", "sha": COMMIT, "siblings": files}).to_string().into_bytes();
        return (format!("200 OK\r\nContent-Length: {}", body.len()), body);
    }
    let name = seen.path.rsplit('/').next().unwrap_or_default().to_owned();
    let Some(bytes) = state.files.get(&name).cloned() else {
        return ("404 Not Found\r\nX-Error-Code: EntryNotFound\r\nContent-Length: 0".into(), Vec::new());
    };
    let etag = etag(&name, &bytes);
    let announced = bytes.len() + faults.more;
    if is_large(&name) && is_hub {
        let head = format!(
            "302 Found\r\nLocation: http://{large_at}/store/{name}\r\nX-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {announced}\r\n\
             X-Repo-Commit: {COMMIT}\r\nETag: \"of-the-pointer\"\r\nContent-Length: 0"
        );
        return (head, Vec::new());
    }
    let start = seen
        .range
        .as_deref()
        .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let start = start.filter(|_| !faults.no_ranges);
    if start.is_some_and(|start| start >= bytes.len()) {
        return (
            format!("416 No\r\nContent-Range: bytes */{}\r\nContent-Length: 0", bytes.len()),
            Vec::new(),
        );
    }
    let mut body = bytes[start.unwrap_or(0)..].to_vec();
    let length = body.len();
    if faults.damage {
        body.iter_mut().for_each(|byte| *byte ^= 1);
    }
    if is_large(&name) && faults.cut.1 > 0 && seen.method == "GET" {
        state.faults.cut.1 -= 1;
        body.truncate(faults.cut.0);
    }
    let status = if start.is_some() { "206 Partial Content" } else { "200 OK" };
    (format!("{status}\r\nX-Repo-Commit: {COMMIT}\r\nETag: \"{etag}\"\r\nContent-Length: {length}"), body)
}
