//! A plain blocking HTTP client, written against the protocol and not against our server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A status code, headers in lower case, and the body with its transfer coding removed.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header names in lower case, values trimmed.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: String,
}

impl Response {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The JSON values of all `data:` events; the last one must be `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self.body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|d| serde_json::from_str(d).expect("an event is JSON")).collect()
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Posts JSON on a connection of its own.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, &request("POST", path, body.to_string().as_bytes()))
}

/// Gets a path on a connection of its own.
pub fn get(address: SocketAddr, path: &str) -> Response {
    send(address, &request("GET", path, b""))
}

/// The bytes of a request that asks for the connection to be closed.
pub fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Sends raw bytes and reads one response.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut socket = connect(address);
    socket.write_all(bytes).expect("the server reads");
    read_response(&mut BufReader::new(socket))
}

/// A connection whose reads give up after a minute: a hanging server fails the test.
pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("the server listens");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    socket
}

/// Reads one response.
pub fn read_response(reader: &mut impl BufRead) -> Response {
    let (status, headers) = read_head(reader);
    let value = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let mut body = Vec::new();
    if value("transfer-encoding").is_some_and(|v| v == "chunked") {
        while let Some(chunk) = read_chunk(reader) {
            body.extend(chunk);
        }
    } else if let Some(length) = value("content-length") {
        body.resize(length.parse().expect("a length"), 0);
        reader.read_exact(&mut body).expect("the whole body");
    } else {
        reader.read_to_end(&mut body).expect("a body up to the end");
    }
    Response { status, headers, body: String::from_utf8(body).expect("UTF-8") }
}

/// Reads the status line and the headers.
pub fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header line");
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return (status, headers),
        }
    }
}

/// Reads one chunk of a chunked body; `None` after the last.
pub fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a chunk size");
    let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("chunk size {line:?}"));
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).expect("the whole chunk");
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}
