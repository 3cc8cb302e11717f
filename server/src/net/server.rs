//! The network server as its owner sees it: bind, hand out wakers and controls, run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;

use mio::net::TcpListener;
use mio::{Interest, Poll, Token, Waker};
use tokenrouter_engine::handle::EngineHandle;

use super::config::NetConfig;
use super::event_loop::EventLoop;
use super::frontend::Frontend;
use super::transport::Acceptor;
use crate::api::ServedRoute;

pub(crate) const HTTP: Token = Token(0);
pub(crate) const TCP: Token = Token(1);
pub(crate) const WAKE: Token = Token(2);
pub(crate) const SIGNALS: Token = Token(3);
/// Connection numbers start here.
pub(crate) const FIRST_CONN: u64 = 16;

/// What the server serves.
pub struct App {
    /// The engine; its `wake` must be [`Server::waker`].
    pub engine: EngineHandle,
    /// Requests to tokens and back.
    pub frontend: Arc<dyn Frontend>,
    /// What `/v1/models` lists.
    pub routes: Vec<ServedRoute>,
    /// The JSON served at `/props` and `/server_info`.
    pub props: Vec<u8>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// Every accepted request was answered to its end.
    pub clean: bool,
    /// Requests answered to their end.
    pub finished: u64,
    /// Requests whose client left.
    pub cancelled: u64,
    /// Requests that ended with an error after they were taken.
    pub failed: u64,
}

/// A server with bound ports that does not serve yet.
pub struct Server {
    pub(crate) config: NetConfig,
    pub(crate) poll: Poll,
    pub(crate) waker: Arc<Waker>,
    pub(crate) http: Option<TcpListener>,
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) acceptor: Option<Acceptor>,
    pub(crate) order: Arc<AtomicU8>,
    /// What is to be served is there.
    pub(crate) loaded: Arc<AtomicBool>,
    http_addr: Option<SocketAddr>,
    tcp_addr: Option<SocketAddr>,
}

impl Server {
    /// Binds the configured ports (with `SO_REUSEADDR`). Clients can connect from now on; they are answered
    /// once [`run`](Self::run) or [`answer_loading`](Self::answer_loading) is called.
    ///
    /// # Errors
    /// When an address is taken or not ours, or the TLS files cannot be used; the text names them.
    pub fn bind(config: NetConfig) -> io::Result<Server> {
        let acceptor = config.tls.as_ref().map(Acceptor::load).transpose()?;
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut http = listen(config.http, "HTTP")?;
        let mut tcp = listen(config.tcp, "TCP")?;
        for (listener, token) in [(&mut http, HTTP), (&mut tcp, TCP)] {
            if let Some(listener) = listener {
                poll.registry().register(listener, token, Interest::READABLE)?;
            }
        }
        let address =
            |listener: &Option<TcpListener>| listener.as_ref().map(TcpListener::local_addr).transpose();
        let (http_addr, tcp_addr) = (address(&http)?, address(&tcp)?);
        let order = Arc::new(AtomicU8::new(Order::Serve as u8));
        let loaded = Arc::default();
        Ok(Server { config, poll, waker, http, tcp, acceptor, order, loaded, http_addr, tcp_addr })
    }

    /// Address of the HTTP port, with the port number that was taken.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// Address of the raw TCP port, with the port number that was taken.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp_addr
    }

    /// What the engine calls after it has queued a report.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let waker = self.waker.clone();
        move || wake(&waker)
    }

    /// A handle that ends the run from another thread.
    pub fn control(&self) -> ServerControl {
        ServerControl { order: self.order.clone(), waker: self.waker.clone() }
    }

    /// Serves on the calling thread until a signal or a [`ServerControl`] ends it.
    ///
    /// # Errors
    /// When a thread cannot be started, or the system's event queue fails.
    pub fn run(self, app: App) -> io::Result<ExitReport> {
        let mut event_loop = EventLoop::new(self)?;
        event_loop.begin(app)?;
        event_loop.run()
    }

    /// Tells clients on a thread of its own that the server is loading: 503 with the code `loading`, so that nobody
    /// takes a starting server for a dead one. Signals do what they do without a server: they end the process.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn answer_loading(self) -> io::Result<Loading> {
        let (http_addr, tcp_addr, control, loaded) =
            (self.http_addr, self.tcp_addr, self.control(), self.loaded.clone());
        let mut event_loop = Box::new(EventLoop::new(self)?);
        let thread = std::thread::Builder::new().name("loading".into()).spawn(move || {
            event_loop.answer_loading()?;
            Ok(event_loop)
        })?;
        Ok(Loading { thread: Some(thread), loaded, control, http_addr, tcp_addr })
    }
}

/// A server that says that it is loading. Dropping it closes its ports.
pub struct Loading {
    thread: Option<JoinHandle<io::Result<Box<EventLoop>>>>,
    loaded: Arc<AtomicBool>,
    control: ServerControl,
    http_addr: Option<SocketAddr>,
    tcp_addr: Option<SocketAddr>,
}

impl Loading {
    /// As [`Server::http_addr`].
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// As [`Server::tcp_addr`].
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp_addr
    }

    /// Takes over the same ports and connections. From now on nobody is told any more that the server is loading:
    /// requests wait until [`Loaded::run`] answers them.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn finish(mut self, app: App) -> io::Result<Loaded> {
        let mut event_loop = self.stop().ok_or_else(|| io::Error::other("the network thread is gone"))??;
        event_loop.begin(app)?;
        let (http_addr, tcp_addr, control) = (self.http_addr, self.tcp_addr, self.control.clone());
        Ok(Loaded { event_loop, control, http_addr, tcp_addr })
    }

    /// Ends the thread and takes back what it had.
    fn stop(&mut self) -> Option<io::Result<Box<EventLoop>>> {
        self.loaded.store(true, Ordering::Release);
        wake(&self.control.waker);
        self.thread.take()?.join().ok()
    }
}

/// A server that has everything and does not serve yet.
pub struct Loaded {
    event_loop: Box<EventLoop>,
    control: ServerControl,
    http_addr: Option<SocketAddr>,
    tcp_addr: Option<SocketAddr>,
}

impl Loaded {
    /// As [`Server::http_addr`].
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    /// As [`Server::tcp_addr`].
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp_addr
    }

    /// As [`Server::control`].
    pub fn control(&self) -> ServerControl {
        self.control.clone()
    }

    /// As [`Server::run`].
    ///
    /// # Errors
    /// When the system's event queue fails.
    pub fn run(self) -> io::Result<ExitReport> {
        self.event_loop.run()
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if self.thread.is_some() {
            drop(self.stop());
        }
    }
}

fn listen(address: Option<SocketAddr>, what: &str) -> io::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    TcpListener::bind(address).map(Some).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address} ({what}): {error}"))
    })
}

pub(crate) fn wake(waker: &Waker) {
    // Fails only when the event queue is gone, and with it the thread to wake.
    if let Err(error) = waker.wake() {
        tracing::debug!("waking the network thread failed: {error}");
    }
}

/// What the owner has ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Order {
    Serve = 0,
    Drain = 1,
    Exit = 2,
}

impl Order {
    /// The order that is in force.
    pub(crate) fn load(order: &AtomicU8) -> Order {
        match order.load(Ordering::Acquire) {
            0 => Order::Serve,
            1 => Order::Drain,
            _ => Order::Exit,
        }
    }
}

/// Ends a running server from another thread.
#[derive(Clone)]
pub struct ServerControl {
    order: Arc<AtomicU8>,
    waker: Arc<Waker>,
}

impl ServerControl {
    /// Takes no new requests, finishes what runs, and ends; like the first SIGTERM.
    pub fn drain(&self) {
        self.order.fetch_max(Order::Drain as u8, Ordering::AcqRel);
        wake(&self.waker);
    }

    /// Ends at once; like the second signal.
    pub fn exit(&self) {
        self.order.fetch_max(Order::Exit as u8, Ordering::AcqRel);
        wake(&self.waker);
    }
}
