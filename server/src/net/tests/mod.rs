//! The whole network part over loopback sockets, with a scripted engine and a scripted front end.

mod engine;
mod faults;
mod frontend;
mod keys;
mod limits;
mod lines;
mod log;
mod metrics;
mod misuse;
mod paths;
mod requests;
#[cfg(feature = "tls")]
mod secure;
mod shutdown;
mod streams;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokenrouter_engine::EngineHandle;

use crate::api::ServedRoute;

use super::{App, ExitReport, NetConfig, Server, ServerControl};
use engine::FakeEngine;
use frontend::FakeFrontend;

/// A running server.
struct Harness {
    http: SocketAddr,
    tcp: SocketAddr,
    control: ServerControl,
    engine: FakeEngine,
    thread: Option<JoinHandle<ExitReport>>,
}

impl Harness {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut NetConfig)) -> Self {
        Self::with_engine(change, |_| {})
    }

    fn with_engine(
        change: impl FnOnce(&mut NetConfig),
        engine_change: impl FnOnce(&mut EngineHandle),
    ) -> Self {
        let any = Some((Ipv4Addr::LOCALHOST, 0).into());
        let mut config = NetConfig { http: any, tcp: any, handle_signals: false, ..NetConfig::default() };
        // Some tests end while clients are open; the server need not wait long for them.
        config.timeouts.linger = Duration::from_millis(200);
        change(&mut config);
        let server = Server::bind(config).unwrap();
        let (http, tcp) = (server.http_addr().unwrap(), server.tcp_addr().unwrap());
        let control = server.control();
        let (engine, mut handle) = FakeEngine::start(Box::new(server.waker()));
        engine_change(&mut handle);
        let routes = served();
        let props = b"{\"models\":2}".to_vec();
        let app = App { engine: handle, frontend: Arc::new(FakeFrontend), routes, props };
        let thread = Some(std::thread::spawn(move || server.run(app).unwrap()));
        Self { http, tcp, control, engine, thread }
    }

    fn client(&self) -> Client {
        Client::new(self.http)
    }

    fn line_client(&self) -> Client {
        Client::new(self.tcp)
    }

    /// One POST to the completions endpoint on a connection of its own.
    fn complete(&self, body: &str) -> Answer {
        let mut client = self.client();
        client.send(post(body));
        client.answer()
    }

    fn join(mut self) -> ExitReport {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.control.exit();
        if let Some(thread) = self.thread.take() {
            let report = thread.join();
            if !std::thread::panicking() {
                report.unwrap();
            }
        }
    }
}

/// The routes that are served.
fn served() -> Vec<ServedRoute> {
    let route = |name: &str| ServedRoute {
        name: name.into(),
        algorithm: "single".into(),
        entry: 0,
        models: Vec::new(),
    };
    vec![route("pair"), route("Org/Small")]
}

fn post(body: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
    /// The chunks of a chunked body.
    chunks: Vec<String>,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A blocking client with a short patience.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads more; false at the end.
    fn fill(&mut self) -> bool {
        let mut piece = [0; 8192];
        match self.stream.read(&mut piece) {
            Ok(count) => {
                self.buffer.extend_from_slice(&piece[..count]);
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}; so far: {}", String::from_utf8_lossy(&self.buffer)),
        }
    }

    fn until(&mut self, mark: &[u8]) -> String {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                let taken: Vec<u8> = self.buffer.drain(..at + mark.len()).collect();
                return String::from_utf8(taken).unwrap();
            }
            assert!(self.fill(), "closed before {mark:?}: {}", String::from_utf8_lossy(&self.buffer));
        }
    }

    fn exactly(&mut self, count: usize) -> String {
        while self.buffer.len() < count {
            assert!(self.fill(), "closed early");
        }
        String::from_utf8(self.buffer.drain(..count).collect()).unwrap()
    }

    /// Everything up to the end of the connection.
    fn rest(&mut self) -> String {
        while self.fill() {}
        String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()
    }

    fn line(&mut self) -> serde_json::Value {
        let line = self.until(b"\n");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn head(&mut self) -> Answer {
        let head = self.until(b"\r\n\r\n");
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Answer { status, headers, body: String::new(), chunks: Vec::new() }
    }

    /// One chunk of a chunked body; empty at its end.
    fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(self.until(b"\r\n").trim_end(), 16).unwrap();
        let data = self.exactly(size);
        assert_eq!(self.exactly(2), "\r\n");
        data
    }

    fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        if let Some(length) = answer.headers.get("content-length") {
            answer.body = self.exactly(length.parse().unwrap());
        } else if answer.headers.contains_key("transfer-encoding") {
            answer.chunks =
                std::iter::from_fn(|| Some(self.chunk()).filter(|chunk| !chunk.is_empty())).collect();
            answer.body = answer.chunks.concat();
        }
        answer
    }
}
