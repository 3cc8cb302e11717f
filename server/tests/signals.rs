//! SIGTERM drains, a second signal ends at once. In a process of its own, since signals reach all of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::raise;
use tokenrouter_engine::{EngineHandle, EngineInfo, EngineStatus};
use tokenrouter_server::net::frontend::{ApiCall, CallContext, Frontend, Prepared, Refusal};
use tokenrouter_server::net::{App, ExitReport, NetConfig, Server};

struct NoRequests;

impl Frontend for NoRequests {
    fn prepare(&self, _: ApiCall, _: &[u8], _: &CallContext) -> Result<Prepared, Refusal> {
        Err(Refusal::new(400, None, "this test sends no requests"))
    }
}

/// A server whose listener stays open for `delay` after the order to drain.
fn start(delay: Duration) -> (SocketAddr, std::thread::JoinHandle<ExitReport>) {
    let mut config =
        NetConfig { http: Some((Ipv4Addr::LOCALHOST, 0).into()), tcp: None, ..NetConfig::default() };
    config.timeouts.drain_delay = delay;
    config.timeouts.linger = Duration::from_millis(100);
    let server = Server::bind(config).unwrap();
    let address = server.http_addr().unwrap();
    let (commands, inbox) = flume::bounded(8);
    let (outbox, reports) = flume::bounded(8);
    let info = EngineInfo { context_len: 64, capacity_tokens: 64, ..EngineInfo::default() };
    let engine =
        EngineHandle::new(commands, reports, Box::new(|| {}), info, Arc::new(EngineStatus::default()));
    let app = App { engine, frontend: Arc::new(NoRequests), routes: Vec::new(), props: b"{}".to_vec() };
    let thread = std::thread::spawn(move || {
        let report = server.run(app).unwrap();
        drop((inbox, outbox));
        report
    });
    (address, thread)
}

fn status(address: SocketAddr, path: &str) -> Option<u16> {
    let mut client = TcpStream::connect(address).ok()?;
    client
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut text = String::new();
    client.read_to_string(&mut text).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

fn wait_for(address: SocketAddr, path: &str, wanted: u16) {
    let end = Instant::now() + Duration::from_secs(10);
    while status(address, path) != Some(wanted) {
        assert!(Instant::now() < end, "{path} never was {wanted}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn signals_drain_and_end() {
    let (address, thread) = start(Duration::from_millis(500));
    wait_for(address, "/ready", 200);
    raise(SIGTERM).unwrap();
    wait_for(address, "/ready", 503);
    assert_eq!(status(address, "/health"), Some(200));
    assert!(thread.join().unwrap().clean);
    assert_eq!(status(address, "/health"), None, "closed");

    let (address, thread) = start(Duration::from_secs(600));
    wait_for(address, "/ready", 200);
    raise(SIGINT).unwrap();
    wait_for(address, "/ready", 503);
    raise(SIGTERM).unwrap();
    assert!(thread.join().unwrap().clean, "nothing was running");
}
