//! One HTTP connection without its socket: bytes in, bytes out, deadlines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access::Access;
use super::config::{NetConfig, Timeouts};
use super::http::HttpFault;
use super::http::head::{Head, Method};
use super::http::parse::{HttpRequest, Progress, RequestParser};
use super::http::write::{self, AnswerShape, Headers, Response};
use super::outbox::Outbox;
use super::routes;
use crate::metrics::Tally;

/// Unparsed bytes a client may send ahead of the answer it waits for.
const PIPELINE_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of the next request is there.
    Waiting,
    /// Part of a head is there.
    Head,
    /// The head is there, the body is not.
    Body,
    /// The application owes an answer.
    Busy,
    /// The answer is being streamed.
    Streaming,
    /// The last answer is in the outbox; input is discarded. `shut`: our end was closed.
    Closing { shut: bool },
}

/// What the owner of the socket must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Wait,
    /// Close our half, then call [`HttpConn::half_closed`]: the client gets time to read the last answer.
    ShutdownWrite,
    /// Close the socket.
    Close,
}

/// A request as the count knows it.
#[derive(Debug)]
struct Asked {
    method: Method,
    path: String,
    since: Instant,
    /// Of an answer that has begun.
    status: u16,
}

/// An answer that its client did not wait for counts as what it had begun as.
impl Drop for HttpConn {
    fn drop(&mut self) {
        if let Some(status) = self.asked.as_ref().map(|asked| asked.status).filter(|status| *status > 0) {
            self.count(self.since, status);
        }
    }
}

/// State machine of one HTTP connection.
#[derive(Debug)]
pub struct HttpConn {
    name: String,
    access: Arc<Access>,
    parser: RequestParser,
    out: Outbox,
    times: Timeouts,
    phase: Phase,
    /// When the phase began, or made progress where progress counts.
    since: Instant,
    shape: AnswerShape,
    /// The answer to a request whose body is still to be read.
    refused: Option<Response>,
    /// The request that is being read or answered, for the count.
    asked: Option<Asked>,
    tally: Tally,
    served: u64,
    last: bool,
    ended: bool,
}

impl HttpConn {
    /// A new connection. Requests without an id of their own are called after its `name`.
    pub fn new(config: &NetConfig, now: Instant, name: String) -> Self {
        Self {
            name,
            access: config.access.clone(),
            parser: RequestParser::new(config.limits),
            out: Outbox::new(config.outbox_bytes),
            times: config.timeouts,
            phase: Phase::Waiting,
            since: now,
            shape: bare_shape(),
            refused: None,
            asked: None,
            tally: Tally::default(),
            served: 0,
            last: false,
            ended: false,
        }
    }

    /// Takes bytes that arrived. While closing they are dropped.
    pub fn on_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if matches!(self.phase, Phase::Closing { .. }) {
            return;
        }
        self.parser.push(bytes);
        if self.phase == Phase::Body {
            self.since = now;
        }
    }

    /// The client closed its half. During an answer that is a disconnect: the request must be cancelled.
    pub fn on_end(&mut self) {
        self.ended = true;
    }

    /// True once the client has closed its half.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next whole request, once the former answer is out. `gate` sees each head first; its answer, if any,
    /// refuses the request without a look at the body.
    pub fn next_request(
        &mut self,
        now: Instant,
        mut gate: impl FnMut(&Head) -> Option<Response>,
    ) -> Option<HttpRequest> {
        while self.out.is_empty() && matches!(self.phase, Phase::Waiting | Phase::Head | Phase::Body) {
            match self.parser.poll() {
                Ok(Progress::More) => {
                    self.settle(now);
                    return None;
                }
                Ok(Progress::Head) => self.on_head(now, &mut gate),
                Ok(Progress::Request(request)) => {
                    self.phase = Phase::Busy;
                    match self.refused.take() {
                        Some(response) => self.respond(now, &response),
                        None => return Some(request),
                    }
                }
                Err(fault) => self.fail(now, fault),
            }
        }
        None
    }

    fn settle(&mut self, now: Instant) {
        let phase = match (self.parser.head(), self.parser.unparsed()) {
            (Some(_), _) => Phase::Body,
            (None, 0) => Phase::Waiting,
            (None, _) => Phase::Head,
        };
        if phase != self.phase {
            self.phase = phase;
            self.since = now;
        }
    }

    fn on_head(&mut self, now: Instant, gate: &mut impl FnMut(&Head) -> Option<Response>) {
        let Some(head) = self.parser.head() else { return };
        self.shape = AnswerShape {
            http11: head.http11,
            keep_alive: head.keep_alive && !self.last,
            head_only: head.method == Method::Head,
            request_id: head.request_id.clone().unwrap_or_else(|| format!("{}-{}", self.name, self.served)),
            cors: self.access.cors(head),
        };
        self.asked = Some(Asked { method: head.method, path: head.path.clone(), since: now, status: 0 });
        // A fault of the head comes out of the parser next.
        self.refused = if head.fault.is_none() { gate(head) } else { None };
        // A client that has begun its body does not wait for the interim answer.
        if head.expect_continue && head.has_body() && self.parser.unparsed() == 0 {
            match self.refused.take() {
                // Whether the body follows is now unknown, so this answer is the last.
                Some(response) => {
                    self.shape.keep_alive = false;
                    self.respond(now, &response);
                }
                None => self.out.append(now, |out| out.extend_from_slice(write::CONTINUE)),
            }
        }
        if self.refused.is_some() {
            self.parser.skip_body();
        }
        if self.phase != Phase::Body && !self.is_closing() {
            self.phase = Phase::Body;
            self.since = now;
        }
    }

    /// Answers a framing fault and closes.
    pub fn fail(&mut self, now: Instant, fault: HttpFault) {
        self.refuse(now, &Response::fault(fault));
    }

    /// Answers without a request, and closes.
    pub fn refuse(&mut self, now: Instant, response: &Response) {
        if !matches!(self.phase, Phase::Body | Phase::Busy) {
            self.shape = bare_shape();
        }
        self.shape.keep_alive = false;
        self.parser.abandon(HttpFault::new(response.status, "the connection is closing"));
        self.respond(now, response);
    }

    /// Name of the present request: the client's `x-request-id` or one made here.
    pub fn request_id(&self) -> &str {
        &self.shape.request_id
    }

    /// Writes a whole answer.
    pub fn respond(&mut self, now: Instant, response: &Response) {
        self.shape.keep_alive &= !self.last;
        let shape = &self.shape;
        self.out.append(now, |out| write::response(out, response, shape));
        self.count(now, response.status);
        self.answered(now);
    }

    /// Writes stream events; the first ones bring the head of the answer along.
    pub fn stream(&mut self, now: Instant, headers: &Headers, events: &[u8], end: bool) {
        let first = self.phase == Phase::Busy;
        if first {
            self.phase = Phase::Streaming;
            self.shape.keep_alive &= self.shape.http11 && !self.last;
            if let Some(asked) = &mut self.asked {
                asked.status = 200;
            }
        }
        self.since = now;
        let shape = &self.shape;
        self.out.append(now, |out| {
            if first {
                write::stream_head(out, headers, shape);
            }
            write::stream_events(out, events, shape.http11);
            if end {
                write::stream_end(out, shape.http11);
            }
        });
        if end {
            self.count(now, 200);
            self.answered(now);
        }
    }

    /// Counts answers there.
    pub(crate) fn count_in(&mut self, tally: &Tally) {
        self.tally = tally.clone();
    }

    /// A request was answered. One whose head could not be read is counted as well.
    fn count(&mut self, now: Instant, status: u16) {
        let asked = self.asked.take();
        let (spent, (method, path)) = match &asked {
            Some(asked) => (now.saturating_duration_since(asked.since), (asked.method, asked.path.as_str())),
            None => (Duration::ZERO, (Method::Other, "")),
        };
        let (handler, method) = routes::template(method, path);
        self.tally.add(handler, method, status, spent);
    }

    fn answered(&mut self, now: Instant) {
        self.served += 1;
        self.since = now;
        self.phase = if self.shape.keep_alive { Phase::Waiting } else { Phase::Closing { shut: false } };
    }

    /// No request after the present one; an idle connection that has served one closes now.
    pub fn finish_soon(&mut self) {
        self.last = true;
        if self.phase == Phase::Waiting && self.served > 0 && self.parser.unparsed() == 0 {
            self.phase = Phase::Closing { shut: false };
        }
    }

    /// What to do with the socket once output was written as far as it goes.
    pub fn next_step(&self) -> Next {
        match self.phase {
            _ if !self.out.is_empty() => Next::Wait,
            Phase::Closing { .. } if self.ended => Next::Close,
            Phase::Closing { shut: false } => Next::ShutdownWrite,
            Phase::Closing { shut: true } | Phase::Busy | Phase::Streaming => Next::Wait,
            Phase::Waiting | Phase::Head | Phase::Body if self.ended => Next::Close,
            Phase::Waiting | Phase::Head | Phase::Body => Next::Wait,
        }
    }

    /// Our half was closed; now the client has a short time to do the same.
    pub fn half_closed(&mut self, now: Instant) {
        self.phase = Phase::Closing { shut: true };
        self.since = now;
    }

    /// Whether input should be read. Not while a client has sent far ahead of its answer.
    pub fn wants_read(&self) -> bool {
        !self.ended
            && match self.phase {
                Phase::Head | Phase::Body | Phase::Closing { .. } => true,
                Phase::Waiting | Phase::Busy | Phase::Streaming => self.parser.unparsed() < PIPELINE_BYTES,
            }
    }

    /// True when bytes behind the last answer were not looked at yet, and now can be: [`next_request`](Self::next_request)
    /// would see them. It stops after an answer of its own.
    pub fn has_more(&self) -> bool {
        self.phase == Phase::Waiting && self.parser.unparsed() > 0 && self.out.is_empty()
    }

    /// True while part of a request is there.
    pub fn is_receiving(&self) -> bool {
        matches!(self.phase, Phase::Head | Phase::Body)
    }

    /// True while an answer is under way, so that an error can no longer have a status.
    pub fn is_streaming(&self) -> bool {
        self.phase == Phase::Streaming
    }

    /// True while an answer is owed or under way.
    pub fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Busy | Phase::Streaming)
    }

    /// True when no further request is taken.
    pub fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Request bytes held.
    pub fn held(&self) -> usize {
        self.parser.buffered()
    }

    /// The output.
    pub fn out(&mut self) -> &mut Outbox {
        &mut self.out
    }

    /// True when stream events should wait.
    pub fn is_full(&self) -> bool {
        self.out.is_full()
    }

    /// The output was written out; the time for the next request starts here.
    pub fn on_flushed(&mut self, now: Instant) {
        if self.phase == Phase::Waiting {
            self.since = now;
        }
    }

    /// When [`on_deadline`](Self::on_deadline) must be called.
    pub fn deadline(&self) -> Option<Instant> {
        let times = &self.times;
        let phase = match self.phase {
            Phase::Waiting if !self.out.is_empty() => None,
            Phase::Waiting if self.served == 0 => Some(times.header),
            Phase::Waiting => Some(times.keep_alive),
            Phase::Head => Some(times.header),
            Phase::Body => Some(times.body_idle),
            Phase::Streaming if self.out.is_empty() => Some(times.ping),
            Phase::Busy | Phase::Streaming | Phase::Closing { shut: false } => None,
            Phase::Closing { shut: true } => Some(times.linger),
        };
        let phase = phase.map(|limit| self.since + limit);
        let write = self.out.deadline(times.write, self.is_busy());
        [phase, write].into_iter().flatten().min()
    }

    /// Acts on a deadline that passed. Returns true when the socket must be closed at once, with its request.
    pub fn on_deadline(&mut self, now: Instant) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        if self.out.deadline(self.times.write, self.is_busy()).is_some_and(|at| at <= now) {
            return true;
        }
        match self.phase {
            Phase::Head | Phase::Body => {
                self.fail(now, HttpFault::new(408, "the request did not arrive in time"));
                false
            }
            Phase::Streaming => {
                self.stream(now, &Headers::new(), b": ping\n\n", false);
                false
            }
            Phase::Waiting | Phase::Busy | Phase::Closing { .. } => true,
        }
    }
}

/// The shape of an answer to bytes that are no request.
fn bare_shape() -> AnswerShape {
    AnswerShape {
        http11: true,
        keep_alive: false,
        head_only: false,
        request_id: String::new(),
        cors: Vec::new(),
    }
}
