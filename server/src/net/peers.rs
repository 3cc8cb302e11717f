//! The open connections: sockets, their state machines, and the timers.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;

use super::conn::{HttpConn, Next};
use super::dispatch::Outlets;
use super::exchange::plain_on_tls;
use super::frontend::Refusal;
use super::http::write::{Headers, Response};
use super::line::LineConn;
use super::outbox::Outbox;
use super::transport::{Got, Transport};

/// What a connection speaks.
pub(crate) enum Protocol {
    /// HTTP/1.1, with the request in progress.
    Http { conn: Box<HttpConn>, exchange: Option<u64> },
    /// JSON lines.
    Line(Box<LineConn>),
}

/// One open connection.
pub(crate) struct Peer {
    pub(crate) transport: Transport,
    /// The other end.
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Events are edges: the socket may hold input, or take output, until it says otherwise.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer has closed its half, seen by an event while nothing is read.
    pub(crate) hung_up: bool,
    queued: bool,
    armed: Option<Instant>,
    /// Bytes of this connection in the sum of all.
    counted: usize,
}

/// What a read led to.
pub(crate) enum ReadOutcome {
    /// Bytes were read, perhaps none.
    Open,
    /// The connection is broken.
    Broken,
}

impl Peer {
    /// A fresh connection.
    pub(crate) fn new(transport: Transport, address: SocketAddr, protocol: Protocol) -> Self {
        Self {
            transport,
            address,
            protocol,
            readable: true,
            writable: true,
            hung_up: false,
            queued: false,
            armed: None,
            counted: 0,
        }
    }

    fn wants_read(&self) -> bool {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.wants_read(),
            Protocol::Line(conn) => conn.wants_read(),
        }
    }

    /// True when the next turn should go on reading.
    pub(crate) fn can_read(&self) -> bool {
        self.readable && self.wants_read()
    }

    /// True when the next turn should look at what was read.
    pub(crate) fn has_more(&self) -> bool {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.has_more(),
            Protocol::Line(_) => false,
        }
    }

    /// True when output waits that the socket may take.
    pub(crate) fn can_write(&mut self) -> bool {
        self.writable && (!self.out().is_empty() || self.transport.wants_flush())
    }

    fn out(&mut self) -> &mut Outbox {
        match &mut self.protocol {
            Protocol::Http { conn, .. } => conn.out(),
            Protocol::Line(conn) => conn.out(),
        }
    }

    /// Reads what has arrived, at most one buffer full, so that a fast sender takes turns with the others.
    pub(crate) fn read(&mut self, now: Instant, buffer: &mut [u8]) -> ReadOutcome {
        // A handshake that goes on may open the way for output that no event will announce.
        self.writable |= self.transport.is_tls();
        while self.can_read() {
            match self.transport.read(buffer) {
                Ok(Got::End) => {
                    self.readable = false;
                    self.on_end();
                }
                Ok(Got::Plain) => self.refuse(now, &plain_on_tls()),
                Ok(Got::Bytes(count)) => {
                    match &mut self.protocol {
                        Protocol::Http { conn, .. } => conn.on_bytes(now, &buffer[..count]),
                        Protocol::Line(conn) => conn.on_bytes(now, &buffer[..count]),
                    }
                    // A short read has emptied the socket, but the end may follow; the next turn sees it.
                    break;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return ReadOutcome::Broken,
            }
        }
        ReadOutcome::Open
    }

    fn on_end(&mut self) {
        match &mut self.protocol {
            Protocol::Http { conn, .. } => conn.on_end(),
            Protocol::Line(conn) => conn.on_end(),
        }
    }

    /// Writes what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(crate) fn write(&mut self, now: Instant) -> io::Result<()> {
        let (transport, writable) = (&mut self.transport, &mut self.writable);
        let out = match &mut self.protocol {
            Protocol::Http { conn, .. } => conn.out(),
            Protocol::Line(conn) => conn.out(),
        };
        if *writable {
            go_on(transport.flush(), writable)?;
        }
        if out.is_empty() {
            return Ok(());
        }
        write_all(transport, out, writable, now)?;
        if let Protocol::Http { conn, .. } = &mut self.protocol {
            conn.on_flushed(now);
        }
        Ok(())
    }

    /// Whether stream events should wait.
    pub(crate) fn is_full(&self) -> bool {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.is_full(),
            Protocol::Line(conn) => conn.is_full(),
        }
    }

    /// The requests in progress.
    pub(crate) fn exchanges(&self) -> Vec<u64> {
        match &self.protocol {
            Protocol::Http { exchange, .. } => exchange.iter().copied().collect(),
            Protocol::Line(conn) => conn.running().collect(),
        }
    }

    /// The HTTP client has left during an answer: its end was read, or was seen behind bytes that are not read
    /// because they are too far ahead.
    pub(crate) fn is_abandoned(&self) -> bool {
        match &self.protocol {
            Protocol::Http { conn, .. } => {
                conn.is_busy() && (conn.has_ended() || self.hung_up && !conn.wants_read())
            }
            Protocol::Line(_) => false,
        }
    }

    /// Shuts or closes the socket when its time has come. False: remove the connection.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        let next = match &self.protocol {
            Protocol::Http { conn, .. } => conn.next_step(),
            Protocol::Line(conn) => conn.next_step(),
        };
        match next {
            Next::Wait => true,
            Next::Close => false,
            Next::ShutdownWrite => {
                match &mut self.protocol {
                    Protocol::Http { conn, .. } => conn.half_closed(now),
                    Protocol::Line(conn) => conn.half_closed(now),
                }
                // What the client still sends is read and dropped; unread bytes would turn the close into a
                // reset, which can destroy the answer on its way.
                self.transport.shutdown().is_ok()
            }
        }
    }

    /// No request after the present ones.
    pub(crate) fn finish_soon(&mut self) {
        match &mut self.protocol {
            Protocol::Http { conn, .. } => conn.finish_soon(),
            Protocol::Line(conn) => conn.finish_soon(),
        }
    }

    /// True while part of a request is there.
    pub(crate) fn is_receiving(&self) -> bool {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.is_receiving(),
            Protocol::Line(conn) => !conn.is_closing() && conn.held() > 0,
        }
    }

    /// True when output is still on its way.
    pub(crate) fn has_output(&mut self) -> bool {
        let closing = match &self.protocol {
            Protocol::Http { conn, .. } => conn.is_closing(),
            Protocol::Line(conn) => conn.is_closing(),
        };
        closing || !self.out().is_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.deadline(),
            Protocol::Line(conn) => conn.deadline(),
        }
    }

    /// Request bytes held.
    pub(crate) fn held(&self) -> usize {
        match &self.protocol {
            Protocol::Http { conn, .. } => conn.held(),
            Protocol::Line(conn) => conn.held(),
        }
    }

    /// Refuses whatever the client sends next.
    pub(crate) fn refuse(&mut self, now: Instant, refusal: &Refusal) {
        match &mut self.protocol {
            Protocol::Http { conn, .. } => conn.refuse(now, &refusal.response()),
            Protocol::Line(conn) => conn.refuse(now, refusal),
        }
    }
}

fn write_all(
    transport: &mut Transport,
    out: &mut Outbox,
    writable: &mut bool,
    now: Instant,
) -> io::Result<()> {
    while *writable && !out.is_empty() {
        if let Some(count) = go_on(transport.write(out.pending()), writable)? {
            if count == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            out.advance(now, count);
        }
    }
    Ok(())
}

/// The result of a write, or `None` to try again later.
fn go_on<T>(result: io::Result<T>, writable: &mut bool) -> io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            *writable = false;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// All connections, by a number that is never used again, so that a late event cannot hit another one.
#[derive(Default)]
pub(crate) struct Peers {
    map: HashMap<u64, Peer>,
    queue: Vec<u64>,
    timers: BTreeSet<(Instant, u64)>,
    held: usize,
}

impl Peers {
    /// Adds a connection and gives it a first turn.
    pub(crate) fn insert(&mut self, id: u64, peer: Peer) {
        self.map.insert(id, peer);
        self.queue(id);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// One of them.
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Peer> {
        self.map.get_mut(&id)
    }

    /// What one of them speaks.
    pub(crate) fn protocol(&mut self, id: u64) -> Option<&mut Protocol> {
        self.map.get_mut(&id).map(|peer| &mut peer.protocol)
    }

    /// All of them.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.map.keys().copied().collect()
    }

    /// True when some output is still on its way.
    pub(crate) fn any_output(&mut self) -> bool {
        self.map.values_mut().any(Peer::has_output)
    }

    /// Takes a connection out.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Peer> {
        let peer = self.map.remove(&id)?;
        if let Some(at) = peer.armed {
            self.timers.remove(&(at, id));
        }
        self.held -= peer.counted;
        Some(peer)
    }

    /// Gives a connection a turn.
    pub(crate) fn queue(&mut self, id: u64) {
        if let Some(peer) = self.map.get_mut(&id).filter(|peer| !peer.queued) {
            peer.queued = true;
            self.queue.push(id);
        }
    }

    /// The connections whose turn it is.
    pub(crate) fn take_queue(&mut self) -> Vec<u64> {
        let queue = std::mem::take(&mut self.queue);
        for id in &queue {
            if let Some(peer) = self.map.get_mut(id) {
                peer.queued = false;
            }
        }
        queue
    }

    /// True when some connection waits for a turn.
    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Brings timer and byte count of a connection up to date. A timer that is too early is left: it finds
    /// nothing due and is set again.
    pub(crate) fn rearm(&mut self, id: u64) {
        let Some(peer) = self.map.get_mut(&id) else { return };
        let held = peer.held();
        self.held = self.held - peer.counted + held;
        peer.counted = held;
        let Some(deadline) = peer.deadline() else { return };
        if peer.armed.is_none_or(|armed| deadline < armed) {
            if let Some(armed) = peer.armed.replace(deadline) {
                self.timers.remove(&(armed, id));
            }
            self.timers.insert((deadline, id));
        }
    }

    /// The next timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Runs due timers. Returns the connections to close.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<u64> {
        let mut close = Vec::new();
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            let Some(peer) = self.map.get_mut(&id) else { continue };
            peer.armed = None;
            let dead = match &mut peer.protocol {
                Protocol::Http { conn, .. } => conn.on_deadline(now),
                Protocol::Line(conn) => conn.on_deadline(now),
            };
            if dead {
                close.push(id);
            } else {
                // Its turn sets the next timer.
                self.queue(id);
            }
        }
        close
    }

    /// Request bytes held by all connections.
    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

impl Outlets for Peers {
    fn is_full(&self, conn: u64) -> bool {
        self.map.get(&conn).is_some_and(Peer::is_full)
    }

    fn wants_headers(&self, conn: u64) -> bool {
        match self.map.get(&conn).map(|peer| &peer.protocol) {
            Some(Protocol::Http { conn, .. }) => !conn.is_streaming(),
            _ => false,
        }
    }

    fn respond(&mut self, conn: u64, exchange: u64, response: &Response) {
        if let Some(Protocol::Http { conn: http, exchange: running }) = self.protocol(conn)
            && *running == Some(exchange)
        {
            *running = None;
            http.respond(Instant::now(), response);
            self.queue(conn);
        }
    }

    fn refuse(&mut self, conn: u64, exchange: u64, refusal: &Refusal) {
        let now = Instant::now();
        match self.protocol(conn) {
            Some(Protocol::Http { conn: http, .. }) if http.is_streaming() => {
                self.stream(conn, exchange, &Headers::new(), &refusal.events(), true);
            }
            Some(Protocol::Http { .. }) => self.respond(conn, exchange, &refusal.response()),
            Some(Protocol::Line(line)) => {
                line.fail(now, exchange, refusal);
                self.queue(conn);
            }
            None => {}
        }
    }

    fn stream(&mut self, conn: u64, exchange: u64, headers: &Headers, events: &[u8], end: bool) {
        let now = Instant::now();
        match self.protocol(conn) {
            Some(Protocol::Http { conn: http, exchange: running }) if *running == Some(exchange) => {
                if end {
                    *running = None;
                }
                http.stream(now, headers, events, end);
            }
            Some(Protocol::Line(line)) => line.stream(now, exchange, events, end),
            _ => return,
        }
        self.queue(conn);
    }

    fn set_line_id(&mut self, conn: u64, exchange: u64, id: Value) -> bool {
        match self.protocol(conn) {
            Some(Protocol::Line(conn)) => conn.set_id(exchange, id),
            _ => true,
        }
    }
}
