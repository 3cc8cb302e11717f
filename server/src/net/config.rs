//! What the network part can be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::http::HttpLimits;

/// Configuration of the network thread. The defaults suit one machine; both ports are on loopback.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Address of the HTTP port; `None` for no HTTP. Port 0 takes a free one.
    pub http: Option<SocketAddr>,
    /// Address of the raw TCP port; `None` for no raw TCP.
    pub tcp: Option<SocketAddr>,
    /// Limits of HTTP requests; the body limit also bounds a line of the raw port.
    pub limits: HttpLimits,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Most connections served at a time; further ones are told 503.
    pub max_connections: usize,
    /// Request bytes held over all connections; above, the connection that passes it is told 503.
    pub max_held_bytes: usize,
    /// Requests that may run at a time on one raw TCP connection.
    pub max_line_requests: usize,
    /// Bytes of output that wait per connection before it counts as full.
    pub outbox_bytes: usize,
    /// Threads that parse and tokenize.
    pub tokenizer_threads: usize,
    /// Requests that wait for a tokenizer thread; above, 429.
    pub tokenizer_queue: usize,
    /// Requests that may wait for admission, as the engine is told: more are refused before they are tokenized.
    pub max_waiting: usize,
    /// API keys and origins of pages.
    pub access: Arc<Access>,
    /// Whether `/metrics` asks for an API key, where there are any.
    pub metrics_need_key: bool,
    /// Certificate and key: both ports then speak TLS. Needs the feature `tls`.
    pub tls: Option<TlsFiles>,
    /// Whether SIGTERM and SIGINT drain the server. Off for servers inside another program.
    pub handle_signals: bool,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            http: Some((Ipv4Addr::LOCALHOST, 8080).into()),
            tcp: Some((Ipv4Addr::LOCALHOST, 8081).into()),
            limits: HttpLimits::default(),
            timeouts: Timeouts::default(),
            max_connections: 1024,
            max_held_bytes: 256 << 20,
            max_line_requests: 64,
            outbox_bytes: 1 << 20,
            tokenizer_threads: 1,
            tokenizer_queue: 64,
            max_waiting: usize::MAX,
            access: Arc::default(),
            metrics_need_key: false,
            tls: None,
            handle_signals: true,
        }
    }
}

/// Files of the TLS identity, read at the start and again on SIGHUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate of the server and those between it and its root.
    pub cert: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
}

/// Time limits of connections and of the shutdown.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the first byte of a request (or from the accept) to the end of its head.
    pub header: Duration,
    /// Between two bytes of a request body, or of an unfinished line.
    pub body_idle: Duration,
    /// Between an answer and the next request on a kept connection.
    pub keep_alive: Duration,
    /// A raw TCP connection on which nothing runs and nothing arrives.
    pub line_idle: Duration,
    /// A client that takes no byte, or leaves its outbox full, for so long is cancelled.
    pub write: Duration,
    /// A stream without an event for so long gets a comment line, which clients skip.
    pub ping: Duration,
    /// How long a closing connection waits for the client's end, so that it can read the last answer.
    pub linger: Duration,
    /// How long running requests may go on after the order to drain.
    pub shutdown: Duration,
    /// How long the listener at least stays open, answering 503, after the order to drain.
    pub drain_delay: Duration,
    /// A request that has no token after so long gets 503, unless the engine's queue is empty, so that it must have been
    /// admitted; `None` for no limit.
    pub queue: Option<Duration>,
    /// The longest that a request may take. What is written by then is its answer, ended with `length`; without a
    /// token it gets 504. `None` for no limit.
    pub request: Option<Duration>,
    /// `/health` says 503 when a step has been in flight for so long.
    pub stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            header: seconds(10),
            body_idle: seconds(30),
            keep_alive: seconds(75),
            line_idle: seconds(600),
            write: seconds(30),
            ping: seconds(15),
            linger: seconds(2),
            shutdown: seconds(30),
            drain_delay: Duration::ZERO,
            queue: None,
            request: None,
            stall: seconds(60),
        }
    }
}
