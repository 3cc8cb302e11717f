//! Both ports through TLS. The client checks the certificate against the root beside it; both were made for these
//! tests and are used nowhere else.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{Harness, get, post};
use crate::net::{NetConfig, Server, TlsFiles};

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "src/net/tests/tls", name].iter().collect()
}

fn secure(config: &mut NetConfig) {
    config.tls = Some(TlsFiles { cert: file("cert.pem"), key: file("key.pem") });
}

struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { stream: StreamOwned::new(connection, socket), buffer: Vec::new() }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self.stream.flush().unwrap();
    }

    fn fill(&mut self) -> bool {
        let mut piece = [0; 16384];
        let count = self.stream.read(&mut piece).unwrap();
        self.buffer.extend_from_slice(&piece[..count]);
        count > 0
    }

    fn until(&mut self, mark: &str) -> String {
        loop {
            let found = self.buffer.windows(mark.len()).position(|window| window == mark.as_bytes());
            if let Some(at) = found {
                return String::from_utf8(self.buffer.drain(..at + mark.len()).collect()).unwrap();
            }
            assert!(self.fill(), "closed before {mark:?}: {}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// Everything up to a proper end.
    fn rest(&mut self) -> String {
        while self.fill() {}
        String::from_utf8(std::mem::take(&mut self.buffer)).unwrap()
    }
}

const TOKENS: &str = "{\"tokens\":[[1,2,3]],\"ends\":[\"length\"]}";

#[test]
fn requests_on_a_kept_connection() {
    let server = Harness::with(secure);
    let mut client = Client::new(server.http);
    for _ in 0..3 {
        client.send(post("{\"prompt\":\"a\"}"));
        assert!(client.until(TOKENS).starts_with("HTTP/1.1 200"));
    }
    for byte in post("{\"prompt\":\"a\"}").as_bytes() {
        client.send([*byte]);
    }
    client.until(TOKENS);
    client
        .send(get("/health") + &get("/version") + &get("/ping").replace("Host", "Connection: close\r\nHost"));
    let all = client.rest();
    assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 3, "pipelined: {all}");
}

#[test]
fn large_bodies_and_streams_that_are_read_slowly() {
    let server = Harness::with(|config| {
        secure(config);
        config.outbox_bytes = 30_000;
    });
    let mut client = Client::new(server.http);
    let body = format!("{{\"prompt\":\"a\",\"other\":\"{}\"}}", "x".repeat(3 << 20));
    client.send(post(&body));
    client.until(TOKENS);
    client.send(post("{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":2000,\"pad\":1000}"));
    client.until("\"token\":1,");
    std::thread::sleep(Duration::from_millis(300));
    let rest = client.until("0\r\n\r\n");
    assert!(rest.contains("data: [DONE]") && rest.matches("\"token\":").count() == 1999);
}

#[test]
fn a_client_that_leaves_cancels() {
    let server = Harness::with(secure);
    for stream in [true, false] {
        let mut client = Client::new(server.http);
        client.send(post(&format!("{{\"prompt\":\"hang-late\",\"stream\":{stream}}}")));
        server.engine.wait_for("submit", if stream { 1 } else { 2 });
        drop(client);
        server.engine.wait_for("cancel", if stream { 1 } else { 2 });
    }
}

#[test]
fn the_raw_port_too() {
    let server = Harness::with(secure);
    let mut client = Client::new(server.tcp);
    client.send("{\"id\":1,\"prompt\":\"a\"}\n{\"op\":\"ping\",\"id\":2}\n");
    let text = client.until("\"event\":\"done\"}\n");
    assert!(text.contains("\"token\":3") && text.contains("pong"), "{text}");
}

#[test]
fn what_is_not_tls_gets_an_answer_and_a_clean_end() {
    let server = Harness::with(secure);
    let mut client = server.client();
    client.send(get("/health"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.headers["connection"].as_str()), (400, "close"));
    assert!(answer.body.contains("https"));
    assert_eq!(client.rest(), "");
    let mut client = server.line_client();
    client.send("{\"prompt\":\"a\"}\n");
    assert!(client.line()["error"]["message"].as_str().unwrap().contains("TLS"));
    assert_eq!(client.rest(), "");
    // Garbage that begins like a handshake, and an end in the middle of one.
    for bytes in [&[0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5, 6, 7][..], &[0x16, 3, 1], &[0, 0, 0]] {
        let mut client = TcpStream::connect(server.http).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(bytes).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        match client.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert!(rest.len() < 100, "at most an alert");
    }
    let mut client = Client::new(server.http);
    client.send(get("/health"));
    client.until("\"ok\"}");
}

/// Its answer waits for the end of the handshake, which it began before it was asked anything.
#[test]
fn a_connection_above_the_limit_is_told_through_tls() {
    let server = Harness::with(|config| {
        secure(config);
        config.max_connections = 1;
    });
    let mut first = Client::new(server.http);
    first.send(get("/health"));
    first.until("\"ok\"}");
    let mut second = Client::new(server.http);
    second.send(get("/health"));
    assert!(second.rest().contains("too_many_connections"));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let refusal = |cert: &str, key: &str| {
        let tls = Some(TlsFiles { cert: file(cert), key: file(key) });
        let config = NetConfig { http: None, tcp: None, tls, ..NetConfig::default() };
        Server::bind(config).err().unwrap().to_string()
    };
    assert!(refusal("nothing.pem", "key.pem").contains("nothing.pem: "));
    assert!(refusal("key.pem", "key.pem").contains("no certificate"));
    assert!(refusal("cert.pem", "cert.pem").contains("no private key"));
    assert!(refusal("ca.pem", "key.pem").contains("ca.pem: "), "another certificate's key");
}
