//! A keep-alive HTTP/1.1 client on a blocking socket, which notices within a few milliseconds that it is no longer wanted.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::body::Body;

/// How long a read blocks before the client looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest head of an answer.
const MOST_HEAD: usize = 64 * 1024;
/// Headers of an answer at most.
const MOST_HEADERS: usize = 100;

/// Why a request has no whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nobody listens, or the name is unknown.
    Connect(String),
    /// A status other than 200, with the beginning of the body.
    Status(u16, String),
    /// The connection ended early, or what came is not HTTP.
    Broken(String),
    /// No byte for so long.
    Silent(Duration),
    /// The measurement ended first.
    Stopped,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Connect(why) => write!(f, "no connection: {why}"),
            Fault::Status(code, body) => write!(f, "status {code}: {body}"),
            Fault::Broken(why) => write!(f, "the answer broke off: {why}"),
            Fault::Silent(time) => write!(f, "no byte for {} s", time.as_secs_f64()),
            Fault::Stopped => f.write_str("stopped"),
        }
    }
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    /// `host:port`.
    pub(super) address: String,
    /// What stands before `/v1`, without a slash at the end.
    pub(super) prefix: String,
    /// Sent as a bearer token.
    pub(super) key: Option<String>,
}

impl Site {
    /// Reads `http://host:port`, with or without a path; a final `/v1` is what clients of OpenAI write and is dropped.
    ///
    /// # Errors
    /// What would be right.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("--url {url}: {why}; http://HOST:PORT is needed");
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(wrong("TLS is not spoken here")),
            Some(_) => return Err(wrong("unknown scheme")),
            None => url,
        };
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if host.is_empty() || host.starts_with(':') || host.contains('@') {
            return Err(wrong("there is no host"));
        }
        let address = match (port, host.ends_with(']') || !host.contains(':')) {
            (Some(_), _) => host.to_owned(),
            (None, true) => format!("{host}:80"),
            (None, false) => return Err(wrong("the port is no number up to 65535")),
        };
        let path = path.trim_end_matches('/');
        Ok(Site { address, prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(), key: None })
    }
}

/// One connection at a time, kept open between requests.
pub(super) struct Client<'a> {
    site: &'a Site,
    /// Set when answers are no longer wanted.
    stop: &'a AtomicBool,
    /// How long the server may say nothing.
    patience: Duration,
    open: Option<TcpStream>,
}

impl<'a> Client<'a> {
    /// A client that has not connected.
    pub(super) fn new(site: &'a Site, stop: &'a AtomicBool, patience: Duration) -> Self {
        Client { site, stop, patience, open: None }
    }

    /// Sends a request and hands the bytes of a body of status 200 to `on_body` as they come.
    ///
    /// # Errors
    /// Any other outcome; the connection is closed then.
    pub(super) fn call(
        &mut self,
        method: &str,
        path: &str,
        content: &str,
        on_body: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Fault> {
        let reused = self.open.is_some();
        match self.exchange(method, path, content, on_body) {
            // An idle connection that the server had closed: nothing of an answer came, and nothing was asked yet.
            Err((Fault::Broken(_), false)) if reused => {
                self.exchange(method, path, content, on_body).map_err(|(fault, _)| fault)
            }
            other => other.map_err(|(fault, _)| fault),
        }
    }

    /// The whole body of an answer.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(super) fn fetch(&mut self, method: &str, path: &str, content: &str) -> Result<String, Fault> {
        let mut all = Vec::new();
        self.call(method, path, content, &mut |bytes| all.extend_from_slice(bytes))?;
        Ok(String::from_utf8_lossy(&all).into_owned())
    }

    /// With a fault, whether any byte of an answer had come.
    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        content: &str,
        on_body: &mut dyn FnMut(&[u8]),
    ) -> Result<(), (Fault, bool)> {
        let early = |fault: Fault| (fault, false);
        let mut socket = match self.open.take() {
            Some(socket) => socket,
            None => self.connect().map_err(early)?,
        };
        let broken = |e: std::io::Error| early(Fault::Broken(e.to_string()));
        socket.write_all(self.request(method, path, content).as_bytes()).map_err(broken)?;
        let mut bytes = Vec::new();
        let (head, used) = self.head(&mut socket, &mut bytes)?;
        let late = |fault: Fault| (fault, true);
        let mut refusal = Vec::new();
        let mut body = head.body;
        let good = head.status == 200;
        let mut feed = |bytes: &[u8]| {
            let mut sink = |content: &[u8]| match good {
                true => on_body(content),
                false => refusal.extend_from_slice(content),
            };
            body.push(bytes, &mut sink).map_err(|why| late(Fault::Broken(why)))
        };
        let mut done = feed(&bytes[used..])?;
        let mut buffer = [0u8; 16 * 1024];
        while !done {
            match self.read(&mut socket, &mut buffer).map_err(late)? {
                0 if head.until_close => break,
                0 => return Err(late(Fault::Broken("the connection was closed".into()))),
                n => done = feed(&buffer[..n])?,
            }
        }
        if head.keep && !head.until_close {
            self.open = Some(socket);
        }
        if head.status == 200 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&refusal).trim().chars().take(300).collect();
        Err(late(Fault::Status(head.status, said)))
    }

    fn connect(&self) -> Result<TcpStream, Fault> {
        let address = &self.site.address;
        let failed = |why: String| Fault::Connect(format!("{address}: {why}"));
        let mut why = "the name has no address".to_owned();
        for at in address.to_socket_addrs().map_err(|e| failed(e.to_string()))? {
            match TcpStream::connect_timeout(&at, CONNECT) {
                Ok(socket) => {
                    let set = socket
                        .set_nodelay(true)
                        .and_then(|()| socket.set_read_timeout(Some(LOOK)))
                        .and_then(|()| socket.set_write_timeout(Some(self.patience)));
                    return set.map(|()| socket).map_err(|e| failed(e.to_string()));
                }
                Err(e) => why = e.to_string(),
            }
        }
        Err(failed(why))
    }

    fn request(&self, method: &str, path: &str, content: &str) -> String {
        let Site { address, prefix, key } = self.site;
        let key = key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        format!(
            "{method} {prefix}{path} HTTP/1.1\r\nHost: {address}\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{content}",
            content.len()
        )
    }

    /// Reads up to the end of the head; says how many of the bytes it has.
    fn head(&self, socket: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<(Head, usize), (Fault, bool)> {
        let mut buffer = [0u8; 16 * 1024];
        loop {
            let n = self.read(socket, &mut buffer).map_err(|fault| (fault, !bytes.is_empty()))?;
            if n == 0 {
                return Err((Fault::Broken("the connection was closed".into()), !bytes.is_empty()));
            }
            bytes.extend_from_slice(&buffer[..n]);
            match Head::parse(bytes) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) if bytes.len() <= MOST_HEAD => {}
                Ok(None) => return Err((Fault::Broken("the head has no end".into()), true)),
                Err(why) => return Err((Fault::Broken(why), true)),
            }
        }
    }

    /// Some bytes; 0 at the end.
    fn read(&self, socket: &mut TcpStream, buffer: &mut [u8]) -> Result<usize, Fault> {
        let since = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Fault::Stopped);
            }
            match socket.read(buffer) {
                Ok(n) => return Ok(n),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if since.elapsed() > self.patience {
                        return Err(Fault::Silent(self.patience));
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Fault::Broken(e.to_string())),
            }
        }
    }
}

/// What the head of an answer says.
struct Head {
    status: u16,
    /// Whether the connection may be used again.
    keep: bool,
    /// The body ends with the connection.
    until_close: bool,
    body: Body,
}

impl Head {
    /// The head and its length, once it is whole.
    fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, String> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let used = match response.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(e) => return Err(format!("no HTTP: {e}")),
        };
        let status = response.code.unwrap_or(0);
        if (100..200).contains(&status) {
            // An interim answer: the real one comes behind it.
            return Ok(Head::parse(&bytes[used..])?.map(|(head, more)| (head, used + more)));
        }
        let value = |name: &str| {
            let found = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
            found.map(|h| String::from_utf8_lossy(h.value).trim().to_ascii_lowercase())
        };
        let chunked = value("transfer-encoding").is_some_and(|v| v.contains("chunked"));
        let length = match value("content-length") {
            Some(text) => Some(text.parse().map_err(|_| format!("Content-Length is {text:?}"))?),
            None => None,
        };
        let body = match (chunked, length) {
            (true, _) => Body::chunked(),
            (false, Some(length)) => Body::sized(length),
            (false, None) if status == 204 || status == 304 => Body::sized(0),
            (false, None) => Body::until_close(),
        };
        let keep = response.version == Some(1) && value("connection").is_none_or(|v| v != "close");
        let until_close = body.is_until_close();
        Ok(Some((Head { status, keep, until_close, body }, used)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_refused_with_what_is_right() {
        let read = |url: &str| Site::parse(url).map(|s| (s.address, s.prefix));
        assert_eq!(read("http://localhost:8000"), Ok(("localhost:8000".into(), String::new())));
        assert_eq!(read("127.0.0.1:1/v1/"), Ok(("127.0.0.1:1".into(), String::new())));
        assert_eq!(read("http://h/llm/v1"), Ok(("h:80".into(), "/llm".into())));
        assert_eq!(read("http://[::1]:9"), Ok(("[::1]:9".into(), String::new())));
        assert_eq!(read("http://[::1]"), Ok(("[::1]:80".into(), String::new())));
        for (url, why) in [
            ("https://a:1", "TLS"),
            ("ftp://a", "scheme"),
            ("http://", "no host"),
            ("http://a:99999", "no number up to 65535"),
            ("http://u:w@a:1", "no host"),
        ] {
            let error = read(url).expect_err(url);
            assert!(error.starts_with("--url ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_head_says_how_its_body_ends() {
        let parse = |text: &str| Head::parse(text.as_bytes());
        assert!(parse("HTTP/1.1 200 OK\r\nContent-Le").is_ok_and(|head| head.is_none()));
        assert!(parse("SMTP ready\r\n\r\n").is_err());
        assert!(parse("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n").is_err());
        let whole = |text: &str| {
            let (head, used) = parse(text).expect("HTTP").expect("whole");
            (head.status, head.keep, head.until_close, used == text.len())
        };
        assert_eq!(whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), (200, true, false, true));
        assert_eq!(whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), (200, true, false, true));
        assert_eq!(whole("HTTP/1.0 200 OK\r\n\r\n"), (200, false, true, true));
        let closing = "HTTP/1.1 429 Too Many\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(whole(closing), (429, false, false, true));
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(whole(interim), (201, true, false, true));
    }
}
