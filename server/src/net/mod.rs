//! Sockets: one network thread serves HTTP/1.1 and a raw TCP line protocol.

pub mod config;
pub mod conn;
pub mod http;
pub mod line;
pub mod outbox;

#[cfg(test)]
mod conn_tests;
#[cfg(test)]
mod line_tests;
