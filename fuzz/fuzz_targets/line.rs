//! The state machine of the raw TCP port, fed with anything in pieces of any size, by the rules of its network thread.
#![no_main]

use std::sync::Arc;
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokenrouter_server::net::conn::Next;
use tokenrouter_server::net::frontend::Refusal;
use tokenrouter_server::net::line::{LineConn, SHORT_LINE, probe};
use tokenrouter_server::net::{Access, NetConfig, Secret};

struct Run {
    conn: LineConn,
    access: Arc<Access>,
    now: Instant,
    lines: Vec<Vec<u8>>,
    output: Vec<u8>,
    next: u64,
}

impl Run {
    fn new(keyed: bool, now: Instant) -> Self {
        let keys = if keyed { vec![Secret::new("k")] } else { Vec::new() };
        let access = Arc::new(Access::new(keys, Vec::new()));
        let mut config = NetConfig { outbox_bytes: 4000, access: access.clone(), ..NetConfig::default() };
        config.limits.body = 500;
        let conn = LineConn::new(&config, now);
        Self { conn, access, now, lines: Vec::new(), output: Vec::new(), next: 1 }
    }

    fn turn(&mut self) {
        self.flush();
        while let Some(line) = self.conn.next_line(self.now) {
            self.line(line);
            self.flush();
        }
        self.flush();
        if self.conn.next_step() == Next::ShutdownWrite {
            self.conn.half_closed(self.now);
        }
    }

    fn line(&mut self, line: Vec<u8>) {
        assert!(line.len() <= SHORT_LINE && !line.contains(&b'\n'));
        let found = probe(&line);
        self.lines.push(line);
        let now = self.now;
        let found = match found {
            Ok(found) => found,
            Err(problem) => return self.conn.answer(now, &Value::Null, &Refusal::new(400, None, problem)),
        };
        match found.op.as_deref() {
            Some("auth") => {
                let right = found.key.as_ref().is_some_and(|key| self.access.accepts(key));
                if right || !self.access.needs_key() {
                    self.conn.unlock(now, &found.id);
                } else {
                    self.conn.refuse(now, &Refusal::new(401, None, "no"));
                }
            }
            _ if self.conn.is_locked() => self.conn.refuse(now, &Refusal::new(401, None, "no")),
            Some("ping") => self.conn.pong(now, &found.id),
            Some("cancel") => {
                if let Some(exchange) = self.conn.find(&found.id) {
                    self.conn.fail(now, exchange, &Refusal::new(499, None, "cancelled"));
                }
            }
            Some(_) => self.conn.answer(now, &found.id, &Refusal::new(400, None, "op")),
            None if self.conn.find(&found.id).is_some() => {
                self.conn.answer(now, &Value::Null, &Refusal::new(400, None, "in use"));
            }
            None => {
                self.conn.begin(self.next, found.id);
                self.conn.stream(now, self.next, b"{\"event\":\"token\"}\n", false);
                // Some end at once, some run on.
                if self.next % 3 != 0 {
                    self.conn.stream(now, self.next, b"{\"event\":\"done\"}\n", true);
                }
                self.next += 1;
            }
        }
    }

    fn flush(&mut self) {
        let out = self.conn.out();
        self.output.extend_from_slice(out.pending());
        let length = out.len();
        out.advance(self.now, length);
    }
}

fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>, keyed: bool, now: Instant) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut run = Run::new(keyed, now);
    for piece in pieces {
        run.conn.on_bytes(now, piece);
        run.turn();
        assert!(run.conn.held() <= SHORT_LINE.max(500) + piece.len());
    }
    run.conn.on_end();
    run.turn();
    for exchange in run.conn.running().collect::<Vec<_>>() {
        run.conn.stream(now, exchange, b"{\"event\":\"done\"}\n", true);
    }
    run.turn();
    assert_eq!(run.conn.next_step(), Next::Close);
    for line in run.output.split_inclusive(|byte| *byte == b'\n') {
        let event: Value = serde_json::from_slice(line).expect("every event is one line of JSON");
        assert!(event["event"].is_string());
    }
    (run.lines, run.output)
}

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first_chunk::<2>() else { return };
    let now = Instant::now();
    let keyed = seed[1] & 1 == 1;
    let whole = run(std::iter::once(bytes), keyed, now);
    let size = 1 + usize::from(seed[0]) % 40;
    assert_eq!(whole, run(bytes.chunks(size), keyed, now), "pieces change what a connection does");
});
