//! The raw TCP port without its socket: one JSON request per line in, one JSON event per line out.
//!
//! What a request and its events look like is said in `api/line.rs`. Requests of a connection run at the same
//! time and are told apart by the client's `id`. Besides requests there are two operations on lines of at most
//! 16 KiB: `{"op":"cancel","id":..}` ends a request with an `error` event, and `{"op":"ping","id":..}` is
//! answered by `{"id":..,"event":"pong"}`. Where API keys are configured, the first line must be
//! `{"op":"auth","key":".."}`, which is answered by `{"id":..,"event":"ok"}`; anything else, and a wrong key, gets an
//! error and the end of the connection. One key serves all requests of the connection. A half-closed connection gets the answers that run, then it is closed.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::access::Secret;
use super::config::{NetConfig, Timeouts};
use super::conn::Next;
use super::frontend::Refusal;
use super::outbox::Outbox;

/// Lines up to this length are probed on the network thread, longer ones by the tokenizer threads.
pub const SHORT_LINE: usize = 16 << 10;

/// Longest id, in bytes: it is repeated in every event.
const MAX_ID: usize = 128;

/// The part of a line that says what it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// `id`: a string, an integer, or null.
    pub id: Value,
    /// `op`: absent for a request. Of an `op` that is no string, its JSON text.
    pub op: Option<String>,
    /// `key`, when it is a string.
    pub key: Option<Secret>,
}

/// Reads id and operation of a line. Costs a pass over it. A line that is no JSON object has neither; of a key
/// that occurs twice the last value counts, as in the request itself.
///
/// # Errors
/// A fixed text when the id is too long.
pub fn probe(line: &[u8]) -> Result<Probe, &'static str> {
    let Ok(Members { id, op, key }) = serde_json::from_slice(line) else { return Ok(Probe::default()) };
    let key = key.as_str().map(Secret::new);
    let op = match op {
        Value::Null => None,
        Value::String(op) => Some(op),
        other => Some(other.to_string()),
    };
    match &id {
        Value::String(text) if text.len() > MAX_ID => Err("id must have at most 128 bytes"),
        Value::String(_) => Ok(Probe { id, op, key }),
        _ if id.is_i64() || id.is_u64() => Ok(Probe { id, op, key }),
        _ => Ok(Probe { id: Value::Null, op, key }),
    }
}

/// The members `id`, `op` and `key` of an object, whatever they are; everything else is skipped.
#[derive(Default)]
struct Members {
    id: Value,
    op: Value,
    key: Value,
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Members::default();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "id" => members.id = map.next_value()?,
                "op" => members.op = map.next_value()?,
                "key" => members.key = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(members)
    }
}

/// State machine of one raw TCP connection.
#[derive(Debug)]
pub struct LineConn {
    buf: Vec<u8>,
    /// Bytes of `buf` that were taken as lines; moved out of the way when more arrive, not line by line.
    taken: usize,
    /// Bytes of `buf` that were searched for a line end.
    scanned: usize,
    lines: u64,
    max_line: usize,
    /// A key must come first.
    locked: bool,
    out: Outbox,
    times: Timeouts,
    since: Instant,
    running: Vec<(u64, Value)>,
    last: bool,
    ended: bool,
    closing: bool,
    shut: bool,
}

impl LineConn {
    /// A new connection.
    pub fn new(config: &NetConfig, now: Instant) -> Self {
        Self {
            buf: Vec::new(),
            taken: 0,
            scanned: 0,
            lines: 0,
            max_line: config.limits.body,
            locked: config.access.needs_key(),
            out: Outbox::new(config.outbox_bytes),
            times: config.timeouts,
            since: now,
            running: Vec::new(),
            last: false,
            ended: false,
            closing: false,
            shut: false,
        }
    }

    /// Takes bytes that arrived. While closing they are dropped.
    pub fn on_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if !self.closing {
            self.buf.drain(..self.taken);
            self.scanned -= self.taken;
            self.taken = 0;
            self.buf.extend_from_slice(bytes);
            self.since = now;
        }
    }

    /// The client closed its half: no further lines, running requests go on.
    pub fn on_end(&mut self) {
        self.ended = true;
    }

    /// The next line, without its end. Lines that cannot be requests are answered here.
    pub fn next_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        while !self.closing && !self.out.is_full() {
            let line = self.take_line(now)?;
            self.lines += 1;
            if is_http(&line) {
                let text = "this port speaks one JSON object per line, not HTTP; use the HTTP port";
                self.refuse(now, &Refusal::new(400, None, text));
            } else if !line.is_empty() {
                return Some(line);
            }
        }
        None
    }

    /// How many lines have arrived.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    fn take_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        // A TLS handshake has no line end to wait for.
        if self.lines == 0 && self.unread().first() == Some(&0x16) {
            let text = "this port speaks one JSON object per line, without TLS";
            self.refuse(now, &Refusal::new(400, None, text));
            return None;
        }
        let end = self.buf[self.scanned..].iter().position(|byte| *byte == b'\n').map(|at| self.scanned + at);
        let start = self.taken;
        let length = end.unwrap_or(self.buf.len()) - start;
        if length > self.longest_line() {
            self.refuse(now, &Refusal::new(413, Some("request_too_large"), "the line is too long"));
            return None;
        }
        match end {
            Some(end) => self.taken = end + 1,
            None if self.ended && length > 0 => self.taken = self.buf.len(),
            None => {
                self.scanned = self.buf.len();
                return None;
            }
        }
        self.scanned = self.taken;
        let line = self.buf[start..self.taken].trim_ascii_end().to_vec();
        if self.taken == self.buf.len() {
            self.forget();
        }
        Some(line)
    }

    /// Strangers get no memory.
    fn longest_line(&self) -> usize {
        if self.locked { SHORT_LINE.min(self.max_line) } else { self.max_line }
    }

    /// Whether a key must come before anything else.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// The key was right.
    pub fn unlock(&mut self, now: Instant, id: &Value) {
        self.locked = false;
        self.write(now, format!("{{\"id\":{id},\"event\":\"ok\"}}\n").as_bytes());
    }

    /// Bytes that no line has claimed yet.
    fn unread(&self) -> &[u8] {
        &self.buf[self.taken..]
    }

    /// Lets go of all input.
    fn forget(&mut self) {
        self.buf = Vec::new();
        self.taken = 0;
        self.scanned = 0;
    }

    /// Answers what is no request, and closes.
    pub fn refuse(&mut self, now: Instant, refusal: &Refusal) {
        self.answer(now, &Value::Null, refusal);
        self.closing = true;
        self.forget();
    }

    /// A request of this connection was taken under the number `exchange`.
    pub fn begin(&mut self, exchange: u64, id: Value) {
        self.running.push((exchange, id));
    }

    /// The id of a running request became known. False when it is in use; then the request stays without.
    pub fn set_id(&mut self, exchange: u64, id: Value) -> bool {
        let free = self.find(&id).is_none();
        if let Some((_, name)) = self.running.iter_mut().find(|(other, _)| free && *other == exchange) {
            *name = id;
        }
        free
    }

    /// The running request with this id; null names none.
    pub fn find(&self, id: &Value) -> Option<u64> {
        let mut running = self.running.iter();
        running.find(|(_, name)| name == id && !id.is_null()).map(|(exchange, _)| *exchange)
    }

    /// The requests that run.
    pub fn running(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.running.iter().map(|(exchange, _)| *exchange)
    }

    /// Ends a running request with an error.
    pub fn fail(&mut self, now: Instant, exchange: u64, refusal: &Refusal) {
        if let Some(at) = self.running.iter().position(|(running, _)| *running == exchange) {
            let (_, id) = self.running.swap_remove(at);
            self.answer(now, &id, refusal);
        }
    }

    /// Writes events of a running request, each with its line feed; `end` ends it.
    pub fn stream(&mut self, now: Instant, exchange: u64, events: &[u8], end: bool) {
        let Some(at) = self.running.iter().position(|(running, _)| *running == exchange) else { return };
        if end {
            self.running.swap_remove(at);
        }
        self.write(now, events);
    }

    /// Writes an error event.
    pub fn answer(&mut self, now: Instant, id: &Value, refusal: &Refusal) {
        self.write(now, &refusal.line(id));
    }

    /// Answers a ping.
    pub fn pong(&mut self, now: Instant, id: &Value) {
        self.write(now, format!("{{\"id\":{id},\"event\":\"pong\"}}\n").as_bytes());
    }

    fn write(&mut self, now: Instant, bytes: &[u8]) {
        self.out.append(now, |out| out.extend_from_slice(bytes));
        self.since = now;
    }

    /// No request after the present ones; an idle connection closes now.
    pub fn finish_soon(&mut self) {
        self.last = true;
    }

    /// What to do with the socket once output was written as far as it goes.
    pub fn next_step(&self) -> Next {
        let over = self.closing
            || self.running.is_empty()
                && self.unread().is_empty()
                && (self.ended || self.last && self.lines > 0);
        match over && self.out.is_empty() {
            true if self.ended => Next::Close,
            true if !self.shut => Next::ShutdownWrite,
            _ => Next::Wait,
        }
    }

    /// Our half was closed; now the client has a short time to do the same.
    pub fn half_closed(&mut self, now: Instant) {
        self.closing = true;
        self.shut = true;
        self.since = now;
    }

    /// Whether input should be read.
    pub fn wants_read(&self) -> bool {
        !self.ended && (self.closing || !self.out.is_full() && self.held() <= self.longest_line())
    }

    /// True when no further line is taken.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Request bytes held.
    pub fn held(&self) -> usize {
        self.unread().len()
    }

    /// The output.
    pub fn out(&mut self) -> &mut Outbox {
        &mut self.out
    }

    /// True when stream events should wait.
    pub fn is_full(&self) -> bool {
        self.out.is_full()
    }

    /// When [`on_deadline`](Self::on_deadline) must be called.
    pub fn deadline(&self) -> Option<Instant> {
        let limit = if self.shut {
            Some(self.times.linger)
        } else if self.held() > 0 && !self.out.is_full() {
            Some(self.times.body_idle)
        } else if self.running.is_empty() && self.out.is_empty() {
            Some(self.times.line_idle)
        } else {
            None
        };
        let write = self.out.deadline(self.times.write, !self.running.is_empty());
        [limit.map(|limit| self.since + limit), write].into_iter().flatten().min()
    }

    /// Acts on a deadline that passed. Returns true when the socket must be closed at once.
    pub fn on_deadline(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        let stuck = self.out.deadline(self.times.write, !self.running.is_empty()).is_some_and(|at| at <= now);
        if stuck || self.shut || self.held() == 0 {
            return true;
        }
        self.forget();
        self.refuse(now, &Refusal::new(408, None, "the line did not end in time"));
        false
    }
}

/// The request line of an HTTP client that has the wrong port.
fn is_http(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_uppercase) && line.windows(6).any(|window| window == b" HTTP/")
}
