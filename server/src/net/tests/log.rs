//! The access log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::{Harness, post};
use crate::net::{Access, Secret};

/// Everything that is logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        // The network thread is another one than the test's.
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    })
}

/// Waits for the lines that name a request, at least so many.
fn lines(id: &str, count: usize) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let text = String::from_utf8(log().0.lock().unwrap().clone()).unwrap();
        let found: Vec<String> =
            text.lines().filter(|line| line.contains(&format!("id=\"{id}\""))).map(str::to_owned).collect();
        if found.len() >= count {
            return found;
        }
        assert!(Instant::now() < end, "{count} lines about {id} in:\n{text}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn named(id: &str, body: &str) -> String {
    post(body)
        .replace("Host: a\r\n", &format!("Host: a\r\nx-request-id: {id}\r\nAuthorization: Bearer sk-log\r\n"))
}

#[test]
fn every_request_has_one_line_without_its_text_and_its_key() {
    log();
    let server = Harness::with(|config| {
        config.access = Arc::new(Access::new(vec![Secret::new("sk-log")], Vec::new()));
    });
    let mut client = server.client();
    client.send(named("log-done", "{\"prompt\":\"unspoken\",\"n\":2}"));
    assert_eq!(client.answer().status, 200);
    client.send(named("log-bad", "unspoken"));
    assert_eq!(client.answer().status, 400);
    client.send(named("log-full", "{\"prompt\":\"refuse-full\"}"));
    assert_eq!(client.answer().status, 429);
    client.send(named("log-left", "{\"prompt\":\"hang-late\",\"stream\":true}"));
    client.head();
    client.chunk();
    let address = client.stream.local_addr().unwrap();
    drop(client);
    server.engine.wait_for("cancel", 1);
    for (id, parts) in [
        (
            "log-done",
            &["status=200", "finish=\"length\"", "completion_tokens=6", "ttft_ms=", "call=\"completions\""][..],
        ),
        ("log-bad", &["status=400", "outcome=\"failed\"", "finish=\"error\""]),
        ("log-full", &["status=429"]),
        ("log-left", &["status=499", "finish=\"abort\"", "completion_tokens=1"]),
    ] {
        let found = lines(id, 1);
        assert_eq!(found.len(), 1, "{found:?}");
        for part in parts.iter().copied().chain([format!("client={address}").as_str(), "INFO"]) {
            assert!(found[0].contains(part), "{part} in {}", found[0]);
        }
    }
    let text = String::from_utf8(log().0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("sk-log") && !text.contains("unspoken"), "{text}");
}
