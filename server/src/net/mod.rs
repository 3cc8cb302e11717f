//! Sockets: one network thread serves HTTP/1.1 and a raw TCP line protocol.
//!
//! ```text
//! socket -> peers (read) -> conn | line (whole requests) -> requests -> tokenize (threads)
//!        -> dispatch -> engine commands ... engine reports -> dispatch -> exchange (answer bytes)
//!        -> conn | line (framing) -> outbox -> peers (write) -> socket
//! ```
//!
//! `conn` and `line` are state machines without sockets or clocks; `event_loop` is the thread. Every queue on
//! the way is bounded: unread input stays with the client, a full tokenizer or engine queue answers 429, events
//! for a slow reader wait as token ids and the write timeout cancels it.

pub mod access;
pub mod config;
pub mod conn;
mod dispatch;
mod event_loop;
mod exchange;
pub mod frontend;
pub mod http;
mod info;
pub mod line;
#[cfg(not(feature = "tls"))]
mod no_tls;
pub mod outbox;
mod overdue;
mod peers;
mod record;
mod requests;
pub mod routes;
pub mod server;
#[cfg(feature = "tls")]
mod tls;
mod tokenize;
mod transport;

pub use access::{Access, Secret};
pub use config::{NetConfig, Timeouts, TlsFiles};
pub use http::HttpLimits;
pub use server::{App, ExitReport, Loaded, Loading, Server, ServerControl};

#[cfg(test)]
mod conn_tests;
#[cfg(test)]
mod line_tests;
#[cfg(test)]
mod tests;
