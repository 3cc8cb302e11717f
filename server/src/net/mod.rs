//! Sockets: one network thread serves HTTP/1.1 and a raw TCP line protocol.

pub mod http;
