//! The incremental request parser: bytes in, whole requests out, whatever the borders of the reads.

use super::chunked::ChunkDecoder;
use super::head::{self, Framing, Head, TOO_LARGE};
use super::{HttpFault, HttpLimits};

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Its checked head.
    pub head: Head,
    /// Its body with the framing removed.
    pub body: Vec<u8>,
}

/// What [`RequestParser::poll`] found.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate for every request")]
pub enum Progress {
    /// Nothing new without more bytes.
    More,
    /// A head is there ([`RequestParser::head`]); comes once per request, before its body is looked at, so that
    /// the caller can refuse it or send `100 Continue`.
    Head,
    /// The whole request.
    Request(HttpRequest),
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per connection")]
enum State {
    Head,
    /// `dropped` counts the bytes of a body that nobody will look at.
    Body {
        head: Head,
        body: Vec<u8>,
        decoder: Option<ChunkDecoder>,
        dropped: Option<usize>,
    },
    Failed(HttpFault),
}

/// Parser of the requests of one connection.
#[derive(Debug)]
pub struct RequestParser {
    limits: HttpLimits,
    raw: Vec<u8>,
    scanned: usize,
    state: State,
}

/// Largest first allocation for a body; a promised length alone reserves no more.
const FIRST_RESERVE: usize = 64 << 10;

impl RequestParser {
    /// A parser at the start of a connection.
    pub fn new(limits: HttpLimits) -> Self {
        Self { limits, raw: Vec::new(), scanned: 0, state: State::Head }
    }

    /// Takes bytes from the client; [`poll`](Self::poll) looks at them.
    pub fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Failed(_)) {
            self.raw.extend_from_slice(bytes);
        }
    }

    /// Bytes held: unparsed ones and the body so far.
    pub fn buffered(&self) -> usize {
        let body = if let State::Body { body, .. } = &self.state { body.len() } else { 0 };
        self.raw.len() + body
    }

    /// Bytes that no request has claimed yet.
    pub fn unparsed(&self) -> usize {
        self.raw.len()
    }

    /// The head of the request whose body is being read.
    pub fn head(&self) -> Option<&Head> {
        if let State::Body { head, .. } = &self.state { Some(head) } else { None }
    }

    /// Looks at the bytes pushed so far.
    ///
    /// # Errors
    /// The fault to answer; the parser stays failed, since the next request cannot be found.
    pub fn poll(&mut self) -> Result<Progress, HttpFault> {
        let result = match self.state {
            State::Head => self.poll_head(),
            State::Body { .. } => self.poll_body(),
            State::Failed(fault) => Err(fault),
        };
        if let Err(fault) = result {
            self.abandon(fault);
        }
        result
    }

    /// Drops what is held; every further poll fails.
    pub fn abandon(&mut self, fault: HttpFault) {
        self.state = State::Failed(fault);
        self.raw = Vec::new();
    }

    fn poll_head(&mut self) -> Result<Progress, HttpFault> {
        self.skip_empty_lines();
        // Other protocols (TLS, the JSON lines of the raw port) are told at once, not after a timeout.
        match self.raw.as_slice() {
            [] | [b'\r'] => return Ok(Progress::More),
            [first, ..] if first.is_ascii_alphabetic() => {}
            _ => return Err(HttpFault::new(400, "this port speaks HTTP/1.1")),
        }
        let Some(end) = head::find_end(&self.raw, &mut self.scanned, &self.limits)? else {
            return Ok(Progress::More);
        };
        let head = head::parse(&self.raw[..end], &self.limits)?;
        self.raw.drain(..end);
        self.scanned = 0;
        let (reserve, decoder) = match head.framing {
            Framing::Length(length) => (length.min(FIRST_RESERVE), None),
            Framing::Chunked => (0, Some(ChunkDecoder::default())),
        };
        self.state = State::Body { head, body: Vec::with_capacity(reserve), decoder, dropped: None };
        Ok(Progress::Head)
    }

    /// The body of the present request will not be looked at: its bytes are counted and dropped.
    pub fn skip_body(&mut self) {
        if let State::Body { dropped, .. } = &mut self.state {
            *dropped = Some(0);
        }
    }

    /// RFC 9112 section 2.2: empty lines before the request line are ignored.
    fn skip_empty_lines(&mut self) {
        let mut at = 0;
        loop {
            match &self.raw[at..] {
                [b'\n', ..] => at += 1,
                [b'\r', b'\n', ..] => at += 2,
                _ => break,
            }
        }
        if at > 0 {
            self.raw.drain(..at);
            self.scanned = 0;
        }
    }

    fn poll_body(&mut self) -> Result<Progress, HttpFault> {
        let State::Body { head, body, decoder, dropped } = &mut self.state else {
            return Ok(Progress::More);
        };
        if let Some(fault) = head.fault {
            return Err(fault);
        }
        let before = dropped.unwrap_or_default();
        let (taken, complete) = match (decoder, head.framing) {
            (Some(decoder), _) => {
                let taken = decoder.decode(&self.raw, body, self.limits.body)?;
                (taken, decoder.is_done())
            }
            (None, Framing::Length(length)) => {
                let taken = (length - before - body.len()).min(self.raw.len());
                body.extend_from_slice(&self.raw[..taken]);
                (taken, before + body.len() == length)
            }
            (None, Framing::Chunked) => (0, true),
        };
        if let Some(dropped) = dropped {
            *dropped += body.len();
            body.clear();
            // Single chunks are bounded by the decoder, which counts what it still has.
            if *dropped > self.limits.body {
                return Err(TOO_LARGE);
            }
        }
        self.raw.drain(..taken);
        if !complete {
            return Ok(Progress::More);
        }
        let State::Body { head, body, .. } = std::mem::replace(&mut self.state, State::Head) else {
            return Ok(Progress::More);
        };
        Ok(Progress::Request(HttpRequest { head, body }))
    }
}
