//! Out of file descriptors. In a process of its own with a small limit, which a shell sets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenrouter_engine::{EngineHandle, EngineInfo, EngineStatus};
use tokenrouter_server::net::frontend::{ApiCall, CallContext, Frontend, Prepared, Refusal};
use tokenrouter_server::net::{App, NetConfig, Server};

struct NoRequests;

impl Frontend for NoRequests {
    fn prepare(&self, _: ApiCall, _: &[u8], _: &CallContext) -> Result<Prepared, Refusal> {
        Err(Refusal::new(400, None, "this test sends no requests"))
    }
}

const INNER: &str = "TOKENROUTER_TEST_FEW_DESCRIPTORS";

fn ask(client: &mut TcpStream) -> Option<String> {
    client.write_all(b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
    let mut answer = [0; 4096];
    let count = client.read(&mut answer).ok().filter(|count| *count > 0)?;
    Some(String::from_utf8_lossy(&answer[..count]).into_owned())
}

fn connect(address: SocketAddr, patience: u64) -> Option<TcpStream> {
    let client = TcpStream::connect(address).ok()?;
    client.set_read_timeout(Some(Duration::from_millis(patience))).unwrap();
    Some(client)
}

#[test]
fn out_of_descriptors_the_server_waits_and_goes_on() {
    if std::env::var_os(INNER).is_none() {
        let inner = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact --nocapture \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg("out_of_descriptors_the_server_waits_and_goes_on")
            .env(INNER, "1")
            .status();
        assert!(inner.unwrap().success());
        return;
    }
    let config = NetConfig { http: Some((Ipv4Addr::LOCALHOST, 0).into()), tcp: None, ..NetConfig::default() };
    let server = Server::bind(config).unwrap();
    let (address, control) = (server.http_addr().unwrap(), server.control());
    let (commands, _inbox) = flume::bounded(8);
    let (_outbox, reports) = flume::bounded(8);
    let (info, status) = (EngineInfo::default(), Arc::new(EngineStatus::default()));
    let engine = EngineHandle::new(commands, reports, Box::new(|| {}), info, status);
    let app = App { engine, frontend: Arc::new(NoRequests), routes: Vec::new(), props: b"{}".to_vec() };
    let thread = std::thread::spawn(move || server.run(app).unwrap());

    // Client and server share the limit: in the end a client has the last descriptor, and the server none for it.
    let mut clients = Vec::new();
    let left_waiting = loop {
        let Some(mut client) = connect(address, 300) else { break None };
        match ask(&mut client) {
            Some(answer) => assert!(answer.contains(" 200 "), "{answer}"),
            None => break Some(client),
        }
        clients.push(client);
        assert!(clients.len() < 64, "the limit was never met");
    };
    // Those that are served go on.
    for client in &mut clients {
        assert!(ask(client).is_some());
    }
    clients.truncate(clients.len() / 2);
    if let Some(mut client) = left_waiting {
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = [0; 512];
        let count = client.read(&mut answer).unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200"), "taken up when there was room");
    }
    let end = Instant::now() + Duration::from_secs(10);
    while connect(address, 1000).and_then(|mut client| ask(&mut client)).is_none() {
        assert!(Instant::now() < end, "no new connection is served");
    }
    control.exit();
    thread.join().unwrap();
}
