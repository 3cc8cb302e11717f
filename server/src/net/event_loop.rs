//! The network thread: accept, read, dispatch, write, and the shutdown.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Token};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_mio::v1_0::Signals;
use tokenrouter_engine::EngineInfo;

use super::config::NetConfig;
use super::conn::HttpConn;
use super::dispatch::Dispatcher;
use super::exchange::{self, shutting_down};
use super::frontend::Refusal;
use super::info::Info;
use super::line::LineConn;
use super::peers::{Peer, Peers, Protocol, ReadOutcome};
use super::server::{App, ExitReport, FIRST_CONN, HTTP, Order, SIGNALS, Server, TCP, wake};
use super::tokenize::Workers;
use super::transport::{Acceptor, Transport};

/// Read buffer, and so the most that one connection reads in one turn.
const READ_BYTES: usize = 64 << 10;
/// Requests of one connection that are taken up in one turn.
const REQUESTS_PER_TURN: usize = 16;
/// Reports of the engine taken in one turn.
const REPORTS_PER_TURN: usize = 64;
/// Connections accepted in one turn.
const ACCEPTS_PER_TURN: usize = 128;
/// Connections above the limit that are told so; more are closed without a word.
const REFUSED_CONNECTIONS: usize = 64;
/// Pause of the accept loop after it failed, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How soon commands that found the engine's queue full are tried again.
const COMMAND_RETRY: Duration = Duration::from_millis(2);
/// Bytes that a connection may hold even when all of them together hold too much.
const SMALL_REQUEST: usize = 64 << 10;

/// Where the server is in its life.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Waiting for what is to be served.
    Loading,
    Serving,
    /// Finishing what runs, until `cut` at the latest.
    Draining {
        since: Instant,
        cut: Instant,
    },
    /// Writing the last bytes.
    Closing {
        until: Instant,
    },
}

/// Everything the network thread owns.
pub(crate) struct EventLoop {
    server: Server,
    signals: Option<Signals>,
    pub(crate) peers: Peers,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) info: Info,
    /// Start of the process in Unix seconds.
    created: u64,
    nonce: u64,
    next_conn: u64,
    /// Which listeners may have connections waiting.
    accept: [bool; 2],
    accept_paused: Option<Instant>,
    /// Accepting has failed and has not worked since; said once.
    accept_failing: bool,
    more_reports: bool,
    stage: Stage,
    clean: bool,
    buffer: Vec<u8>,
}

impl EventLoop {
    /// A loop that has nothing to serve.
    pub(crate) fn new(server: Server) -> io::Result<Self> {
        let config = &server.config;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let info =
            Info::new(Vec::new(), b"{}".to_vec(), &EngineInfo::default(), created, config.timeouts.stall);
        Ok(Self {
            signals: None,
            peers: Peers::default(),
            dispatcher: Dispatcher::loading(config),
            info,
            created,
            // A fresh random state per process; its hash is as good as a random number.
            nonce: RandomState::new().hash_one(created),
            next_conn: FIRST_CONN,
            accept: [true; 2],
            accept_paused: None,
            accept_failing: false,
            more_reports: true,
            stage: Stage::Loading,
            clean: true,
            buffer: vec![0; READ_BYTES],
            server,
        })
    }

    /// Starts the tokenizer threads, registers the signals, and serves from now on.
    pub(crate) fn begin(&mut self, app: App) -> io::Result<()> {
        let config = &self.server.config;
        let waker = self.server.waker.clone();
        let wake_up: Arc<dyn Fn() + Send + Sync> = Arc::new(move || wake(&waker));
        let workers =
            Workers::start(config.tokenizer_threads, config.tokenizer_queue, &app.frontend, &wake_up)?;
        self.info = Info::new(app.routes, app.props, &app.engine.info, self.created, config.timeouts.stall);
        self.dispatcher = Dispatcher::new(app.engine, workers, self.nonce, config);
        if config.handle_signals {
            let mut signals = Signals::new([SIGTERM, SIGINT])?;
            // Without a certificate to read again, SIGHUP keeps its meaning: the terminal is gone.
            if config.tls.is_some() {
                signals.add_signal(SIGHUP)?;
            }
            self.server.poll.registry().register(&mut signals, SIGNALS, Interest::READABLE)?;
            self.signals = Some(signals);
        }
        self.stage = Stage::Serving;
        Ok(())
    }

    /// Serves to the end.
    pub(crate) fn run(mut self) -> io::Result<ExitReport> {
        let mut events = Events::with_capacity(1024);
        while !self.pump(&mut events)? {}
        self.dispatcher.shut_down();
        let [finished, cancelled, failed] = self.dispatcher.totals();
        Ok(ExitReport { clean: self.clean, finished, cancelled, failed })
    }

    /// Refuses requests until there is something to serve.
    pub(crate) fn answer_loading(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.server.loaded.load(Ordering::Acquire) {
            if self.pump(&mut events)? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for events and does what they ask for. True at the end of the run.
    fn pump(&mut self, events: &mut Events) -> io::Result<bool> {
        match self.server.poll.poll(events, self.patience()) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let now = Instant::now();
        for event in &*events {
            self.on_event(event);
        }
        events.clear();
        Ok(self.turn(now))
    }

    /// One turn over everything that is due. True at the end of the run.
    fn turn(&mut self, now: Instant) -> bool {
        self.accept_all(now);
        self.dispatcher.take_prepared(&mut self.peers);
        self.more_reports = self.dispatcher.take_reports(REPORTS_PER_TURN, &mut self.peers);
        self.dispatcher.flush_commands();
        self.dispatcher.expire(now, &mut self.peers);
        for id in self.peers.expire(now) {
            self.close(id);
        }
        for id in self.peers.take_queue() {
            self.serve(id, now);
        }
        self.shutdown_step(now)
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if self.more_reports || self.peers.has_queue() || self.accepts_now() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let stage = match self.stage {
            Stage::Loading | Stage::Serving => None,
            Stage::Draining { since, cut } => {
                let delayed = since + self.server.config.timeouts.drain_delay;
                Some(if delayed > now { delayed.min(cut) } else { cut })
            }
            Stage::Closing { until } => Some(until),
        };
        let retry = self.dispatcher.wants_retry().then(|| now + COMMAND_RETRY);
        let timers =
            [self.peers.next_timer(), self.dispatcher.next_timer(), self.accept_paused, stage, retry];
        let next = timers.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(now))
    }

    fn on_event(&mut self, event: &Event) {
        match event.token() {
            HTTP => self.accept[0] = true,
            TCP => self.accept[1] = true,
            SIGNALS => self.on_signals(),
            token if token.0 as u64 >= FIRST_CONN => self.on_socket(token.0 as u64, event),
            // The waker only ends the wait; every turn looks at all queues.
            _ => {}
        }
    }

    fn on_socket(&mut self, id: u64, event: &Event) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.readable |= event.is_readable() || event.is_read_closed();
        peer.writable |= event.is_writable();
        peer.hung_up |= event.is_read_closed();
        let broken = event.is_error() && !matches!(peer.transport.socket().take_error(), Ok(None));
        if broken {
            self.close(id);
        } else {
            self.peers.queue(id);
        }
    }

    fn on_signals(&mut self) {
        let pending: Vec<i32> =
            self.signals.as_mut().map_or(Vec::new(), |signals| signals.pending().collect());
        for signal in pending {
            if signal == SIGHUP {
                self.reload();
                continue;
            }
            let control = self.server.control();
            match Order::load(&self.server.order) {
                Order::Serve => control.drain(),
                _ => control.exit(),
            }
        }
    }

    /// Reads the certificate again; connections that are open keep theirs.
    fn reload(&mut self) {
        let Some(files) = &self.server.config.tls else { return };
        match Acceptor::load(files) {
            Ok(acceptor) => {
                self.server.acceptor = Some(acceptor);
                tracing::info!("the TLS certificate was read again");
            }
            Err(error) => tracing::warn!("the TLS certificate stays as it was: {error}"),
        }
    }

    fn accepts_now(&self) -> bool {
        self.accept_paused.is_none() && self.accept.contains(&true)
    }

    fn accept_all(&mut self, now: Instant) {
        if self.accept_paused.is_some_and(|until| until > now) {
            return;
        }
        self.accept_paused = None;
        for index in 0..self.accept.len() {
            for _ in 0..ACCEPTS_PER_TURN {
                if !self.accept[index] || self.accept_paused.is_some() {
                    break;
                }
                self.accept_one(index, now);
            }
        }
    }

    fn accept_one(&mut self, index: usize, now: Instant) {
        let listener = if index == 0 { &self.server.http } else { &self.server.tcp };
        let Some(accepted) = listener.as_ref().map(TcpListener::accept) else {
            self.accept[index] = false;
            return;
        };
        match accepted {
            Ok((stream, address)) => {
                self.accept_failing = false;
                if let Err(error) = self.add(stream, address, index, now) {
                    tracing::debug!("a new connection was lost: {error}");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.accept[index] = false,
            Err(error) if is_the_clients_fault(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.accept_failing, true) {
                    tracing::warn!("accepting connections pauses until it works again: {error}");
                }
                self.accept_paused = Some(now + ACCEPT_PAUSE);
                // Left marked, so that the next try comes without a new event.
                self.accept[index] = true;
            }
        }
    }

    fn add(
        &mut self,
        mut stream: TcpStream,
        address: SocketAddr,
        index: usize,
        now: Instant,
    ) -> io::Result<()> {
        let config = &self.server.config;
        if self.peers.len() >= config.max_connections + REFUSED_CONNECTIONS {
            return Ok(());
        }
        stream.set_nodelay(true)?;
        let id = self.next_conn;
        self.next_conn += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.server.poll.registry().register(&mut stream, Token(id as usize), interest)?;
        let protocol = if index == 0 {
            let name = format!("req-{:08x}-{id}", self.nonce as u32);
            let mut conn = HttpConn::new(config, now, name);
            conn.count_in(&self.dispatcher.traffic().http);
            Protocol::Http { conn: Box::new(conn), exchange: None }
        } else {
            Protocol::Line(Box::new(LineConn::new(config, now)))
        };
        let session = self.server.acceptor.as_ref().map(Acceptor::session).transpose()?;
        let mut peer = Peer::new(Transport::new(stream, session), address, protocol);
        if self.peers.len() >= config.max_connections {
            peer.refuse(now, &exchange::too_many_connections());
        }
        if self.is_draining() {
            peer.finish_soon();
        }
        self.peers.insert(id, peer);
        Ok(())
    }

    /// One turn of a connection: read, take up requests, write.
    fn serve(&mut self, id: u64, now: Instant) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let mut alive = matches!(peer.read(now, &mut self.buffer), ReadOutcome::Open);
        let mut more = true;
        for _ in 0..REQUESTS_PER_TURN {
            // A request is taken up only when the former answer is out.
            alive = alive && self.write(id, now);
            more = alive && self.take_request(id, now);
            if !more {
                break;
            }
        }
        alive = alive && self.write(id, now);
        if alive && self.settle(id, now) {
            self.peers.rearm(id);
            self.check_memory(id, now);
            if more || self.peers.get_mut(id).is_some_and(|peer| peer.can_read() || peer.has_more()) {
                self.peers.queue(id);
            }
        } else {
            self.close(id);
        }
    }

    /// Writes, and lets stream events that waited follow as long as the client takes them.
    fn write(&mut self, id: u64, now: Instant) -> bool {
        loop {
            let Some(peer) = self.peers.get_mut(id) else { return false };
            if peer.write(now).is_err() {
                return false;
            }
            if peer.is_full() {
                return true;
            }
            let exchanges = peer.exchanges();
            // Each round either empties the waiting events or fills the outbox; they are finitely many.
            let mut waiting = false;
            for exchange in exchanges {
                waiting |= self.dispatcher.resume(exchange, &mut self.peers);
            }
            let unwritten = self.peers.get_mut(id).is_some_and(|peer| peer.can_write());
            if !waiting && !unwritten {
                return true;
            }
        }
    }

    fn settle(&mut self, id: u64, now: Instant) -> bool {
        self.peers.get_mut(id).is_some_and(|peer| !peer.is_abandoned() && peer.settle(now))
    }

    /// Refuses a connection that makes all of them together hold too much. Small requests always pass, and an
    /// answer under way is not cut: what its client sends ahead has a bound of its own.
    fn check_memory(&mut self, id: u64, now: Instant) {
        let held = self.peers.held() + self.dispatcher.job_bytes();
        if held <= self.server.config.max_held_bytes {
            return;
        }
        let large = |peer: &&mut Peer| peer.is_receiving() && peer.held() > SMALL_REQUEST;
        if let Some(peer) = self.peers.get_mut(id).filter(large) {
            peer.refuse(now, &exchange::overloaded());
            self.peers.rearm(id);
            self.peers.queue(id);
        }
    }

    fn close(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        for exchange in peer.exchanges() {
            self.dispatcher.cancel(exchange);
        }
        // Dropping the socket closes it; an error here leaves nothing behind.
        if let Err(error) = self.server.poll.registry().deregister(peer.transport.socket()) {
            tracing::debug!("closing a connection: {error}");
        }
    }

    /// Follows the owner's orders. True when the run is over.
    fn shutdown_step(&mut self, now: Instant) -> bool {
        let order = Order::load(&self.server.order);
        if order == Order::Exit {
            self.clean &= self.dispatcher.is_idle();
            return true;
        }
        let times = self.server.config.timeouts;
        match self.stage {
            Stage::Serving if order == Order::Drain => {
                tracing::info!("draining: no new requests");
                self.stage = Stage::Draining { since: now, cut: now + times.shutdown };
                self.dispatcher.drain();
                self.finish_all();
                // With nothing to finish there will be no event to wake this thread for the next stage.
                self.shutdown_step(now)
            }
            Stage::Loading | Stage::Serving => false,
            Stage::Draining { since, cut } => {
                let idle = self.dispatcher.is_idle() && now >= since + times.drain_delay;
                if !idle && now < cut {
                    return false;
                }
                self.stop_serving(now, &shutting_down());
                self.shutdown_step(now)
            }
            Stage::Closing { until } => now >= until || !self.peers.any_output(),
        }
    }

    fn stop_serving(&mut self, now: Instant, refusal: &Refusal) {
        self.clean &= self.dispatcher.is_idle();
        self.dispatcher.fail_all(refusal, &mut self.peers);
        for listener in [self.server.http.take(), self.server.tcp.take()].iter_mut().flatten() {
            if let Err(error) = self.server.poll.registry().deregister(listener) {
                tracing::debug!("closing a listener: {error}");
            }
        }
        for id in self.peers.ids() {
            if let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.is_receiving()) {
                peer.refuse(now, refusal);
            }
        }
        self.finish_all();
        self.stage = Stage::Closing { until: now + self.server.config.timeouts.linger };
    }

    fn finish_all(&mut self) {
        for id in self.peers.ids() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.finish_soon();
            }
            self.peers.queue(id);
        }
    }

    /// Whether new requests are refused.
    pub(crate) fn is_draining(&self) -> bool {
        !matches!(self.stage, Stage::Loading | Stage::Serving)
    }

    /// Whether there is nothing to serve yet.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.stage, Stage::Loading)
    }

    /// What the server was told.
    pub(crate) fn config(&self) -> &NetConfig {
        &self.server.config
    }
}

/// Errors of `accept` that concern one connection, which is gone; the next one may be fine.
fn is_the_clients_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
            | ErrorKind::TimedOut
    )
}
