//! The raw TCP port without its socket: one JSON request per line in, one JSON event per line out.
//!
//! Requests of a connection run at the same time and are told apart by the client's `id` (a number or a
//! string; without one, the number of the line). Every request gets its events and then exactly one
//! `{"id":..,"event":"done"}`:
//!
//! | event | meaning |
//! | --- | --- |
//! | `chunk` | a piece of a streamed answer; `data` is the object that HTTP sends as one server-sent event |
//! | `answer` | a whole answer; `data` is the body that HTTP sends |
//! | `error` | `status` and the OpenAI error object in `data` |
//! | `done` | nothing follows for this id |
//! | `pong` | the answer to `{"op":"ping"}` |
//!
//! `{"op":"cancel","id":..}` ends a request. Events about a line whose id could not be read have `"id":null`
//! and `"line":n`. A half-closed connection gets the answers that run, then it is closed.

use std::time::Instant;

use serde::Deserialize;

use super::config::{NetConfig, Timeouts};
use super::conn::Next;
use super::http::write::{Response, split_events};
use super::outbox::Outbox;

/// The part of a line that says what it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// `id` as JSON text.
    pub id: Option<String>,
    /// `op`: absent for a request.
    pub op: Option<String>,
    /// It has `messages`: a chat request.
    pub chat: bool,
}

/// Reads id, operation and kind of a line. Costs a pass over it.
///
/// # Errors
/// A fixed text when the line is not a JSON object with a usable id.
pub fn probe(line: &[u8]) -> Result<Probe, &'static str> {
    #[derive(Deserialize)]
    struct Fields {
        id: Option<serde_json::Value>,
        op: Option<String>,
        messages: Option<serde::de::IgnoredAny>,
    }
    let text = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8")?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err("a line must be one JSON object");
    }
    let fields: Fields = serde_json::from_str(text).map_err(|_| "the line is not a valid JSON object")?;
    let id = match fields.id {
        None => None,
        Some(id @ serde_json::Value::Number(_)) => Some(id.to_string()),
        Some(serde_json::Value::String(id)) if id.len() <= 128 => {
            Some(serde_json::Value::String(id).to_string())
        }
        Some(_) => return Err("id must be a number or a string of at most 128 bytes"),
    };
    Ok(Probe { id, op: fields.op, chat: fields.messages.is_some() })
}

/// How a request of this connection is called in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineName {
    /// Number of the line, from 1.
    pub line: u64,
    /// The id as JSON text, once known.
    pub id: Option<String>,
}

impl LineName {
    fn fields(&self) -> String {
        match &self.id {
            Some(id) => format!("\"id\":{id}"),
            None => format!("\"id\":null,\"line\":{}", self.line),
        }
    }
}

/// State machine of one raw TCP connection.
#[derive(Debug)]
pub struct LineConn {
    buf: Vec<u8>,
    scanned: usize,
    lines: u64,
    max_line: usize,
    out: Outbox,
    times: Timeouts,
    since: Instant,
    running: Vec<(u64, LineName)>,
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
            scanned: 0,
            lines: 0,
            max_line: config.limits.body,
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
            self.buf.extend_from_slice(bytes);
            self.since = now;
        }
    }

    /// The client closed its half: no further lines, running requests go on.
    pub fn on_end(&mut self) {
        self.ended = true;
    }

    /// The next line, without its end, and its number. Lines that cannot be requests are answered here.
    pub fn next_line(&mut self, now: Instant) -> Option<(u64, Vec<u8>)> {
        while !self.closing && !self.out.is_full() {
            let line = self.take_line(now)?;
            self.lines += 1;
            let name = LineName { line: self.lines, id: None };
            if is_http(&line) {
                let text = "this port speaks one JSON object per line, not HTTP; use the HTTP port";
                self.refuse(now, &name, &Response::error(400, None, text));
            } else if !line.is_empty() {
                return Some((self.lines, line));
            }
        }
        None
    }

    fn take_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        // A TLS handshake has no line end to wait for.
        if self.lines == 0 && self.buf.first() == Some(&0x16) {
            self.fail(now, 400, "this port speaks one JSON object per line, without TLS");
            return None;
        }
        let end = self.buf[self.scanned..].iter().position(|byte| *byte == b'\n').map(|at| self.scanned + at);
        let length = end.unwrap_or(self.buf.len());
        if length > self.max_line {
            self.fail(now, 413, "the line is too long");
            return None;
        }
        self.scanned = self.buf.len();
        let taken = match end {
            Some(end) => end + 1,
            None if self.ended && length > 0 => length,
            None => return None,
        };
        let mut line: Vec<u8> = self.buf.drain(..taken).collect();
        self.scanned = 0;
        while line.last().is_some_and(u8::is_ascii_whitespace) {
            line.pop();
        }
        Some(line)
    }

    /// Answers bytes that are no line, and closes.
    pub fn fail(&mut self, now: Instant, status: u16, message: &str) {
        let name = LineName { line: self.lines + 1, id: None };
        self.refuse(now, &name, &Response::error(status, None, message));
    }

    /// Answers without a request, and closes.
    pub fn refuse(&mut self, now: Instant, name: &LineName, response: &Response) {
        self.answer(now, name, response);
        self.closing = true;
        self.buf = Vec::new();
        self.scanned = 0;
    }

    /// A request of this connection was taken under the number `exchange`. False when its id is in use.
    pub fn begin(&mut self, exchange: u64, name: LineName) -> bool {
        let free = name.id.is_none() || self.running.iter().all(|(_, running)| running.id != name.id);
        if free {
            self.running.push((exchange, name));
        }
        free
    }

    /// The id of a running request became known. False when it is in use; then the request stays without.
    pub fn set_id(&mut self, exchange: u64, id: String) -> bool {
        let id = Some(id);
        let free = self.running.iter().all(|(other, name)| *other == exchange || name.id != id);
        if let Some((_, name)) = self.running.iter_mut().find(|(other, _)| free && *other == exchange) {
            name.id = id;
        }
        free
    }

    /// The running request with this id.
    pub fn find(&self, id: &str) -> Option<u64> {
        self.running.iter().find(|(_, name)| name.id.as_deref() == Some(id)).map(|(exchange, _)| *exchange)
    }

    /// The requests that run.
    pub fn running(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.running.iter().map(|(exchange, _)| *exchange)
    }

    /// Ends a running request with a whole answer.
    pub fn respond(&mut self, now: Instant, exchange: u64, response: &Response) {
        if let Some(at) = self.running.iter().position(|(running, _)| *running == exchange) {
            let (_, name) = self.running.swap_remove(at);
            self.answer(now, &name, response);
        }
    }

    /// Writes stream events of a running request; `end` ends it.
    pub fn stream(&mut self, now: Instant, exchange: u64, events: &[u8], end: bool) {
        let Some(at) = self.running.iter().position(|(running, _)| *running == exchange) else { return };
        let fields = self.running[at].1.fields();
        self.out.append(now, |out| {
            for event in split_events(events) {
                write_event(out, &fields, event);
            }
            if end {
                write_done(out, &fields);
            }
        });
        if end {
            self.running.swap_remove(at);
        }
        self.since = now;
    }

    /// Writes an answer and its `done`.
    pub fn answer(&mut self, now: Instant, name: &LineName, response: &Response) {
        let fields = name.fields();
        self.out.append(now, |out| {
            if response.status == 200 {
                write_line(out, &[&fields, "\"event\":\"answer\",\"data\":"], &response.body);
            } else {
                let event = format!("\"event\":\"error\",\"status\":{},\"data\":", response.status);
                write_line(out, &[&fields, &event], &response.body);
            }
            write_done(out, &fields);
        });
        self.since = now;
    }

    /// Answers a ping.
    pub fn pong(&mut self, now: Instant, name: &LineName) {
        let fields = name.fields();
        self.out.append(now, |out| write_line(out, &[&fields, "\"event\":\"pong\""], b""));
    }

    /// No request after the present ones; an idle connection closes now.
    pub fn finish_soon(&mut self) {
        self.last = true;
    }

    /// What to do with the socket once output was written as far as it goes.
    pub fn next_step(&self) -> Next {
        let over = self.closing
            || self.running.is_empty() && self.buf.is_empty() && (self.ended || self.last && self.lines > 0);
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
        !self.ended && (self.closing || !self.out.is_full() && self.buf.len() <= self.max_line)
    }

    /// True when no further line is taken.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Request bytes held.
    pub fn held(&self) -> usize {
        self.buf.len()
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
        } else if !self.buf.is_empty() && !self.out.is_full() {
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
        if stuck || self.shut || self.buf.is_empty() {
            return true;
        }
        self.buf = Vec::new();
        self.scanned = 0;
        self.fail(now, 408, "the line did not end in time");
        false
    }
}

/// The request line of an HTTP client that has the wrong port.
fn is_http(line: &[u8]) -> bool {
    line.first().is_some_and(u8::is_ascii_uppercase) && line.windows(6).any(|window| window == b" HTTP/")
}

fn write_line(out: &mut Vec<u8>, fields: &[&str], data: &[u8]) {
    out.push(b'{');
    out.extend_from_slice(fields.join(",").as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"}\n");
}

fn write_done(out: &mut Vec<u8>, fields: &str) {
    write_line(out, &[fields, "\"event\":\"done\""], b"");
}

/// One server-sent event as a line. Comments and the `[DONE]` mark have no meaning here.
fn write_event(out: &mut Vec<u8>, fields: &str, event: &[u8]) {
    let Some(data) = event.strip_prefix(b"data: ").map(<[u8]>::trim_ascii_end) else { return };
    if data == b"[DONE]" {
        return;
    }
    // Only an error object begins so; chunks begin with their id.
    let kind = if data.starts_with(b"{\"error\":") {
        "\"event\":\"error\",\"data\":"
    } else {
        "\"event\":\"chunk\",\"data\":"
    };
    write_line(out, &[fields, kind], data);
}
