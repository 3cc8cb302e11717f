//! The state machine of an HTTP connection, fed with anything in pieces of any size: it never panics, what it holds is
//! bounded, and how the bytes were cut does not change a request or an answer.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tokenrouter_server::net::NetConfig;
use tokenrouter_server::net::conn::{HttpConn, Next};
use tokenrouter_server::net::http::HttpLimits;
use tokenrouter_server::net::http::head::Head;
use tokenrouter_server::net::http::parse::HttpRequest;
use tokenrouter_server::net::http::write::{Headers, Response};

/// Small limits, so that short inputs pass them.
const LIMITS: HttpLimits = HttpLimits { request_line: 200, head: 1000, body: 600 };

/// What a connection did.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    requests: Vec<HttpRequest>,
    output: Vec<u8>,
    closed: bool,
}

struct Run {
    conn: HttpConn,
    now: Instant,
    outcome: Outcome,
    /// A client that waits before it sends its body: there the pieces do matter.
    waits: bool,
}

impl Run {
    fn new(now: Instant) -> Self {
        let config = NetConfig { limits: LIMITS, outbox_bytes: 2000, ..NetConfig::default() };
        let conn = HttpConn::new(&config, now, "fuzz".into());
        Self { conn, now, outcome: Outcome::default(), waits: false }
    }

    fn turn(&mut self) {
        loop {
            self.flush();
            let waits = &mut self.waits;
            let gate = |head: &Head| {
                *waits |= head.expect_continue;
                head.path.starts_with("/no").then(|| Response::error(404, None, "no such path"))
            };
            let Some(request) = self.conn.next_request(self.now, gate) else {
                self.flush();
                if self.conn.has_more() { continue } else { break }
            };
            let streams = request.head.path.contains('s');
            self.outcome.requests.push(request);
            if streams {
                let events = b"data: 1\n\ndata: 2\n\n";
                self.conn.stream(self.now, &Headers::new(), events, false);
                self.conn.stream(self.now, &Headers::new(), b"data: [DONE]\n\n", true);
            } else {
                self.conn.respond(self.now, &Response::json(200, b"{}".to_vec()));
            }
        }
        self.flush();
        if self.conn.next_step() == Next::ShutdownWrite {
            self.conn.half_closed(self.now);
            self.outcome.closed = true;
        }
    }

    fn flush(&mut self) {
        let out = self.conn.out();
        self.outcome.output.extend_from_slice(out.pending());
        let length = out.len();
        out.advance(self.now, length);
        self.conn.on_flushed(self.now);
    }
}

fn run<'a>(pieces: impl Iterator<Item = &'a [u8]>, now: Instant) -> (Outcome, bool) {
    let mut run = Run::new(now);
    for piece in pieces {
        assert!(run.conn.wants_read(), "every request is answered, so more is always wanted");
        run.conn.on_bytes(now, piece);
        run.turn();
        let most = LIMITS.head + LIMITS.body + piece.len();
        assert!(run.conn.held() <= most, "{} bytes held", run.conn.held());
    }
    run.conn.on_end();
    run.turn();
    assert_eq!(run.conn.next_step(), Next::Close);
    (run.outcome, run.waits)
}

/// The clock is no part of what is compared.
fn without_dates(output: &[u8]) -> Vec<u8> {
    let lines = output.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !line.starts_with(b"Date: ")).flatten().copied().collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((seed, bytes)) = data.split_first_chunk::<2>() else { return };
    let now = Instant::now();
    let (mut whole, waits) = run(std::iter::once(bytes), now);
    let mut state = u32::from(u16::from_le_bytes(*seed)) | 1;
    let mut rest = bytes;
    let pieces = std::iter::from_fn(|| {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(0x9e37_79b1).rotate_left(7);
        let most = if seed[0] & 1 == 0 { 3 } else { 90 };
        let (piece, tail) = rest.split_at((1 + state as usize % most).min(rest.len()));
        rest = tail;
        Some(piece)
    });
    let (mut cut, _) = run(pieces, now);
    if !waits {
        whole.output = without_dates(&whole.output);
        cut.output = without_dates(&cut.output);
        assert_eq!(whole, cut, "pieces change what a connection does");
    }
});
